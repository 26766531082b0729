"""The shapes of tinygrad's internals that the frontend relies on: an upgrade that changes one fails here first."""

from __future__ import annotations

import inspect
import threading
import weakref
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tinygrad")

from tinygrad import Tensor, Variable, dtypes
from tinygrad.codegen import to_program
from tinygrad.device import Buffer, Device
from tinygrad.dtype import AddrSpace
from tinygrad.engine.realize import capturing
from tinygrad.helpers import CAPTURING, Context, ContextVar
from tinygrad.tensor import all_tensors
from tinygrad.uop.ops import Ops, UOp, buffers

from rig.errors import Invalid
from tolk_engine.frontend import adapter, kernels, onnx_operators
from tolk_engine.frontend.identity import kernel_key
from tolk_engine.frontend.renderer import HostRenderer
from tolk_engine.frontend.symbolic import variable_names


class Hook:
    """The form of what tinygrad hands captured schedules to."""

    def __init__(self) -> None:
        self.taken: list[tuple[UOp, dict[str, int]]] = []

    def add_linear(self, linear: UOp, values: dict[str, int]) -> None:
        self.taken.append((linear, values))


def captured(*tensors: Tensor) -> list[UOp]:
    hook = Hook()
    with adapter.pinned():
        capturing[:] = [hook]
        Tensor.realize(*tensors)
    return [call for linear, _ in hook.taken for call in linear.src]


def placeholder(*shape: int, dtype: str = "float32") -> Tensor:
    return adapter.new_placeholder(shape, dtype, "CPU")[0]


def test_the_version_is_the_one_that_is_pinned() -> None:
    import importlib.metadata

    assert importlib.metadata.version("tinygrad") == adapter.VERSION


def test_the_settings_that_are_pinned_exist() -> None:
    assert set(adapter._SETTINGS) <= set(ContextVar._cache)
    assert CAPTURING.value == 1


def test_the_hook_takes_a_linear_of_calls_and_values() -> None:
    hook = Hook()
    with adapter.pinned():
        capturing[:] = [hook]
        (placeholder(4) + 1).realize()
    ((linear, values),) = hook.taken
    assert linear.op is Ops.LINEAR and values == {}
    (call,) = linear.src
    assert call.op is Ops.CALL and call.src[0].op is Ops.SINK
    assert [a.op for a in call.src[1:]] == [Ops.BUFFER, Ops.BUFFER]
    assert [p.arg.slot for p in call.src[0].toposort() if p.op is Ops.PARAM] == [0, 1]


def test_buffers_are_numbered_in_the_order_of_their_making() -> None:
    first, second = placeholder(4), placeholder(4)
    assert adapter.age(first.uop.base) < adapter.age(second.uop.base)
    assert buffers.get(first.uop.base) is None


def test_constants_arrive_as_copies_from_host_devices() -> None:
    call = captured(Tensor([1, 2, 3], device="CPU"))[0]
    assert call.src[0].op is Ops.COPY and kernels.kind_of(call) == "copy"
    target, source = (adapter.view_of(a) for a in kernels.arguments(call))
    assert (target.buffer.device, source.buffer.device) == ("CPU", "PYTHON")
    held = adapter.held_bytes(source.buffer)
    assert held is not None and held.readonly and held.tobytes() == np.int32([1, 2, 3]).tobytes()
    assert adapter.held_bytes(target.buffer) is None


def test_bytes_of_numpy_are_copied() -> None:
    array = np.arange(4, dtype=np.float32)
    source = adapter.view_of(kernels.arguments(captured(Tensor(array, device="CPU"))[0])[1])
    held = adapter.held_bytes(source.buffer)
    array[:] = 0
    assert held is not None and held.tobytes() == np.arange(4, dtype=np.float32).tobytes()


def test_a_view_becomes_an_offset() -> None:
    x = placeholder(32)
    view = adapter.view_of(captured(x[8:24].contiguous() + 1)[-1].src[2])
    assert (view.buffer is x.uop.base, view.offset, view.nbytes, view.dtype) == (True, 32, 64, "float32")
    both = adapter.view_of(x.uop.base[4:8].bitcast(dtypes.uint8))
    assert (both.offset, both.nbytes, both.dtype) == (16, 16, "uint8")


@pytest.mark.parametrize(
    ("function", "reads", "writes", "whole"),
    [
        (lambda x: x + 1, (1,), (0,), (0,)),
        (lambda x: x.sum(), (1,), (0,), (0,)),
        (lambda x: Tensor.ones(4, device="CPU").contiguous(), (), (0,), (0,)),
        (lambda x: x.assign(x * 2), (0,), (0,), (0,)),
        (lambda x: x[1:3].assign(x[0:2] * 2), (1,), (0,), ()),
    ],
)
def test_what_a_kernel_reads_and_writes_is_seen(function: Any, reads: Any, writes: Any, whole: Any) -> None:
    how = kernels.access(captured(function(placeholder(4)))[-1].src[0])
    assert (how.writes, how.whole) == (writes, whole)
    assert set(reads) <= set(how.reads)
    assert how.itemsizes == (4,) * len(how.itemsizes)


