"""What a schedule's loops may say, checked before it is compiled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rig.errors import Invalid
from rig.model.extents import bounds
from tolk_engine.access import label
from tolk_engine.schedule import Affine, Arg, Call, CopyCall, Loop, Schedule, Step

__all__ = ["check_loops"]


def check_loops(schedule: Schedule) -> None:
    """Raise `Invalid` where a loop's name is used twice or outside of it, or where something moves as it may not.

    Trips are a number or a word of the run, fixed for it; a flag stays where it is; offsets and scalars move by a
    constant a trip of the loops around them, and what moves stays inside its buffer at the most trips.
    """
    ranges = {v.name: (v.min, v.max) for v in schedule.variables}
    for word in schedule.words:
        ranges[word] = bounds(word, {v.name: (v.min, v.max) for v in schedule.variables})
    _Check(schedule, ranges).steps(schedule.calls, {})


class _Check:
    def __init__(self, schedule: Schedule, ranges: Mapping[str, tuple[int, int]]) -> None:
        self._schedule = schedule
        self._ranges = ranges
        self._seen: set[str] = set(ranges)
        self._number = 0

    def steps(self, steps: Sequence[Step], around: Mapping[str, int]) -> None:
        """Check steps within loops, each with its most trips."""
        for step in steps:
            if isinstance(step, Loop):
                self._loop(step, around)
                continue
            where = f"call {self._number}"
            self._number += 1
            args = (step.dst, step.src) if isinstance(step, CopyCall) else step.args
            for arg in args:
                need = step.nbytes if isinstance(step, CopyCall) else arg.nbytes
                self._arg(arg, need, where, around)
            if isinstance(step, Call):
                for value in step.values:
                    self._value(value, where, around)

    def _loop(self, loop: Loop, around: Mapping[str, int]) -> None:
        if loop.name in self._seen:
            raise Invalid(f"two loops or variables are named {loop.name!r}")
        self._seen.add(loop.name)
        if isinstance(loop.trips, str) and loop.trips not in self._ranges:
            raise Invalid(
                f"the trips of loop {loop.name!r} are {loop.trips!r}, which is no variable or word of the run: they "
                "are fixed for a run"
            )
        if loop.flag is not None and loop.flag.moves:
            raise Invalid(f"the flag of loop {loop.name!r} moves with {loop.flag.moves[0][0]!r}: it stays where it is")
        most = loop.trips if isinstance(loop.trips, int) else self._ranges[loop.trips][1]
        if loop.flag is not None:
            self._arg(loop.flag, 1, f"the flag of loop {loop.name!r}", around)
        self.steps(loop.calls, {**around, loop.name: max(most, 0)})

    def _value(self, value: int | str | Affine, where: str, around: Mapping[str, int]) -> None:
        names = [value] if isinstance(value, str) else [n for n, _ in value.moves] if isinstance(value, Affine) else []
        for name in names:
            if name not in around and name not in self._ranges:
                raise Invalid(f"{where} takes {name!r}, which is no variable of the run and no loop around it")

    def _arg(self, arg: Arg, nbytes: int, where: str, around: Mapping[str, int]) -> None:
        low = high = arg.offset
        for name, factor in arg.moves:
            if name not in around:
                raise Invalid(
                    f"{where} moves {label(self._schedule, arg.node)} with {name!r}, which is no loop around it"
                )
            end = factor * max(around[name] - 1, 0)
            low, high = low + min(end, 0), high + max(end, 0)
        size = self._schedule.node(arg.node).nbytes
        if arg.moves and (low < 0 or high + nbytes > size):
            name = label(self._schedule, arg.node)
            raise Invalid(f"{where} moves {name} over bytes {low} to {high + nbytes}, but it has {size}")
