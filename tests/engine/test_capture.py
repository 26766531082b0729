"""What tracing a tensor function gives, and that nothing runs and nothing is remembered."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
from collections import namedtuple
from functools import partial
from typing import Any

import numpy as np
import pytest
from tensors import Running, copies, launches, numbers, run

pytest.importorskip("tinygrad")

from tinygrad import Tensor, Variable

from rig.errors import Invalid
from tolk_engine.frontend import Spec, capture, lower
from tolk_engine.frontend.build import STORAGE_ALIGN
from tolk_engine.schedule import SlotRef, StorageRef, Var


def constant(array: np.ndarray) -> Tensor:
    return Tensor(array, device="CPU")


def close(found: np.ndarray, wanted: np.ndarray, tolerance: float = 1e-5) -> None:
    np.testing.assert_allclose(found, wanted, rtol=tolerance, atol=tolerance)


# --- inputs and outputs


def test_a_function_becomes_calls_over_slots() -> None:
    w = numbers(8, 4)
    weight = constant(w)

    def layer(x: Tensor) -> Tensor:
        return (x @ weight).relu()

    s = capture(layer, Spec((3, 8)))
    assert s.name == "layer"
    assert [(t.name, t.dtype, t.shape, t.nbytes, t.device) for t in s.slots] == [
        ("x", "float32", (3, 8), 96, "CPU"),
        ("out", "float32", (3, 4), 48, "CPU"),
    ]
    assert (s.inputs, s.outputs) == ((0,), (1,))
    assert len(s.calls) == 1, "the kernel writes the output itself"
    assert [(p.name, p.dtype, p.shape, p.align) for p in s.storages] == [("weight", "float32", (8, 4), STORAGE_ALIGN)]
    x = numbers(3, 8, seed=1)
    close(run(s, x)["out"], np.maximum(x @ w, 0))


@pytest.mark.parametrize(
    ("result", "names"),
    [
        (lambda a, b: a + b, ["out"]),
        (lambda a, b: (a + b, a * b), ["out0", "out1"]),
        (lambda a, b: [a + b], ["out0"]),
        (lambda a, b: {"sum": a + b, "product": a * b}, ["sum", "product"]),
        (lambda a, b: namedtuple("Pair", "total times")(a + b, a * b), ["total", "times"]),
    ],
)
def test_outputs_are_named_by_what_the_function_returns(result: Any, names: list[str]) -> None:
    s = capture(result, Spec((4,)), Spec((4,)))
    assert [s.slots[i].name for i in s.outputs] == names
    a, b = numbers(4), numbers(4, seed=1)
    for got, wanted in zip(run(s, a, b).values(), (a + b, a * b), strict=False):
        close(got, wanted)


def test_inputs_are_named_by_spec_parameter_or_keyword() -> None:
    def f(a: Tensor, *rest: Tensor, scale: Tensor) -> Tensor:
        return (a + rest[0] + rest[1]) * scale

    s = capture(f, Spec((2,)), Spec((2,), name="second"), Spec((2,)), scale=Spec((1,)))
    assert [s.slots[i].name for i in s.inputs] == ["a", "second", "rest1", "scale"]
    parts = [numbers(2, seed=i) for i in range(3)]
    close(run(s, *parts, np.float32([3]))["out"], sum(parts) * 3)


def test_a_tensor_stands_for_its_shape_and_type() -> None:
    s = capture(lambda x: x + 1, Tensor(np.arange(6, dtype=np.int16).reshape(2, 3), device="CPU"))
    assert (s.slots[0].dtype, s.slots[0].shape) == ("int16", (2, 3))
    assert run(s, np.zeros((2, 3), np.int16))["out"].tolist() == [[1, 1, 1], [1, 1, 1]]


def test_types_may_be_given_by_numpy() -> None:
    assert [Spec((1,), t).dtype for t in (np.float16, np.dtype("int64"), "bool")] == ["float16", "int64", "bool"]  # type: ignore[arg-type]


def test_outputs_that_nothing_computes_are_copied() -> None:
    def f(x: Tensor) -> dict[str, Tensor]:
        y = x + 1
        return {
            "input": x, "view": x[1:3], "turned": x.T, "ones": Tensor.ones(3), "range": Tensor.arange(4), "y": y,
            "again": y, "reshaped": y.reshape(16), "number": Tensor(7),
        }  # fmt: skip

    s = capture(f, Spec((4, 4)))
    outputs = [s.slots[i] for i in s.outputs]
    assert len({id(o) for o in outputs}) == len(outputs) == 9
    kept = [i for i in range(len(s.slots)) if i not in s.inputs]
    written = {c.args[w].node for c in launches(s) for w in c.writes} | {c.dst.node for c in copies(s)}
    assert written == {SlotRef(i) for i in kept}, "each output is written, and no input is"
    x = numbers(4, 4)
    got = run(s, x)
    np.testing.assert_array_equal(got["input"], x)
    np.testing.assert_array_equal(got["view"], x[1:3])
    np.testing.assert_array_equal(got["turned"], x.T)
    assert got["ones"].tolist() == [1, 1, 1] and got["range"].tolist() == [0, 1, 2, 3] and got["number"] == 7
    for name in ("y", "again"):
        close(got[name], x + 1)
    close(got["reshaped"], (x + 1).reshape(16))


def test_a_result_is_computed_once_for_the_output_and_for_what_follows() -> None:
    w = constant(numbers(8, 8))

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        hidden = x @ w
        return hidden, hidden.sum()

    s = capture(f, Spec((8, 8)))
    assert len(launches(s)) == 2 and not copies(s)


def test_a_view_of_an_input_is_an_offset() -> None:
    s = capture(lambda x: (x[8:24].contiguous(), x[8:24].contiguous() + 1), Spec((32,)))
    x = numbers(32)
    got = run(s, x)
    np.testing.assert_array_equal(got["out0"], x[8:24])
    close(got["out1"], x[8:24] + 1)
    assert any(c.src.offset == 32 and c.nbytes == 64 for c in copies(s))


def test_a_view_that_moves_nothing_is_a_copy() -> None:
    s = capture(lambda x: (x.permute(1, 0, 2), x.reshape(4, 2)[2:4]), Spec((1, 4, 2)))
    assert not launches(s)
    x = numbers(1, 4, 2)
    got = run(s, x)
    np.testing.assert_array_equal(got["out0"], x.transpose(1, 0, 2))
    np.testing.assert_array_equal(got["out1"], x.reshape(4, 2)[2:4])


def test_scalars_and_shapes_with_a_zero() -> None:
    s = capture(lambda x, none: {"scaled": x * 2, "none": none + 1}, Spec(()), Spec((0, 3)))
    got = run(s, np.float32(4), np.zeros((0, 3), np.float32))
    assert got["scaled"] == 8 and got["none"].shape == (0, 3)


@pytest.mark.parametrize(
    ("function", "specs", "message"),
    [
        (lambda x: 3, [Spec((4,))], "returned int, expected a Tensor"),
        (lambda x: (), [Spec((4,))], "returned no tensor"),
        (lambda x: {"y": x, "n": 2}, [Spec((4,))], "output 'n' is int, expected a Tensor"),
        (lambda x, y: x, [Spec((4,))], "missing a required argument: 'y'"),
        (lambda x: x, [5], "input 0 ('x') is int, expected a Spec, a Tensor or a Var"),
        (lambda x, y: x, [Spec((4,), name="y"), Spec((4,))], "two inputs are named 'y'"),
        (7, [], "expected a function, found int"),
    ],
)
def test_a_wrong_function_or_input_is_refused(function: Any, specs: list[Any], message: str) -> None:
    with pytest.raises(Invalid) as e:
        capture(function, *specs)
    assert message in str(e.value)


@pytest.mark.parametrize(
    ("shape", "dtype", "message"),
    [
        ((2, -1), "float32", "axis 1 of the shape is -1"),
        ((2,), "float12", "dtype 'float12' is not known"),
        ((2,), float, "no width"),
    ],
)
def test_a_wrong_spec_is_refused(shape: tuple[int, ...], dtype: Any, message: str) -> None:
    with pytest.raises(Invalid) as e:
        Spec(shape, dtype)
    assert message in str(e.value)


# --- constants


def test_a_shared_weight_is_one_constant() -> None:
    w = numbers(4, 4)
    weight = constant(w)
    s = capture(lambda x: ((x @ weight) @ weight) + weight, Spec((4, 4)))
    assert [p.init is not None for p in s.storages].count(True) == 1
    x = numbers(4, 4, seed=1)
    close(run(s, x)["out"], x @ w @ w + w)


def test_a_second_capture_of_the_same_tensors_is_right() -> None:
    """tinygrad takes what was only recorded for computed; a trace must leave nothing of that kind behind."""
    w = numbers(4, 4)
    weight = constant(w)
    doubled = weight * 2  # not computed before the first capture
    before = (weight.uop, doubled.uop)
    x = numbers(4, 4, seed=1)
    for _ in range(2):
        s = capture(lambda a: a @ doubled + weight, Spec((4, 4)))
        close(run(s, x)["out"], x @ (w * 2) + w)
        assert (weight.uop, doubled.uop) == before
    s = capture(lambda a: a - doubled, Spec((4, 4)))
    close(run(s, x)["out"], x - w * 2)


def test_a_table_that_the_function_makes_and_keeps_is_filled() -> None:
    class Model:
        table: Tensor | None = None

        def __call__(self, x: Tensor) -> Tensor:
            if self.table is None:
                self.table = (Tensor.arange(4).cast("float32").to("CPU") * 3).clone("CPU").contiguous().realize()
            return x + self.table

    model = Model()
    for _ in range(2):
        s = capture(model, Spec((4,)))
        assert run(s, np.zeros(4, np.float32))["out"].tolist() == [0, 3, 6, 9]


def test_what_depends_on_an_earlier_capture_is_refused() -> None:
    kept: list[Tensor] = []

    def first(x: Tensor) -> Tensor:
        kept.append((x + 1).contiguous().realize())
        return kept[0] * 2

    close(run(capture(first, Spec((4,))), np.zeros(4, np.float32))["out"], np.full(4, 2))
    with pytest.raises(Invalid, match=r"16 bytes \(float32, CPU\).*no input, no constant.*an earlier capture"):
        capture(lambda x: x + kept[0], Spec((4,)))


def test_a_read_of_empty_memory_is_refused() -> None:
    with pytest.raises(Invalid, match="no input, no constant and not written before"):
        capture(lambda x: x + Tensor.empty(4, device="CPU"), Spec((4,)))


def test_lists_and_numpy_arrays_made_inside_are_constants() -> None:
    s = capture(lambda x: x * Tensor([1.0, 2.0], device="CPU") + Tensor(np.float32([5, 6]), device="CPU"), Spec((2,)))
    assert run(s, np.float32([1, 1]))["out"].tolist() == [6, 8]


def test_changing_an_array_later_does_not_change_the_schedule() -> None:
    array = np.ones(4, np.float32)
    weight = constant(array)
    s = capture(lambda x: x + weight, Spec((4,)))
    array[:] = 100
    assert run(s, np.zeros(4, np.float32))["out"].tolist() == [1, 1, 1, 1]


def test_constants_are_named_by_where_the_function_has_them() -> None:
    class Model:
        def __init__(self) -> None:
            self.layers = [constant(numbers(4, 4, seed=i)) for i in range(2)]

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.layers[0] @ self.layers[1]

    s = capture(Model().forward, Spec((4, 4)))
    assert sorted(p.name for p in s.storages if p.init is not None) == ["layers.0", "layers.1"]
    assert {p.shape for p in s.storages if p.init is not None} == {(4, 4)}


def test_work_on_constants_alone_is_done_once() -> None:
    w = numbers(16, 16)
    weight = constant(w)
    s = capture(lambda x: x @ (weight * 2 + 1).contiguous(), Spec((4, 16)))
    assert len(s.calls) == 1
    x = numbers(4, 16, seed=1)
    close(run(s, x)["out"], x @ (w * 2 + 1))


def test_work_that_makes_constants_much_larger_stays() -> None:
    """Packed weights stay packed: what unpacks them is part of each run."""
    packed = constant(np.arange(2048, dtype=np.uint8))
    s = capture(lambda x: x + packed.reshape(2048, 1).expand(2048, 64).cast("float32").contiguous(), Spec((2048, 64)))
    assert len(launches(s)) == 2
    assert sum(p.nbytes for p in s.storages if p.init is not None) == 2048


def test_weights_that_are_drawn_before_the_capture_are_constants() -> None:
    """A random number is drawn when the tensor is made, whenever tinygrad computes it: not anew by each run."""
    weight = Tensor.rand(64, 32, device="CPU")
    s = capture(lambda x: x @ weight, Spec((4, 64)))
    assert len(s.calls) == 1
    x = numbers(4, 64)
    again = capture(lambda x: x @ weight, Spec((4, 64)))
    np.testing.assert_array_equal(run(s, x)["out"], run(again, x)["out"])
    drawn = np.frombuffer(next(p.init for p in s.storages if p.init), np.float32)
    assert 0.2 < drawn.std() < 0.4


def test_an_output_that_is_computed_from_constants_is_copied() -> None:
    weight = constant(np.float32([1, 2, 3, 4]))
    s = capture(lambda x: {"double": weight * 2, "sum": weight * 2 + x}, Spec((4,)))
    got = run(s, np.ones(4, np.float32))
    assert got["double"].tolist() == [2, 4, 6, 8] and got["sum"].tolist() == [3, 5, 7, 9]
    assert len(copies(s)) == 1 and len(launches(s)) == 1


def test_memory_that_starts_the_same_in_each_run_is_filled_by_each() -> None:
    def f(x: Tensor) -> Tensor:
        table = Tensor.zeros(4, device="CPU").contiguous().realize()
        table[1:3].assign(x)
        first = table.contiguous() + 0
        return first.realize() + table.assign(table + 1)

    running = Running(capture(f, Spec((2,))))
    for _ in range(2):
        assert running(np.float32([5, 6]))["out"].tolist() == [1, 11, 13, 1]


# --- values asked for while tracing


def test_the_value_of_a_constant_may_be_asked_for() -> None:
    weight = constant(np.float32([1, 2, 3]))

    def f(x: Tensor) -> Tensor:
        n = int((weight * 2).sum().item())
        return x * n + (weight + 1).tolist()[2]

    assert run(capture(f, Spec((2,))), np.float32([1, 2]))["out"].tolist() == [16, 28]


def test_a_value_that_depends_on_an_input_is_refused() -> None:
    with pytest.raises(Invalid, match="depends on input 'second'"):
        capture(lambda first, second: first * second.sum().item(), Spec((4,)), Spec((4,)))


def test_a_value_behind_a_realized_input_is_refused_too() -> None:
    with pytest.raises(Invalid, match="depends on input 'x'"):
        capture(lambda x: x * (x + 1).contiguous().realize().max().item(), Spec((4,)))


# --- state


def test_a_tensor_that_is_assigned_to_is_state() -> None:
    total = constant(np.float32([10, 20]))

    def add(x: Tensor) -> Tensor:
        total.assign(total + x)
        return total * 1

    s = capture(add, Spec((2,)))
    again = capture(add, Spec((2,)))
    running = Running(s)
    assert [running(np.float32([1, 2]))["out"].tolist() for _ in range(3)] == [[11, 22], [12, 24], [13, 26]]
    assert run(again, np.float32([1, 2]))["out"].tolist() == [11, 22], "each capture starts from the tensor's own value"


def test_state_that_no_output_shows_is_kept() -> None:
    count = constant(np.int32([0]))

    def f(x: Tensor) -> Tensor:
        old = count + 0
        out = x + old.contiguous()
        count.assign(count + 1)
        return out

    running = Running(capture(f, Spec((1,), "int32")))
    assert [int(running(np.int32([5]))["out"][0]) for _ in range(3)] == [5, 6, 7]


@pytest.mark.parametrize("early", [False, True])
def test_state_that_tinygrad_has_still_to_fill_starts_filled(early: bool) -> None:
    """What was to be done on a tensor before the capture is part of its first value: a run must not do it again."""
    count = Tensor.full((2,), 5, device="CPU", dtype="int32")
    fixed = Tensor.ones(2, device="CPU", dtype="int32")

    def f(x: Tensor) -> Tensor:
        if early:
            (x + count).realize()
        count.assign(count + x + fixed)
        return count * 1

    running = Running(capture(f, Spec((2,), "int32")))
    assert [running(np.int32([1, 2]))["out"].tolist() for _ in range(3)] == [[7, 8], [9, 11], [11, 14]]


@pytest.mark.parametrize("kind", ["list", "full", "empty"])
def test_a_view_of_state_is_written_in_place(kind: str) -> None:
    state = {
        "list": lambda: Tensor([0.0] * 4, device="CPU"),
        "full": lambda: Tensor.zeros(4, device="CPU"),
        "empty": lambda: Tensor.empty(4, device="CPU"),
    }[kind]()

    def f(x: Tensor) -> Tensor:
        state[1:3].assign(state[1:3] + x)
        return state + 0

    running = Running(capture(f, Spec((2,))))
    assert [running(np.float32([1, 2]))["out"].tolist() for _ in range(2)] == [[0, 1, 2, 0], [0, 2, 4, 0]]


def test_the_value_of_state_may_be_asked_for() -> None:
    state = constant(np.float32([3]))

    def f(x: Tensor) -> Tensor:
        first = state.item()
        state.assign(state + 4).realize()
        second = state.item()
        state.assign(state + 10).realize()
        return x + first + 100 * second + 10000 * state.item()

    assert run(capture(f, Spec((1,), "float64")), np.float64([0]))["out"].tolist() == [170703]


def test_a_part_of_state_is_written_in_place() -> None:
    cache = Tensor.empty(4, 2, device="CPU")
    cache_before = cache.uop

    def f(x: Tensor) -> Tensor:
        cache[1:3] = x
        return cache.sum(0)

    s = capture(f, Spec((2, 2)))
    assert cache.uop is cache_before
    running = Running(s)
    assert running(np.float32([[1, 2], [3, 4]]))["out"].tolist() == [4, 6], "memory that held nothing starts as zeros"
    assert running(np.float32([[1, 1], [1, 1]]))["out"].tolist() == [2, 2]


def test_a_constant_without_memory_cannot_be_assigned_to() -> None:
    zeros = Tensor(0.0)

    def f(x: Tensor) -> Tensor:
        zeros.assign(zeros + x)
        return zeros

    with pytest.raises(Invalid, match="in place to a constant of shape"):
        capture(f, Spec(()))


def test_an_input_that_is_assigned_to_is_not_written() -> None:
    def f(x: Tensor) -> Tensor:
        x.assign(x + 1)
        return x

    s = capture(f, Spec((4,)))
    written = {c.args[w].node for c in launches(s) for w in c.writes} | {c.dst.node for c in copies(s)}
    assert SlotRef(0) not in written
    assert run(s, np.zeros(4, np.float32))["out"].tolist() == [1, 1, 1, 1]


def test_random_numbers_differ_from_run_to_run() -> None:
    s = capture(lambda x: x + Tensor.rand(64, device="CPU"), Spec((64,)))
    running = Running(s)
    first, second = (running(np.zeros(64, np.float32))["out"] for _ in range(2))
    assert (first != second).any()
    for drawn in (first, second):
        assert ((drawn >= 0) & (drawn < 1)).all() and drawn.std() > 0.1


# --- calls


def test_partly_written_memory_counts_as_read() -> None:
    cache = Tensor.empty(8, device="CPU")

    def f(x: Tensor) -> Tensor:
        cache[2:4] = x
        return cache + 0

    s = capture(f, Spec((2,)))
    store = next(c for c in launches(s) if isinstance(c.args[c.writes[0]].node, StorageRef))
    assert store.writes[0] in store.reads
    whole = next(c for c in launches(s) if c.args[c.writes[0]].node == SlotRef(1))
    assert whole.writes[0] not in whole.reads


def test_work_that_nothing_needs_is_dropped() -> None:
    def f(x: Tensor) -> Tensor:
        (x * 100).contiguous().realize()
        return x + 1

    assert len(capture(f, Spec((4,))).calls) == 1


def test_a_bound_variable_is_a_value_of_the_call() -> None:
    def f(x: Tensor) -> Tensor:
        n = Variable("n", 1, 8).bind(3)
        return x[:n].sum()

    s = capture(f, Spec((8,)))
    assert [c.values for c in launches(s)] == [("n",)] and s.variables == (Var("n", 1, 8, 3),)
    assert run(s, np.arange(8, dtype=np.float32))["out"] == 3


def test_a_variable_that_is_bound_to_several_values_is_none_of_the_run() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        n = Variable("n", 1, 8)
        return x[: n.bind(3)].sum().realize(), x[: n.bind(5)].sum().realize()

    s = capture(f, Spec((8,)))
    assert sorted(c.values for c in launches(s)) == [(3,), (5,)] and s.variables == ()


def test_a_copy_between_devices_is_a_copy() -> None:
    s = capture(lambda x: (x.to("CPU:1") * 2).to("CPU"), Spec((4,), device="CPU"))
    assert [c.device for c in launches(s)] == ["CPU:1"]
    assert len(copies(s)) == 2
    assert run(s, np.float32([1, 2, 3, 4]))["out"].tolist() == [2, 4, 6, 8]


def test_tensors_of_two_devices_in_one_kernel_are_refused() -> None:
    with pytest.raises(Invalid, match=r"cannot be scheduled: .*same device"):
        capture(lambda x, y: x + y, Spec((4,)), Spec((4,), device="CPU:1"))


def test_sharded_tensors_are_refused() -> None:
    with pytest.raises(Invalid, match="several devices"):
        capture(lambda x: x.shard(("CPU", "CPU:1"), axis=0) + 1, Spec((4,)))


def test_values_bound_by_partial_are_no_inputs() -> None:
    def f(x: Tensor, factor: int) -> Tensor:
        return x * factor

    assert run(capture(partial(f, factor=3), Spec((1,))), np.float32([2]))["out"].tolist() == [6]


# --- nothing runs, nothing is remembered


def test_captures_nest() -> None:
    inner: list[Any] = []
    weight = constant(np.float32([2, 3]))

    def f(x: Tensor) -> Tensor:
        y = x * weight
        inner.append(capture(lambda a: a + weight, Spec((2,))))
        return y + weight

    s = capture(f, Spec((2,)))
    assert run(s, np.float32([1, 1]))["out"].tolist() == [4, 6]
    assert run(inner[0], np.float32([1, 1]))["out"].tolist() == [3, 4]


def test_a_failing_function_leaves_tinygrad_as_it_was() -> None:
    from tinygrad.engine.realize import capturing
    from tinygrad.helpers import ContextVar

    settings = {k: v.value for k, v in ContextVar._cache.items()}
    methods = [Tensor.__dict__[n] for n in ("_buffer", "assign", "__setitem__")]
    weight = constant(np.float32([1]))
    before = weight.uop

    def f(x: Tensor) -> Tensor:
        (weight + x).realize()
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        capture(f, Spec((1,)))
    assert capturing == [] and weight.uop is before
    assert [Tensor.__dict__[n] for n in ("_buffer", "assign", "__setitem__")] == methods
    assert {k: v.value for k, v in ContextVar._cache.items()} == settings


def test_threads_take_turns() -> None:
    results: dict[int, list[float]] = {}

    def work(n: int) -> None:
        weight = constant(np.full(4, n, np.float32))
        results[n] = run(capture(lambda x: x * weight, Spec((4,))), np.ones(4, np.float32))["out"].tolist()

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert results == {n: [n] * 4 for n in range(4)}


SCRIPT = """
import os
os.environ["PATH"] = "/nowhere"
from tinygrad import Device, Tensor
from tolk_engine.frontend import Spec, capture, lower

