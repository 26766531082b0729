"""A step on one memory device that waits for another, against two C threads and a futex."""

from __future__ import annotations

import ctypes
import time

import rig
import rig.program
from benchmarks.build import reference, shared
from benchmarks.measure import Result, pairs
from benchmarks.programs import kernels, relay

STEPS = 1000


def measure() -> Result:
    """Measure a step of a run that alternates between two devices over one memory, and one way of the ping-pong."""
    image = shared("call", kernels(1)).read_bytes()
    a, b = rig.memory_device("a"), rig.memory_device("b")
    loaded = rig.program.load(relay((a.arch, b.arch), (image, image), STEPS), [a, b])
    frame = loaded.frame([])

    def step() -> float:
        start = time.perf_counter_ns()
        for point in loaded.run(frame):
            point.wait()
        return (time.perf_counter_ns() - start) / STEPS / 1e3

    pingpong = reference("pingpong").pingpong
    pingpong.restype = ctypes.c_double
    pingpong.argtypes = (ctypes.c_uint32,)

    def way() -> float:
        spent = float(pingpong(STEPS // 2))
        if spent < 0:
            raise OSError("the reference could not start its thread")
        return spent / 1e3

    value, against = pairs(step, way, n=25)
    return Result("wait2", "a step that waits", "us", value, against, 2.0, 25)
