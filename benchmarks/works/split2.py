"""Launches split over two threads, against the same program on one: one of about a millisecond, and fifty of 20 us."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np

import rig
import rig.program
from benchmarks.build import reference, shared
from benchmarks.measure import Result, pairs, per_call
from rig.program.description import Data, Fixed, Image, Input, InputSlot, Launch, Program, Ref, Submit, Use

# About 90 ns an iteration: a chain of 40 dependent multiply-adds.
_WORK = """
#include <stdint.h>
void work(const uint64_t *words, uint64_t begin, uint64_t end) {
    float *x = (float *)words[0];
    for (uint64_t i = begin; i < end; i++) {
        float v = x[i];
        for (int k = 0; k < 40; k++)
            v = v * 0.999f + 0.001f;
        x[i] = v;
    }
}
"""
BLOCKS = 4


def _program(arch: str, image: bytes, launches: int, iterations: int) -> Program:
    one = Fixed(1)
    launch = Launch(
        0,
        "work",
        Data(bytes(8)),
        (Ref(0, 0, Use.WRITE),),
        groups=(Fixed(BLOCKS), one, one),
        threads=(Fixed(iterations), one, one),
    )
    return Program(
        devices=(arch,),
        images=(Image(0, Data(image)),),
        inputs=(Input(0, 4 * iterations),),
        steps=(Submit(0, (launch,) * launches, (InputSlot(0),)),),
    )


def _runs(launches: int, iterations: int, runs: int) -> tuple[Callable[[], float], Callable[[], float]]:
    """Return measurements, microseconds a run, on two threads and on one, of two loaded copies of the program."""
    image = shared("split2", _WORK).read_bytes()
    host = rig.host()

    def on(threads: int) -> Callable[[], float]:
        loaded = rig.program.load(_program(host.arch, image, launches, iterations), [host])
        memory = np.ones(iterations, np.float32)
        bound = loaded.bound(loaded.frame([rig.Buffer.of(memory, writable=True)]))
        timed = per_call(bound.run, runs)

        def sample() -> float:
            rig.host(threads=threads)
            bound.run()
            return timed() / 1e3

        return sample

    return on(2), on(1)


def _machine(launches: int, iterations: int) -> float:
    """Return the ratio that two threads in C which share out each call and spin for it reach at the moment."""
    library = ctypes.CDLL(str(shared("split2", _WORK)))
    halves = reference("halves").halves
    halves.restype = ctypes.c_double
    memory = np.ones(iterations, np.float32)
    words = (ctypes.c_uint64 * 1)(memory.ctypes.data)

    def on(two: int) -> Callable[[], float]:
        calls = ctypes.c_uint64(20 * launches)
        return lambda: float(halves(library.work, words, ctypes.c_uint64(iterations), calls, two)) / 20

    two, one = pairs(on(1), on(0), n=25, warm=4)
    return two.median / one.median


def _measure(work: str, what: str, launches: int, iterations: int) -> Result:
    two, one = _runs(launches, iterations, 20)
    value, against = pairs(two, one, n=25, warm=4)
    side = {"two_spinning_C_threads": _machine(launches, iterations)}
    return Result(work, what, "us", value, against, 0.6, 25, side)


def measure() -> Result:
    """Measure one launch of about a millisecond."""
    return _measure("split2", "1 launch of 1 ms, 2 threads", 1, 30000)


def measure_many() -> Result:
    """Measure fifty launches of about 20 us."""
    return _measure("split2_many", "50 launches of 20 us, 2 threads", 50, 600)
