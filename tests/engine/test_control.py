"""Loops inside captured functions: what Python's own loop computes, in one run of one program, saved and opened."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from tinygrad import Tensor

import rig
import tolk_engine
from rig.errors import Invalid
from tolk_engine import Spec, Var, capture, fori_loop, scan, while_loop
from tolk_engine.schedule import Call, Loop, Schedule, flat

X = np.float32([1, 2, 3])
HERE = __file__


@pytest.fixture
def opened(tmp_path: Path) -> Callable[..., Any]:
    """Capture, compile, save and open on each kind of device; a model that asserts that all give the same."""

    def make(fn: Callable[..., Any], *inputs: Any) -> Any:
        tolk_engine.compile(capture(fn, *inputs), jobs=1).save(tmp_path / "m.rig")
        devices = [None, rig.memory_device("far"), rig.memory_device("apart", borrows=False, alignment=64)]
        models = [rig.open(tmp_path / "m.rig", device=device) for device in devices]

        def call(*args: Any, **named: Any) -> Any:
            first, *others = [model(*args, **named) for model in models]
            for other in others:
                np.testing.assert_equal(first, other)
            return first

        return call

    return make


def loops_of(s: Schedule) -> list[Loop]:
    return [c for c in s.calls if isinstance(c, Loop)]


# fori_loop.


@pytest.mark.case("C11")
@pytest.mark.parametrize(("lower", "upper"), [(0, 5), (2, 7), (0, 1), (3, 3), (4, 1), (-2, 2)])
def test_fori_loop(opened: Any, lower: int, upper: int) -> None:
    found = opened(lambda x: fori_loop(lower, upper, lambda i, c: c * 2 + i, x), Spec((3,)))(X)
    want = X
    for i in range(lower, upper):
        want = want * 2 + i
    assert found.tolist() == want.tolist()


def test_carried_tensors_may_be_exchanged_and_of_any_form(opened: Any) -> None:
    class Pair(NamedTuple):
        a: Any
        rest: Any

    def f(x: Tensor) -> tuple[Tensor, ...]:
        start = Pair(x, {"b": [x + 1, x * 10], "n": 0})
        last = fori_loop(
            0, 4, lambda i, c: Pair(c.rest["b"][0], {"b": [c.a + i, c.rest["b"][1] - c.a], "n": c.rest["n"] + 2}), start
        )
        assert isinstance(last, Pair)
        return last.a, *last.rest["b"], last.rest["n"]

    a, b, c, n = X, X + 1, X * 10, 0
    for i in range(4):
        a, b, c, n = b, a + i, c - a, n + 2
    found = opened(f, Spec((3,)))(X)
    assert [v.tolist() for v in found] == [a.tolist(), b.tolist(), c.tolist(), n]


def test_loops_nest(opened: Any) -> None:
    def f(x: Tensor) -> Tensor:
        return fori_loop(0, 3, lambda i, c: fori_loop(0, i_most, lambda j, d: d + i * 10 + j, c) * 2, x)

    i_most = 4
    want = X
    for i in range(3):
        for j in range(i_most):
            want = want + i * 10 + j
        want = want * 2
    assert opened(f, Spec((3,)))(X).tolist() == want.tolist()


@pytest.mark.parametrize("n", [0, 1, 5, 9])
def test_the_trip_count_may_be_a_variable(opened: Any, n: int) -> None:
    def f(x: Tensor, n: Any) -> tuple[Tensor, Tensor]:
        return fori_loop(0, n, lambda i, c: c + i, x), fori_loop(1, 2 * n + 2, lambda i, c: c + i, x)

    first, second = opened(f, Spec((3,)), Var("n", 0, 9))(X, n=n)
    assert first.tolist() == (X + sum(range(n))).tolist()
    assert second.tolist() == (X + sum(range(1, 2 * n + 2))).tolist()


def test_the_index_slices_and_a_carried_table_is_changed_in_place() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        def body(i: Any, carried: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
            total, table = carried
            row = x[i : i + 1]
            table[i : i + 1] = row * 2
            return total + row.reshape(3), table

        return fori_loop(0, 4, body, (Tensor.zeros(3, device="CPU"), Tensor.ones(6, 3, device="CPU")))

    s = capture(f, Spec((4, 3)))
    x = np.arange(12, dtype="float32").reshape(4, 3)
    total, table = run(s, x)
    assert total.tolist() == x.sum(0).tolist()
    assert table.tolist() == [*(2 * x).tolist(), [1, 1, 1], [1, 1, 1]]
    (loop,) = loops_of(s)
    sizes = [s.node(c.args[c.writes[0]].node).nbytes for c in flat(loop.calls) if isinstance(c, Call)]
    touched = [c for c in flat(loop.calls) if isinstance(c, Call) and s.node(c.args[c.writes[0]].node).nbytes == 72]
    assert len(touched) == 1 and len(sizes) <= 3  # the table is written once a trip, a row of it


def run(s: Schedule, *arrays: Any, **vars: int) -> Any:
    linked = tolk_engine.link(tolk_engine.compile(s, jobs=1), {"CPU": rig.host()})
    buffers = tolk_engine.slots(linked)
    for slot, array in zip(s.inputs, arrays, strict=True):
        if buffers[slot] is not None:
            buffers[slot].write(np.ascontiguousarray(array))
    tolk_engine.run(linked, buffers, vars=vars)
    out = []
    for i in s.outputs:
        assert buffers[i] is not None
        out.append(np.frombuffer(buffers[i].read(), s.slots[i].dtype).reshape(s.slots[i].shape))
    return out[0] if len(out) == 1 else out


@pytest.mark.case("C01")
def test_initial_values_and_kept_results_stay(opened: Any) -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = x + 1
        return y, fori_loop(0, 3, lambda i, c: c * 2, y), fori_loop(0, 0, lambda i, c: c * 2, y)

    model = opened(f, Spec((3,)))
    first = model(X)
    kept = [np.copy(v) for v in first]
    second = model(X * 3)
    assert [v.tolist() for v in first] == [v.tolist() for v in kept]
    assert [v.tolist() for v in first] == [(X + 1).tolist(), ((X + 1) * 8).tolist(), (X + 1).tolist()]
    assert second[1].tolist() == ((3 * X + 1) * 8).tolist()


def test_what_every_trip_does_alike_is_done_once() -> None:
    weights = Tensor(np.eye(3, dtype="float32") * 2).to("CPU")

    def f(x: Tensor) -> Tensor:
        return fori_loop(0, 5, lambda i, c: c + (x @ weights).contiguous().relu().contiguous(), x)

    s = capture(f, Spec((3,)))
    (loop,) = loops_of(s)
    assert len(loop.calls) == 1
    assert run(s, X).tolist() == (X + 5 * 2 * X).tolist()


def test_a_tensor_from_outside_means_the_same_inside_and_after(opened: Any) -> None:
    """It is computed in the loop where it is needed; nothing of that is left for what comes after no trip."""

    def f(x: Tensor, n: Any) -> tuple[Tensor, Tensor]:
        late = (x * 3).exp()
        return fori_loop(0, n, lambda i, c: c + late, x), late + 1

    for n in (0, 2):
        first, second = opened(f, Spec((3,)), Var("n", 0, 3))(X, n=n)
        np.testing.assert_allclose(first, X + n * np.exp(3 * X), rtol=1e-5)
        np.testing.assert_allclose(second, np.exp(3 * X) + 1, rtol=1e-5)


def test_random_numbers_differ_from_trip_to_trip(opened: Any) -> None:
    def f(x: Tensor) -> Tensor:
        return scan(lambda c, _: (c, Tensor.rand(4, device="CPU")), x, None, length=5)[1]

    rows = opened(f, Spec((3,)))(X)
    assert len({tuple(row) for row in rows.tolist()}) == 5


@pytest.mark.parametrize(
    "body",
    [
        lambda i, c: c.flip(0) + 1,
        lambda i, c: c.transpose(0, 1) * 2,
        lambda i, c: c[1:].cat(c[:1]),
        lambda i, c: c @ c / 10,
        lambda i, c: c.sum(0, keepdim=True).expand(4, 4) - c,
        lambda i, c: c.cumsum(1) / 4,
        lambda i, c: c + c.transpose(0, 1).flip(1),
        lambda i, c: (c.roll(1, 0) > c).where(c, c.roll(1, 1)),
    ],
)
def test_what_is_carried_is_whole_before_it_is_overwritten(opened: Any, body: Any) -> None:
    x = np.random.default_rng(0).standard_normal((4, 4)).astype("float32")
    found = opened(lambda x: fori_loop(0, 3, body, x), Spec((4, 4)))(x)
    apart = opened(lambda x: body(2, body(1, body(0, x).contiguous()).contiguous()), Spec((4, 4)))(x)
    np.testing.assert_allclose(found, apart, rtol=1e-5, atol=1e-6)


# while_loop.


@pytest.mark.parametrize("start", [1.0, 40.0, 500.0])
def test_while_loop(opened: Any, start: float) -> None:
    found = opened(lambda x: while_loop(lambda c: c.sum() < 100, lambda c: c * 2 + 1, x), Spec((3,)))(X * start)
    want = X * np.float32(start)
    while want.sum() < 100:
        want = want * 2 + 1
    assert found.tolist() == want.tolist()


def test_while_loop_counts_and_stops_early(opened: Any) -> None:
    """Newton's root of each element until all are near, with a limit."""

    def f(a: Tensor) -> tuple[Tensor, Tensor]:
        def near(c: tuple[Tensor, Tensor]) -> Tensor:
            return (((c[0] * c[0] - a).abs().max() > 1e-3).int() + (c[1] < 50).int()) == 2

        count = Tensor(0, dtype="int32", device="CPU")
        return while_loop(near, lambda c: ((c[0] + a / c[0]) / 2, c[1] + 1), (a, count))

    root, steps = opened(f, Spec((3,)))(X * 100)
    np.testing.assert_allclose(root, np.sqrt(X * 100), rtol=1e-4)
    assert 5 < int(steps) < 15


