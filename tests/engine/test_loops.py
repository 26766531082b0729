"""Loops of schedules: planned, assembled and run as an interpreter runs them; what may move and what may not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import handmade
import hostcode
import numpy as np
import pytest
from handmade import ADD, MUL, ONE, SLOT, STORAGE, N, call, copy, schedule, slot, storage
from hypothesis import given, settings
from hypothesis import strategies as st

import rig
from rig.errors import Invalid
from tolk_engine.compile import compile
from tolk_engine.link import link, run
from tolk_engine.plan import lifetimes, plan
from tolk_engine.renderer import Renderer
from tolk_engine.schedule import Affine, Arg, Call, CopyCall, Loop, Ref, Schedule, SlotRef, Step, Var

FILL = handmade.kernel("fill", hostcode.kernel(
    "fill", 1,
    "  %s = trunc i64 %v0 to i32\n  %f = sitofp i32 %s to float\n  %p = getelementptr inbounds float, ptr %p0, i64 %i\n"
    "  store float %f, ptr %p, align 4", values=1), 1, values=1)  # fmt: skip
"""y = the scalar argument."""

KERNELS = (ADD, MUL, ONE, FILL)
ROW = 4 * N


@pytest.fixture(autouse=True)
def _by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Renderer, "render", handmade.render)


def fill(out: Ref | Arg, value: Any, device: str = "CPU") -> Call:
    arg = out if isinstance(out, Arg) else Arg(out, 0, ROW)
    return Call(3, (arg,), (), (0,), device, (value,))


class Interpreter:
    """Does one step after the other on arrays."""

    def __init__(self, s: Schedule, inputs: Sequence[np.ndarray], numbers: dict[str, int]) -> None:
        self.bytes: dict[Ref, np.ndarray] = {}
        for i, one in enumerate(s.slots):
            self.bytes[SLOT(i)] = np.zeros(one.nbytes, np.uint8)
        for i, kept in enumerate(s.storages):
            data = np.frombuffer(bytes(kept.init or bytes(kept.nbytes)), np.uint8)
            self.bytes[STORAGE(i)] = data.copy()
        for i, array in zip(s.inputs, inputs, strict=True):
            self.bytes[SLOT(i)][:] = array.view(np.uint8)
        self.numbers = dict(numbers)
        self.steps(s.calls)

    def floats(self, arg: Arg) -> np.ndarray:
        at = arg.offset + sum(self.numbers[n] * f for n, f in arg.moves)
        return self.bytes[arg.node][at : at + ROW].view(np.float32)

    def value(self, v: int | str | Affine) -> int:
        if isinstance(v, Affine):
            return v.add + sum(self.numbers[n] * f for n, f in v.moves)
        return self.numbers[v] if isinstance(v, str) else v

    def steps(self, steps: Sequence[Step]) -> None:
        for step in steps:
            if isinstance(step, Loop):
                for trip in range(self.value(step.trips)):
                    if step.flag is not None and not self.bytes[step.flag.node][step.flag.offset]:
                        break
                    self.numbers[step.name] = trip
                    self.steps(step.calls)
            elif isinstance(step, CopyCall):
                self.floats(step.dst)[:] = self.floats(step.src)
            else:
                out, *given = (self.floats(a) for a in step.args)
                if step.kernel == 3:
                    out[:] = self.value(step.values[0])
                elif step.kernel == 2:
                    out[:] = given[0] + 1
                else:
                    out[:] = given[0] + given[1] if step.kernel == 0 else given[0] * given[1]


def results(
    s: Schedule, inputs: Sequence[np.ndarray], devices: dict[str, rig.Device], numbers: dict[str, int]
) -> list[Any]:
    linked = link(compile(s, jobs=1), devices)
    buffers = []
    for i, one in enumerate(s.slots):
        made = rig.Buffer.create(devices[one.device], one.nbytes)
        made.write(inputs[s.inputs.index(i)] if i in s.inputs else bytes(one.nbytes))
        buffers.append(made)
    for _ in range(2):  # what a run leaves must not change the next
        run(linked, buffers, vars=numbers)
    return [np.frombuffer(buffers[i].read(), np.float32).tolist() for i in s.outputs]


def wanted(s: Schedule, inputs: Sequence[np.ndarray], numbers: dict[str, int]) -> list[Any]:
    done = Interpreter(s, inputs, numbers)
    return [done.bytes[SLOT(i)].view(np.float32).tolist() for i in s.outputs]


X = np.arange(N, dtype=np.float32)


def equal(s: Schedule, *inputs: np.ndarray, **numbers: int) -> list[Any]:
    want = wanted(s, inputs, numbers)
    assert results(s, inputs, {"CPU": rig.host()}, numbers) == want
    for knobs in ({}, {"borrows": False, "alignment": 64}):
        assert results(s, inputs, {"CPU": rig.memory_device("loops", **knobs)}, numbers) == want  # type: ignore[arg-type]
    return want


def looped(*calls: Step, trips: int | str = 5, name: str = "i", flag: Arg | None = None) -> Loop:
    return Loop(name, trips, calls, flag)


@pytest.mark.spec("E-link-range")
@pytest.mark.parametrize("trips", [0, 1, 5, -3])
def test_a_loop_runs_its_calls_so_often(trips: int) -> None:
    s = schedule([slot("x"), slot("y")], [], [copy(SLOT(1), SLOT(0)), looped(call(2, SLOT(1), SLOT(1)), trips=trips)])
    assert equal(s, X) == [(X + max(trips, 0)).tolist()]


@pytest.mark.spec("E-link-range")
def test_loops_nest_and_storage_carries_from_trip_to_trip() -> None:
    inner = looped(call(0, STORAGE(0), STORAGE(0), STORAGE(1)), trips=3, name="j")
    outer = looped(inner, call(2, STORAGE(1), STORAGE(1)), trips=4)
    s = schedule(
        [slot("x"), slot("y")], [storage(), storage()],
        [copy(STORAGE(0), SLOT(0)), fill(STORAGE(1), 1), outer, call(0, SLOT(1), STORAGE(0), STORAGE(1))],
        kernels=KERNELS,
    )  # fmt: skip
    assert equal(s, X) == [(X + 3 * (1 + 2 + 3 + 4) + 5).tolist()]


@pytest.mark.spec("E-link-vars", "E-link-range")
def test_trips_are_a_variable_or_computed_from_variables() -> None:
    for trips, words in (("n", ()), ("2*n+1", ("2*n+1",))):
        calls = [copy(SLOT(1), SLOT(0)), looped(call(2, SLOT(1), SLOT(1)), trips=trips)]
        made = schedule([slot("x"), slot("y")], [], calls)
        s = replace(made, variables=(Var("n", 0, 9),), words=words)
        for n in (0, 1, 4):
            assert results(s, [X], {"CPU": rig.host()}, {"n": n}) == [(X + (2 * n + 1 if words else n)).tolist()]


@pytest.mark.spec("E-link-moving")
def test_offsets_of_kernels_and_copies_and_scalars_move() -> None:
    rows = 6
    moving = (("i", ROW),)
    back = Arg(SLOT(1), (rows - 1) * ROW, ROW, (("i", -ROW),))
    s = schedule(
        [slot("x", n=rows * N), slot("y", n=rows * N), slot("z", n=rows * N)], [storage(n=rows * N)],
        [
            looped(
                call(2, Arg(STORAGE(0), 0, ROW, moving), Arg(SLOT(0), 0, ROW, moving)),
                copy(back, Arg(STORAGE(0), 0, ROW, moving)), trips=rows,
            ),
            looped(fill(Arg(SLOT(2), 0, ROW, (("k", ROW),)), Affine(100, (("k", -7),))), trips=rows, name="k"),
        ],
        kernels=KERNELS, outputs=(1, 2),
    )  # fmt: skip
    x = np.arange(rows * N, dtype=np.float32)
    y, z = equal(s, x)
    assert np.array_equal(np.reshape(y, (rows, N)), (x + 1).reshape(rows, N)[::-1])
    assert z[::N] == [100 - 7 * k for k in range(rows)]


@pytest.mark.spec("E-link-moving")
def test_what_moves_by_two_loops() -> None:
    at = Arg(SLOT(0), 0, ROW, (("i", 3 * ROW), ("j", ROW)))
    body = looped(fill(at, Affine(0, (("i", 10), ("j", 1)))), trips=3, name="j")
    s = schedule([slot("y", n=6 * N)], [], [looped(body, trips=2)], kernels=KERNELS)
    assert equal(s)[0][::N] == [0, 1, 2, 10, 11, 12]


@pytest.mark.spec("E-link-range")
def test_a_back_edge_reads_its_flag_before_each_trip() -> None:
    """The body doubles y and copies the next byte of a tape into the flag."""
    tape = storage(init=bytes([1, 1, 1, 0, 1] + [0] * (ROW - 5)))
    flag = storage()
    for first, trips in ((1, 4), (0, 0)):
        calls = [
            copy(SLOT(1), SLOT(0)), copy(STORAGE(1), Arg(STORAGE(0), 0 if first else 3, 4), 1),
            looped(
                call(2, SLOT(1), SLOT(1)), copy(STORAGE(1), Arg(STORAGE(0), 0, 1, (("i", 1),)), 1), trips=ROW,
                flag=Arg(STORAGE(1), 0, 1),
            ),
        ]  # fmt: skip
        s = schedule([slot("x"), slot("y")], [tape, flag], calls)
        for device in (rig.host(), rig.memory_device("flags")):
            assert results(s, [X], {"CPU": device}, {}) == [(X + trips).tolist()]


def test_a_saved_loop_runs_in_a_fresh_load(tmp_path: Any) -> None:
    body = looped(call(2, SLOT(1), SLOT(1)), trips="n+1")
    made = schedule([slot("x"), slot("y")], [], [copy(SLOT(1), SLOT(0)), body])
    s = replace(made, variables=(Var("n", 0, 9),), words=("n+1",))
    compile(s, jobs=1).save(tmp_path / "m.rig")
    model = rig.open(tmp_path / "m.rig")
    assert model.signature.words == ("n+1",)
    assert model(X, n=4).tolist() == (X + 5).tolist()
    out = bytearray(ROW)
    model.bind({"x": X}, {"y": out}, {"n": 2}).run()
    assert np.frombuffer(out, np.float32).tolist() == (X + 3).tolist()


@pytest.mark.parametrize(
    ("calls", "message"),
    [
        ([looped(looped(fill(SLOT(0), 1)))], "two loops or variables are named 'i'"),
        ([looped(fill(SLOT(0), 1), trips="m")], "the trips of loop 'i' are 'm', which is no variable or word"),
        ([looped(looped(fill(SLOT(0), 1), trips="i", name="j"))], "the trips of loop 'j' are 'i'"),
        ([looped(fill(SLOT(0), 1), flag=Arg(SLOT(0), 0, 1, (("n", 1),)))], "the flag of loop 'i' moves with 'n'"),
        ([fill(Arg(SLOT(0), 0, ROW, (("i", 4),)), 1)], "call 0 moves output slot 0 ('y') with 'i', which is no loop"),
        ([fill(SLOT(0), "i")], "call 0 takes 'i', which is no variable of the run and no loop around it"),
        ([looped(fill(Arg(SLOT(0), 0, ROW, (("i", 4),)), 1))], "moves output slot 0 ('y') over bytes 0 to 80, but"),
        ([looped(fill(Arg(SLOT(0), 0, 4, (("i", 2),)), 1))], "by 2 bytes a trip of i, which is no multiple of 4"),
    ],
)  # fmt: skip
@pytest.mark.spec("E-link-moving", "E-link-refuse")
def test_what_moves_in_another_way_is_refused(calls: list[Step], message: str) -> None:
    made = schedule([slot("y")], [], calls, kernels=KERNELS)  # type: ignore[arg-type]
    with pytest.raises(Invalid) as e:
        compile(replace(made, variables=(Var("n", 0, 9),)), jobs=1)
    assert message in str(e.value)


def test_storage_lives_through_a_loop_only_where_it_crosses_a_trip() -> None:
    body = (
        call(2, STORAGE(0), SLOT(0)),  # of one trip
        call(0, STORAGE(1), STORAGE(1), STORAGE(0)),  # carried
        call(2, STORAGE(2), STORAGE(1)),  # read after the loop
    )
    calls = [fill(STORAGE(1), 0), fill(STORAGE(2), 0), looped(*body), call(2, SLOT(1), STORAGE(2))]
    s = schedule([slot("x"), slot("y")], [storage() for _ in range(3)], calls, kernels=KERNELS)
    assert lifetimes(s) == ((2, 3), (0, 4), (1, 5))
    assert len(plan(s).arenas) == 1
    equal(s, X)


def test_what_is_read_early_in_each_trip_is_kept_through_the_trip() -> None:
    """Storage 1 is made before the loop and last read by the body's first call; storage 2 must not take its place."""
    body = (
        call(0, STORAGE(0), STORAGE(0), STORAGE(1)),
        call(2, STORAGE(2), STORAGE(0)),
        call(2, STORAGE(0), STORAGE(2)),
    )
    calls = [fill(STORAGE(0), 0), copy(STORAGE(1), SLOT(0)), looped(*body), call(2, SLOT(1), STORAGE(0))]
    s = schedule([slot("x"), slot("y")], [storage() for _ in range(3)], calls, kernels=KERNELS)
    assert lifetimes(s)[1:] == ((1, 4), (3, 4))
    assert equal(s, X) == [(5 * (X + 2) + 1).tolist()]


