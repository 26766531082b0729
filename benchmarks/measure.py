"""Measuring in pairs: the work and its reference take turns, so that a busy machine hurts both alike."""

from __future__ import annotations

import gc
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import repeat

PAIRS = 15
"""The least number of pairs that a figure rests on."""


@dataclass(frozen=True)
class Spread:
    """The median and the quartiles of some samples."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(samples: list[float]) -> Spread:
        """Summarise at least two samples."""
        low, median, high = statistics.quantiles(samples, n=4, method="inclusive")
        return Spread(median, low, high)


@dataclass(frozen=True)
class Result:
    """One row: a work's figure, its reference's, and how they compare.

    `goal` bounds the ratio where there is a reference, else the value; from below with `at_least`, for rates.
    With `on_extra` it bounds the value minus the reference's. An infinite goal is none: the figure is reported. `side`
    holds further figures by name.
    """

    work: str
    what: str
    unit: str
    value: Spread
    reference: Spread | None
    goal: float
    n: int
    side: Mapping[str, float | int | str] = field(default_factory=dict)
    at_least: bool = False
    on_extra: bool = False

    @property
    def ratio(self) -> float | None:
        """The value's median over the reference's."""
        return None if self.reference is None else self.value.median / self.reference.median

    @property
    def extra(self) -> float | None:
        """The value's median minus the reference's."""
        return None if self.reference is None else self.value.median - self.reference.median

    @property
    def met(self) -> bool:
        """Whether the goal is reached."""
        bounded = self.extra if self.on_extra else self.ratio
        if bounded is None:
            bounded = self.value.median
        return bounded >= self.goal if self.at_least else bounded <= self.goal

    def to_json(self) -> str:
        """Return the row as one JSON object."""
        row: dict[str, object] = {
            "work": self.work,
            "value": self.value.median,
            "unit": self.unit,
            "reference": self.reference and self.reference.median,
            "ratio": self.ratio,
            "extra": self.extra,
            "n": self.n,
            "goal": None if self.goal == math.inf else self.goal,
            "met": self.met,
            "value_q1": self.value.low,
            "value_q3": self.value.high,
        }
        if self.reference:
            row |= {"reference_q1": self.reference.low, "reference_q3": self.reference.high}
        return json.dumps(row | dict(self.side))

    def to_row(self) -> str:
        """Return the row of the table, in Markdown."""
        against = "-" if self.reference is None else f"{_spread(self.reference)}"
        ratio = f"{self.value.median:.3g} {self.unit}" if self.ratio is None else f"{self.ratio:.2f}"
        if self.on_extra:
            ratio = f"+{self.extra:.3g} {self.unit}"
        goal = f"{'at least ' if self.at_least else ''}{self.goal:g}"
        reached = "yes" if self.met else "**no**"
        if self.goal == math.inf:
            goal, reached = "none", "-"
        side = ", ".join(f"{name} {_figure(value)}" for name, value in self.side.items())
        value = f"{_spread(self.value)} {self.unit}"
        return f"| `{self.work}`: {self.what} | {value} | {against} | {ratio} | {goal} | {reached} | {side} |"


HEAD = "| work | value (quartiles) | reference | ratio | goal | reached | besides |\n|---|---|---|---|---|---|---|"


def _figure(value: float | int | str) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def _spread(spread: Spread) -> str:
    return f"{spread.median:.4g} ({spread.low:.4g}-{spread.high:.4g})"


def pairs(
    value: Callable[[], float], reference: Callable[[], float], n: int = PAIRS, warm: int = 2
) -> tuple[Spread, Spread]:
    """Take `n` samples of each of two measurements, in turns, after `warm` turns that do not count.

    Every second turn starts with the reference. The garbage collector rests meanwhile.
    """
    ours: list[float] = []
    theirs: list[float] = []
    gc.collect()
    gc.disable()
    try:
        for turn in range(warm + n):
            if turn % 2:
                theirs.append(reference())
                ours.append(value())
            else:
                ours.append(value())
                theirs.append(reference())
    finally:
        gc.enable()
    return Spread.of(ours[warm:]), Spread.of(theirs[warm:])


def alone(value: Callable[[], float], n: int = PAIRS, warm: int = 2) -> Spread:
    """Take `n` samples of one measurement after `warm` that do not count."""
    return Spread.of([value() for _ in range(warm + n)][warm:])


def per_call(call: Callable[[], object], calls: int) -> Callable[[], float]:
    """Return a measurement: nanoseconds a call, over `calls` calls without arguments."""

    def sample() -> float:
        trips = repeat(None, calls)
        start = time.perf_counter_ns()
        for _ in trips:
            call()
        return (time.perf_counter_ns() - start) / calls

    return sample