def test_a_compiled_kernel_has_its_parts_where_they_are_looked_for() -> None:
    ast = captured(placeholder(4, 8) @ placeholder(8, 4))[0].src[0]
    with adapter.pinned():
        program = to_program(ast, HostRenderer(adapter.make_target("x86_64,x86-64-v3")))
    assert program.op is Ops.PROGRAM
    assert [s.op for s in program.src] == [Ops.SINK, Ops.LINEAR, Ops.SOURCE, Ops.BINARY]
    info = program.arg
    assert info.globals == (0, 1, 2) and info.outs == (0,) and info.vars == ()
    assert info.launch_dims({})[0] == (1, 1, 1)
    assert info.function_name.isidentifier()
    ops, mem = kernels.estimates(program)
    assert ops >= 2 * 4 * 4 * 8 - 16 and mem == 4 * (16 + 32 + 32)
    rough = kernels.rough_estimates(ast)
    assert ops / 2 <= rough[0] <= ops * 2 and rough[1] == mem


def test_a_bound_variable_is_a_value_beside_the_buffers() -> None:
    n = Variable("n", 1, 8).bind(3)
    hook = Hook()
    with adapter.pinned():
        capturing[:] = [hook]
        placeholder(8)[:n].sum().realize()
    ((linear, values),) = hook.taken
    call = linear.src[-1]
    assert values == {"n": 3}
    assert variable_names(call.src[0]) == ("n",) and kernels.bound_values(call, values) == {"n": 3}
    assert len(kernels.arguments(call)) == 2


def test_keys_do_not_depend_on_the_buffers() -> None:
    keys = {kernel_key(captured(placeholder(4) + 1)[0].src[0]) for _ in range(2)}
    assert len(keys) == 1
    assert kernel_key(captured(placeholder(4) + 2)[0].src[0]) not in keys


def test_what_is_replaced_on_tensors_is_there() -> None:
    assert {"_buffer", "assign", "__setitem__"} <= set(Tensor.__dict__)
    assert list(inspect.signature(Tensor.assign).parameters) == ["self", "x"]
    assert list(inspect.signature(Tensor.__setitem__).parameters) == ["self", "indices", "v"]
    assert {"_device_seeds", "_device_rng_counters"} <= set(Tensor.__dict__)
    t = placeholder(1)
    assert weakref.ref(t) in all_tensors


def test_memory_can_be_held_without_a_device() -> None:
    x = placeholder(4)
    adapter.hold(x.uop.base, np.arange(4, dtype=np.float32).tobytes())
    held = adapter.held_bytes(x.uop.base)
    assert held is not None and np.frombuffer(held, np.float32).tolist() == [0, 1, 2, 3]
    assert x.uop.base.is_realized and isinstance(x.uop.base.buffer, Buffer)
    assert "CPU" not in Device._opened_devices
    adapter.release(x.uop.base)
    assert adapter.held_bytes(x.uop.base) is None and not x.uop.base.is_realized


def test_random_numbers_count_in_a_tensor_for_each_device() -> None:
    with adapter.pinned():
        adapter.rng_counters("CPU:7")
    assert Tensor._device_rng_counters["CPU:7"].shape == (2,)
    assert Tensor._device_rng_counters["CPU:7"].dtype is dtypes.uint32


def test_the_onnx_reader_has_the_parts_that_are_set() -> None:
    with adapter.pinned():
        from tinygrad.nn.onnx import OnnxPBParser, OnnxRunner

        known = set(onnx_operators.table())

    assert {"_init_from_graph", "__call__", "_select_op"} <= set(OnnxRunner.__dict__)
    assert "_parse_TypeProto" in OnnxPBParser.__dict__
    assert set(onnx_operators._APART) <= known


def test_pinned_puts_everything_back() -> None:
    hook = Hook()
    capturing.append(hook)
    try:
        with Context(BEAM=3), adapter.pinned():
            assert capturing == [] and ContextVar._cache["BEAM"].value == 0
        assert capturing == [hook]
    finally:
        capturing.remove(hook)
    assert ContextVar._cache["BEAM"].value == 0


def test_pinned_takes_turns_between_threads() -> None:
    entered = threading.Event()
    with adapter.pinned():
        thread = threading.Thread(target=_enter, args=(entered,))
        thread.start()
        assert not entered.wait(0.05)
    thread.join()
    assert entered.is_set()


def _enter(entered: threading.Event) -> None:
    with adapter.pinned():
        entered.set()


def test_a_schedule_of_another_thread_is_not_taken() -> None:
    recorder = adapter.Recorder(thread=-1)
    with pytest.raises(Invalid, match="another thread"):
        recorder.add_linear(UOp(Ops.LINEAR), {})


@pytest.mark.parametrize(
    "name",
    [
        "bool",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
    ],
)
def test_types_have_names(name: str) -> None:
    assert adapter.dtype_name(adapter.dtype_of(name)) == name
    assert adapter.itemsize(name) == (2 if name == "bfloat16" else np.dtype(name).itemsize)


def test_types_that_have_no_name_are_refused() -> None:
    with pytest.raises(Invalid, match=r"fp8e4m3 is not supported: allowed are bool"):
        adapter.dtype_name(dtypes.fp8e4m3)


def test_address_spaces_tell_memory_from_values() -> None:
    ast = captured(placeholder(4) + 1)[0].src[0]
    assert {u.addrspace for u in ast.toposort() if u.op is Ops.PARAM} == {AddrSpace.GLOBAL}


def test_tinygrad_names_a_default_device_where_it_finds_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(Device), "get_available_devices", lambda self: iter(()))
    monkeypatch.delitem(Device.__dict__, "_select_device", raising=False)
    with Context(DEV=""):
        assert Device.DEFAULT == "CPU"
    monkeypatch.delitem(Device.__dict__, "_select_device", raising=False)
