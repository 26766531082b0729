"""1000 dependent kernels of 16 floats in one program, against a C loop over the same functions and arguments."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np

import rig
import rig.program
from benchmarks.build import reference, shared
from benchmarks.measure import Result, Spread, pairs, per_call
from benchmarks.programs import FLOATS, chain, kernels

LAUNCHES = 1000
DISTINCT = 16
RUNS = 200


class _Entry(ctypes.Structure):
    _fields_ = (
        ("f", ctypes.c_void_p),
        ("words", ctypes.c_void_p),
        ("begin", ctypes.c_uint64),
        ("end", ctypes.c_uint64),
    )


def entries(library: Path, launches: int, distinct: int) -> tuple[ctypes.Array[_Entry], np.ndarray, object]:
    """Return a table of functions with their arguments, the array that the last one writes, and what they need."""
    functions = ctypes.CDLL(str(library))
    a, b, out = (np.zeros(FLOATS, np.float32) for _ in range(3))
    both = (a.ctypes.data, b.ctypes.data)
    table = (_Entry * launches)()
    words = []
    for i in range(launches):
        target = out.ctypes.data if i == launches - 1 else both[(i + 1) % 2]
        words.append((ctypes.c_uint64 * 2)(target, both[i % 2]))
        address = ctypes.cast(functions[f"k{i % distinct}"], ctypes.c_void_p).value
        table[i] = _Entry(address, ctypes.addressof(words[i]), 0, 1)
    return table, out, (functions, a, b, words)


def c_loop(library: Path, distinct: int) -> tuple[Callable[[], float], np.ndarray]:
    """Return the C loop's measurement, in nanoseconds a kernel, and the array that its last kernel writes."""
    table, out, kept = entries(library, LAUNCHES, distinct)
    loop = reference("loop").loop
    loop.restype = ctypes.c_double
    loop.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64)

    def sample() -> float:
        assert kept
        return float(loop(table, LAUNCHES, RUNS))

    return sample, out


def ours(library: Path, distinct: int) -> tuple[Callable[[], float], np.ndarray]:
    """Return the program's measurement, in nanoseconds a kernel, and the array that its last kernel writes."""
    host = rig.host(threads=1)
    out = np.zeros(FLOATS, np.float32)
    loaded = rig.program.load(chain(host.arch, library.read_bytes(), LAUNCHES, distinct), [host])
    bound = loaded.bound(loaded.frame([rig.Buffer.of(out, writable=True)]))
    run = per_call(bound.run, RUNS)
    return lambda: run() / LAUNCHES, out


def compare(distinct: int) -> tuple[Spread, Spread]:
    """Measure both with `distinct` different kernels, and hold the results against each other."""
    library = shared(f"chain{distinct}", kernels(distinct))
    value, found = ours(library, distinct)
    against, expected = c_loop(library, distinct)
    result = pairs(value, against)
    # The chain converges to its fixed point, so the number of runs does not matter.
    if not (np.isfinite(found).all() and found.any() and np.allclose(found, expected, rtol=1e-4)):
        raise AssertionError(f"the program computes {found}, the C loop {expected}")
    return result


def measure() -> Result:
    """Measure with 16 different kernels; beside it with one and with a thousand, and the cost of starting a run."""
    value, against = compare(DISTINCT)
    side: dict[str, float] = {}
    for distinct in (1, LAUNCHES):
        a, b = compare(distinct)
        side |= {f"ratio_{distinct}_distinct": a.median / b.median, f"value_{distinct}_distinct": a.median}
    side["run_us"] = value.median * LAUNCHES / 1000
    return Result("kernels1000", "a kernel of 1000", "ns", value, against, 2.0, 15, side)
