"""A loop of 1000 trips around ten dependent kernels of 16 floats, against a C loop over the same functions."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np

import rig
import rig.program
from benchmarks.build import reference, shared
from benchmarks.measure import Result, pairs, per_call
from benchmarks.programs import FLOATS, chain, kernels
from benchmarks.works.kernels1000 import entries
from rig.program.description import Fixed, Loop

BODY = 10
TRIPS = 1000
RUNS = 20


def _ours(library: Path) -> tuple[Callable[[], float], np.ndarray]:
    host = rig.host(threads=1)
    out = np.zeros(FLOATS, np.float32)
    straight = chain(host.arch, library.read_bytes(), BODY, BODY)
    looped = msgspec.structs.replace(straight, steps=(Loop(Fixed(TRIPS), straight.steps, 0),), ints=1)
    loaded = rig.program.load(looped, [host])
    bound = loaded.bound(loaded.frame([rig.Buffer.of(out, writable=True)]))
    run = per_call(bound.run, RUNS)
    return lambda: run() / (BODY * TRIPS), out


def _c_loop(library: Path) -> tuple[Callable[[], float], np.ndarray]:
    table, out, kept = entries(library, BODY, BODY)
    loop = reference("loop").loop
    loop.restype = ctypes.c_double
    loop.argtypes = (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64)

    def sample() -> float:
        assert kept
        return float(loop(table, BODY, TRIPS * RUNS))

    return sample, out


def measure() -> Result:
    """Measure both, and hold the results against each other."""
    library = shared("chain10", kernels(BODY))
    (value, found), (against, expected) = _ours(library), _c_loop(library)
    ours, theirs = pairs(value, against)
    if not (found.any() and np.allclose(found, expected, rtol=1e-4)):
        raise AssertionError(f"the program computes {found}, the C loop {expected}")
    return Result("loop", "a kernel of ten, 1000 trips", "ns", ours, theirs, 1.5, 15)
