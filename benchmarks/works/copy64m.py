"""A copy of 64 MiB into touched memory, as a part of a submission and as a move, against memcpy; rates in GB/s."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np

import rig
import rig.program
from benchmarks.measure import Result, pairs, per_call
from rig.program.description import Copy, Input, InputSlot, Move, Program, Submit

NBYTES = 64 << 20


def _rate(nanoseconds: Callable[[], float]) -> Callable[[], float]:
    return lambda: NBYTES / nanoseconds()


def _ours(part: bool) -> Callable[[], float]:
    host = rig.host(threads=1)
    step = (
        Submit(0, (Copy(0, (), 1, (), NBYTES),), (InputSlot(0), InputSlot(1)))
        if part
        else Move(InputSlot(0), (), InputSlot(1), (), NBYTES)
    )
    loaded = rig.program.load(Program((host.arch,), inputs=(Input(0, NBYTES),) * 2, steps=(step,)), [host])
    source, target = (rig.Buffer.create(host, NBYTES) for _ in range(2))
    source.write(np.ones(NBYTES, np.uint8))
    target.write(np.zeros(NBYTES, np.uint8))
    return _rate(per_call(loaded.bound(loaded.frame([source, target])).run, 2))


def _theirs() -> Callable[[], float]:
    host = rig.host(threads=1)
    source, target = (rig.Buffer.create(host, NBYTES) for _ in range(2))
    source.write(np.ones(NBYTES, np.uint8))
    target.write(np.zeros(NBYTES, np.uint8))
    copy = ctypes.CDLL(None).memcpy
    copy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
    copy.restype = ctypes.c_void_p
    kept = (source, target)
    return _rate(per_call(lambda: copy(kept[1].address, kept[0].address, NBYTES), 2))


def _measure(work: str, what: str, part: bool) -> Result:
    value, against = pairs(_ours(part), _theirs(), n=15)
    return Result(work, what, "GB/s", value, against, 0.9, 15, at_least=True)


def measure_part() -> Result:
    """Measure the copy as a part."""
    return _measure("copy64m_part", "a copy part of 64 MiB", True)


def measure_move() -> Result:
    """Measure the copy as a move."""
    return _measure("copy64m_move", "a move of 64 MiB", False)