@pytest.mark.parametrize("n", [0, 3, 9])
def test_a_counted_loop_ends_early(opened: Any, n: int) -> None:
    def f(x: Tensor, n: Any) -> Tensor:
        return fori_loop(0, n, lambda i, c: c * 2 + i, x, cond=lambda c: c.max() < 50)

    found = opened(f, Spec((3,)), Var("n", 0, 9))(X, n=n)
    want = X
    for i in range(n):
        if want.max() >= 50:
            break
        want = want * 2 + i
    assert found.tolist() == want.tolist()


# scan.


def test_scan_carries_and_stacks(opened: Any) -> None:
    x = np.arange(12, dtype="float32").reshape(4, 3)

    def f(x: Tensor) -> Any:
        total, (products, flags) = scan(lambda c, v: (c + v, ((c * v).sum(), v > 4)), Tensor.zeros(3, device="CPU"), x)
        return total, products, flags

    total, products, flags = opened(f, Spec((4, 3)))(x)
    carried = np.vstack([np.zeros(3), np.cumsum(x, 0)[:-1]])
    assert total.tolist() == x.sum(0).tolist()
    assert products.tolist() == (carried * x).sum(1).tolist()
    assert flags.dtype == np.bool_ and flags.tolist() == (x > 4).tolist()