def f(x, y):
    table = Tensor([[1.0, 2.0, 3.0, 4.0]] * 4, device="CPU")
    h = (x @ table).softmax()
    return {"h": h, "top": h.max(1), "n": (y * 3 + h.sum().cast("int32")) % 7, "same": x}

s = capture(f, Spec((8, 4)), Spec((8,), "int32"))
import sys
assert "tinygrad.runtime.ops_cpu" not in sys.modules
assert set(Device._opened_devices) <= {"PYTHON", "NPY"}, Device._opened_devices
for k in s.kernels:
    print(k.key, lower(k, "x86_64,x86-64-v3").text)
print([(type(c).__name__, getattr(c, "args", None), getattr(c, "reads", None)) for c in s.calls])
"""


def test_no_device_is_opened_and_the_text_is_the_same_in_any_process() -> None:
    texts = []
    for seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(SCRIPT)], capture_output=True, text=True, check=False,
            env={"PYTHONPATH": ":".join(sys.path), "PYTHONHASHSEED": seed},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        texts.append(done.stdout)
    assert texts[0] == texts[1] and "define void @__W__" in texts[0]


def test_two_captures_give_the_same_text() -> None:
    def f(x: Tensor) -> Tensor:
        return (x @ constant(numbers(8, 8))).softmax()

    first, second = ([lower(k, "x86_64,x86-64-v3").text for k in capture(f, Spec((8, 8))).kernels] for _ in range(2))
    assert first == second