# Random schedules.

REFS = [SLOT(0), SLOT(1), *[STORAGE(i) for i in range(4)]]
sources = st.integers(0, 5)
targets = st.integers(1, 5)


@st.composite
def bodies(draw: Any, depth: int = 0) -> tuple[Any, ...]:
    kind = draw(st.sampled_from(["add", "mul", "one", "fill", "copy"] + ["loop"] * (2 if depth < 2 else 0)))
    if kind == "loop":
        return ("loop", draw(st.integers(0, 3)), draw(st.lists(bodies(depth + 1), min_size=2, max_size=5)))
    return (kind, draw(targets), draw(sources), draw(sources))


@given(st.lists(bodies(), min_size=3, max_size=8), st.booleans())
@settings(max_examples=150, deadline=None)
def test_random_loops_compute_what_the_interpreter_does(drawn: list[Any], far: bool) -> None:
    names = iter(f"i{n}" for n in range(100))
    filled = {0}

    def made(steps: Sequence[Any], loops: tuple[str, ...], sure: set[int]) -> tuple[Step, ...]:
        out: list[Step] = []
        for kind, to, *others in steps:
            if kind == "loop":
                name = next(names)
                inside = made(others[0], (*loops, name), set(sure))
                if inside:
                    out.append(Loop(name, to, inside))
                continue
            a, b = (n if n in sure else 0 for n in others)
            if kind == "fill":
                out.append(fill(REFS[to], loops[-1] if loops else 3))
            elif kind == "copy":
                if to != a:
                    out.append(copy(REFS[to], REFS[a]))
                    sure.add(to)
                continue
            elif to in (a, b):
                continue  # kernels take arguments that do not overlap
            else:
                args = (REFS[a],) if kind == "one" else (REFS[a], REFS[b])
                out.append(call(["add", "mul", "one"].index(kind), REFS[to], *args))
            sure.add(to)
        return tuple(out)

    calls = made(drawn, (), filled)
    last = call(2, SLOT(1), REFS[max(n for n in filled if n != 1)])
    s = schedule([slot("x"), slot("y")], [storage() for _ in range(4)], [*calls, last], kernels=KERNELS)
    used = {a.node for c in s.flat() for a in ((c.dst, c.src) if isinstance(c, CopyCall) else c.args)}
    assert SlotRef(1) in used
    device = rig.memory_device("random") if far else rig.host()
    x = np.linspace(-1, 1, N, dtype=np.float32)
    got, want = results(s, [x], {"CPU": device}, {}), wanted(s, [x], {})
    np.testing.assert_array_equal(got, want)