def test_scan_over_several_and_over_none(opened: Any) -> None:
    a, b = np.arange(4, dtype="float32"), np.arange(8, dtype="int32").reshape(4, 2)

    def f(a: Tensor, b: Tensor) -> Any:
        both = scan(lambda c, v: (c + v["a"], v["b"] * 2), Tensor(0.0, device="CPU"), {"a": a, "b": b})
        ones = scan(lambda c, _: (c * 2, None), Tensor(1.0, device="CPU"), None, length=5)
        assert ones[1] is None
        return *both, ones[0]

    total, doubled, power = opened(f, Spec((4,)), Spec((4, 2), "int32"))(a, b)
    assert float(total) == 6 and doubled.tolist() == (2 * b).tolist() and float(power) == 32


@pytest.mark.case("C11")
def test_scan_over_nothing(opened: Any) -> None:
    total, rows = opened(lambda x: scan(lambda c, v: (c + v, v * 2), Tensor.ones(3, device="CPU"), x), Spec((0, 3)))(
        np.empty((0, 3), "float32")
    )
    assert total.tolist() == [1, 1, 1] and rows.shape == (0, 3)


def test_a_row_dropped_and_appended_in_each_trip(opened: Any) -> None:
    """The case's own program, with the feeding back inside: the whole history shifts, so nothing may be in place."""

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        def step(history: Tensor, frame: Tensor) -> tuple[Tensor, Tensor]:
            new = history[1:].cat(frame.reshape(1, 4))
            return new, new[0]

        return scan(step, Tensor.zeros(5, 4, device="CPU"), x)

    x = np.arange(80, dtype="float32").reshape(20, 4)
    last, firsts = opened(f, Spec((20, 4)))(x)
    history, want = np.zeros((5, 4), "float32"), []
    for frame in x:
        history = np.vstack([history[1:], frame])
        want.append(history[0])
    assert last.tolist() == history.tolist() and firsts.tolist() == np.array(want).tolist()


