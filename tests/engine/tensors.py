"""Run schedules on NumPy arrays through the frontend's own evaluator, which needs no runtime."""

from __future__ import annotations

from typing import Any

import numpy as np

from tolk_engine.frontend.evaluate import Evaluator
from tolk_engine.schedule import Call, CopyCall, Schedule

NARROW = {"bfloat16": "uint16"}
"""Types that NumPy has not, and the ones that hold their bits."""


class Running:
    """A schedule that is run again and again and keeps its state."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.evaluator = Evaluator(schedule)

    def __call__(self, *arrays: Any) -> dict[str, np.ndarray]:
        """Return each output by name."""
        s = self.schedule
        for slot, array in zip(s.inputs, arrays, strict=True):
            assert array.nbytes == s.slots[slot].nbytes, (s.slots[slot], array.shape, array.dtype)
        raw = self.evaluator.run(*(np.ascontiguousarray(a).tobytes() for a in arrays))
        slots = [s.slots[i] for i in s.outputs]
        return {
            slot.name: np.frombuffer(data, NARROW.get(slot.dtype, slot.dtype)).reshape(slot.shape)
            for slot, data in zip(slots, raw, strict=True)
        }


def run(schedule: Schedule, *arrays: Any) -> dict[str, np.ndarray]:
    """Return the outputs of one run."""
    return Running(schedule)(*arrays)


def launches(schedule: Schedule) -> list[Call]:
    """Return the kernels' calls."""
    return [c for c in schedule.calls if isinstance(c, Call)]


def copies(schedule: Schedule) -> list[CopyCall]:
    """Return the copies."""
    return [c for c in schedule.calls if isinstance(c, CopyCall)]


def numbers(*shape: int, seed: int = 0, dtype: str = "float32") -> np.ndarray:
    """Return random numbers, the same in every run."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)
