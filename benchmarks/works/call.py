"""A one-kernel program run from Python, against a pre-built ctypes call of the same function."""

from __future__ import annotations

import ctypes
from itertools import repeat
from time import perf_counter_ns

import numpy as np

import rig
import rig.program
from benchmarks.build import shared
from benchmarks.measure import Result, pairs, per_call
from benchmarks.programs import FLOATS, kernels, single

CALLS = 20000


def measure() -> Result:
    """Measure both over the same two arrays."""
    library = shared("call", kernels(1))
    host = rig.host(threads=1)
    source = np.arange(FLOATS, dtype=np.float32)
    out = np.zeros(FLOATS, np.float32)
    loaded = rig.program.load(single(host.arch, library.read_bytes()), [host])
    frame = loaded.frame([rig.Buffer.of(out, writable=True), rig.Buffer.of(source)])
    bound = loaded.bound(frame)

    against = np.zeros(FLOATS, np.float32)
    function = ctypes.CDLL(str(library)).k0
    function.restype = None
    words = (ctypes.c_uint64 * 2)(against.ctypes.data, source.ctypes.data)
    first, begin, end = ctypes.c_void_p(ctypes.addressof(words)), ctypes.c_uint64(0), ctypes.c_uint64(1)

    def called() -> float:
        trips = repeat(None, CALLS)
        start = perf_counter_ns()
        for _ in trips:
            function(first, begin, end)
        return (perf_counter_ns() - start) / CALLS

    function(first, begin, end)
    bound.run()
    if not np.array_equal(out, against):
        raise AssertionError(f"the program computes {out}, the function {against}")
    value, reference = pairs(per_call(bound.run, CALLS), called)
    run = per_call(lambda: loaded.run(frame), CALLS // 10)
    return Result(
        "call", "bound.run()", "ns", value, reference, 1.5, 15, {"loaded_run_ns": min(run() for _ in range(5))}
    )