def test_a_loop_that_nothing_needs_is_dropped() -> None:
    def f(x: Tensor) -> Tensor:
        while_loop(lambda c: c.sum() < 100, lambda c: c * 2, x)
        fori_loop(0, 3, lambda i, c: c * 2, x, cond=lambda c: c.sum() < 9)
        return x + 1

    assert [type(c) for c in capture(f, Spec((3,))).calls] == [Call]


# Errors.


def grows(i: Any, c: Tensor) -> Tensor:
    return c.cat(c)


def turns_whole(i: Any, c: Tensor) -> Tensor:
    return c.int()


def reads(i: Any, c: Tensor) -> Tensor:
    y = c + 1
    return y * y.sum().item()


OUTSIDE = Tensor(np.zeros(3, "float32")).to("CPU")


def assigns(i: Any, c: Tensor) -> Tensor:
    OUTSIDE.assign(OUTSIDE + c)
    return c


def line(function: Any, plus: int = 0) -> int:
    return int(function.__code__.co_firstlineno) + plus


@pytest.mark.parametrize(
    ("body", "at", "message"),
    [
        (grows, 0, "init starts as dtypes.float of shape (3,), but the body makes it dtypes.float of shape (6,)"),
        (turns_whole, 0, "init starts as dtypes.float of shape (3,), but the body makes it dtypes.int of shape (3,)"),
        (reads, 2, "the loop's body asks for a tensor's value (item, tolist)"),
        (assigns, 1, "the loop's body assigns to a tensor of shape (3,) that was made outside of it: carry it"),
        (lambda i, c: (c, c), 0, "the body returns 2 tensors, but it carries 1"),
        (lambda i, c: "text", 0, "the result is str, expected a tensor or tuples, lists and dicts of them"),
    ],
)
def test_what_is_wrong_in_a_body_is_said_with_its_line(body: Any, at: int, message: str) -> None:
    with pytest.raises(Invalid) as e:
        capture(lambda x: fori_loop(0, 3, body, x), Spec((3,)))
    assert message in str(e.value)
    if "expected a tensor or tuples" not in message:
        assert str(e.value).startswith(f"{HERE}:{line(body, at)}: ")


def test_an_outer_value_assigned_inside_is_refused_where_it_has_no_memory_too() -> None:
    def f(x: Tensor) -> Tensor:
        y = x * 2

        def body(i: Any, c: Tensor) -> Tensor:
            y[0:1] = c[0:1]
            return c + y

        return fori_loop(0, 3, body, x)

    with pytest.raises(Invalid, match="that was made outside of it"):
        capture(f, Spec((3,)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: fori_loop(0, 3, lambda i, c: c, Tensor.zeros(3, device="CPU")), "works inside a function that is"),
        (lambda: capture(lambda x: while_loop(lambda c: c, lambda c: c, x), Spec((3,))), "cond returned dtypes.float"),
        (lambda: capture(lambda x: scan(lambda c, v: c, x, x), Spec((3,))), "scan's function returns what is carried"),
        (lambda: capture(lambda x, y: scan(lambda c, v: (c, None), x, (x, y)), Spec((3,)), Spec((4,))),
         "scan goes through first axes of lengths [3, 4], expected one length"),
        (lambda: capture(lambda x: fori_loop(0, 3, lambda i, c: c, x), Spec((Var("n", 1, 4),))), "has a fixed shape"),
    ],
)  # fmt: skip
def test_other_mistakes_are_named(make: Any, message: str) -> None:
    with pytest.raises(Invalid) as e:
        make()
    assert message in str(e.value)


def test_nothing_is_remembered_after_an_error() -> None:
    with pytest.raises(Invalid):
        capture(lambda x: fori_loop(0, 3, reads, x), Spec((3,)))
    s = capture(lambda x: fori_loop(0, 3, lambda i, c: c + OUTSIDE + 1, x), Spec((3,)))
    assert run(s, X).tolist() == (X + 3).tolist()
