"""Programs of random steps over three devices compute what an interpreter computes that does one step after another."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given as hypothesis_given
from hypothesis import settings
from hypothesis import strategies as st
from kernels import (
    INTS,
    alloc,
    as_bytes,
    buffer,
    copy,
    given,
    launch,
    load,
    loop,
    memory,
    memory_devices,
    move,
    moving,
    reads,
    submit,
    values,
    wait_all,
    writes,
)

import rig
from rig.program import description as d

WORDS = 4  # of each memory
RUNS = 4
MASK = 2**64 - 1

memories = st.lists(st.tuples(st.integers(0, 2), st.booleans()), min_size=2, max_size=5)
chosen = st.integers(0, 4)
delays = st.sampled_from([0, 0, 0, 50, 300])


@st.composite
def steps(draw: Any, depth: int = 0) -> tuple[Any, ...]:
    """A step as a tuple: what, device, delay, and three memories or numbers."""
    kinds = ["add", "addk", "copy", "move", "store int", "use int", "fixed"] + ["loop"] * (depth == 0)
    kind = draw(st.sampled_from(kinds))
    if kind == "loop":
        return ("loop", draw(st.integers(0, 3)), draw(st.lists(steps(1), max_size=3)))
    return (kind, draw(st.integers(0, 2)), draw(delays), draw(chosen), draw(chosen), draw(chosen))


@dataclass
class Machine:
    """Memories and ints of two copies, and steps done at once."""

    devices: list[tuple[int, bool]]
    runs: int = 0
    memory: list[list[list[int]]] = field(default_factory=list)
    ints: list[list[int]] = field(default_factory=lambda: [[0, 0, 0], [0, 0, 0]])

    def __post_init__(self) -> None:
        self.memory = [
            [[10 * i + w for w in range(WORDS)] for _ in range(1 + two)] for i, (_, two) in enumerate(self.devices)
        ]

    def run(self, program: list[tuple[Any, ...]], first: int) -> list[int]:
        turn = self.runs % 2
        self.runs += 1
        ints = self.ints[turn]
        ints[0] = first
        cells = [copies[turn % len(copies)] for copies in self.memory]
        for step in program:
            self.step(step, cells, ints)
        return [word for cell in cells for word in cell]

    def step(self, step: tuple[Any, ...], cells: list[list[int]], ints: list[int]) -> None:
        if step[0] == "loop":
            for ints[2] in range(step[1]):
                for inner in step[2]:
                    self.step(inner, cells, ints)
            return
        kind, _, _, *picked = step
        a, b, c = (cells[i % len(cells)] for i in picked)
        if kind in ("add", "fixed"):
            a[:] = [(x + y) & MASK for x, y in zip(b, c, strict=True)]
        elif kind == "addk":
            a[:] = [(x + ints[0] + ints[2]) & MASK for x in b]
        elif kind == "copy":
            if a is not b:
                a[1:] = b[:-1]
        elif kind == "move":
            if a is not b:
                a[ints[2] % WORDS] = b[picked[2] % WORDS]
        elif kind == "store int":
            ints[1] = b[picked[2] % WORDS]
        else:
            a[:] = [(x + ints[1]) & MASK for x in b]


def described(step: tuple[Any, ...], count: int) -> tuple[d.Step, ...]:
    """Return the description of a step; none where it would copy memory onto itself."""
    if step[0] == "loop":
        body = tuple(one for inner in step[2] for one in described(inner, count))
        return (loop(step[1], *body, trip=2),)
    kind, device, delay, *picked = step
    a, b, c = (i % count for i in picked)
    slots = [memory(i, 8 * WORDS) for i in (a, b, c)]
    late = (launch("sleep_us", delay),) if delay else ()
    if kind == "add":
        work = launch("add", writes(0), reads(1), reads(2), n=WORDS)
        return (submit(device, *late, work, slots=slots),)
    if kind == "fixed":
        addresses = [d.Address(i, device) for i in (a, b, c)]
        fixed = [(memory(i, 8 * WORDS), d.Access.READ_WRITE if i == a else d.Access.READ) for i in {a, b, c}]
        return (submit(device, *late, launch("add", *addresses, n=WORDS), fixed=fixed),)
    if kind == "addk":
        work = (
            launch("addk", writes(0), reads(1), d.Int(0), n=WORDS),
            launch("addk", writes(0), reads(0), d.Int(2), n=WORDS),
        )
        return (submit(device, *late, *work, slots=slots[:2]),)
    if kind == "use int":
        return (submit(device, *late, launch("addk", writes(0), reads(1), d.Int(1), n=WORDS), slots=slots[:2]),)
    if kind == "store int":
        word = 8 * (picked[2] % WORDS)
        return (submit(device, *late, launch("copy_words", writes(0, 8), reads(1, word)), slots=(INTS, slots[1])),)
    if a == b:
        return ()
    if kind == "copy":
        return (submit(device, *late, copy(1, 0, 8 * (WORDS - 1), dst_offset=8), slots=slots[:2]),)
    return (move(slots[1], slots[0], 8, src_offset=8 * (picked[2] % WORDS), dst_offset=((d.Int(2), 8),)),)


@pytest.mark.spec("P-order-step", "P-copies-alternate", "P-value-int", "P-move-copy", "P-loop-trips")
@settings(max_examples=80)
@hypothesis_given(memories, st.lists(steps(), min_size=1, max_size=10), st.booleans())
def test_random_programs(places: list[tuple[int, bool]], program: list[tuple[Any, ...]], ahead: bool) -> None:
    """Several runs of it, each handed over while the last ones still work, or one by one."""
    machine = Machine(places)
    count = len(places)
    # The trip's word starts as the frame says in each run, so that the interpreter need not keep it.
    with memory_devices(2) as devices:
        rows = [memory(i, 8 * WORDS) for i in range(count)]
        report = [move(row, given(0), 8 * WORDS, dst_offset=8 * WORDS * i) for i, row in enumerate(rows)]
        body = [one for step in program for one in described(step, count)]
        loaded = load(
            [rig.host(), *devices],
            *body,
            *report,
            memory=[
                alloc(on, 8 * WORDS, as_bytes(*range(10 * i, 10 * i + WORDS)), two=two)
                for i, (on, two) in enumerate(places)
            ],
            inputs=[(0, 8 * WORDS * count)],
            ints=3,
        )
        outs = [buffer(rig.host(), count=WORDS * count) for _ in range(RUNS)]
        ends = []
        for n, out in enumerate(outs):
            ends += loaded.run(loaded.frame([out], [100 * n]))
            if not ahead:
                wait_all(ends)
        wait_all(ends)
        assert [values(out) for out in outs] == [machine.run(program, 100 * n) for n in range(RUNS)]


@pytest.mark.spec("P-part-ref", "P-copies-overlap")
@settings(max_examples=20)
@hypothesis_given(st.lists(st.tuples(st.integers(0, 1), delays), min_size=2, max_size=6), st.booleans())
def test_pipelines(stages: list[tuple[int, int]], two: bool) -> None:
    """Stage i adds i to each row that it hands on, on one device or the other; runs overlap as their copies allow."""
    with memory_devices(2) as devices:
        work = [
            submit(
                on,
                *([launch("sleep_us", delay)] if delay else []),
                launch("addk", writes(0), reads(1), i, n=WORDS),
                slots=(memory(i, 8 * WORDS), memory(i - 1, 8 * WORDS) if i else given(0)),
            )
            for i, (on, delay) in enumerate(stages)
        ]
        last = memory(len(stages) - 1, 8 * WORDS)
        out = submit(0, launch("copy_words", moving(0, d.Use.WRITE, (d.Int(0), 8 * WORDS)), reads(1), n=WORDS),
                     slots=(given(1), last))  # fmt: skip
        sizes = [alloc(on, 8 * WORDS, two=two) for on, _ in stages]
        rows, seen = 6, buffer(devices[0], count=6 * WORDS)
        inputs = [(2, 8 * WORDS), (0, 8 * WORDS * rows)]
        loaded = load([*devices, rig.host()], *work, out, memory=sizes, inputs=inputs, ints=1)
        for row in range(rows):
            loaded.run(loaded.frame([buffer(rig.host(), *[1000 * row + w for w in range(WORDS)]), seen], [row]))
        total = sum(range(len(stages)))
        assert values(seen) == [1000 * row + w + total for row in range(rows) for w in range(WORDS)]
