"""ONNX graphs as schedules: equal to ONNX Runtime, with the graph's names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensors import launches, numbers, run

pytest.importorskip("tinygrad")
pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
import onnxruntime as runtime
from graphs import FLOAT, check, model, node
from onnx import TensorProto, helper, numpy_helper

from rig.errors import Invalid
from tolk_engine.frontend import from_onnx


def test_a_graph_keeps_its_names_and_weights() -> None:
    w, b = numbers(8, 4), numbers(4, seed=1)
    data = model(
        [node("MatMul", "x weight", "h"), node("Add", "h bias", "s"), node("Relu", "s", "y")],
        {"x": [3, 8]}, {"y": [3, 4]}, {"weight": w, "bias": b},
    )  # fmt: skip
    s = from_onnx(data, name="net")
    assert s.name == "net"
    assert [(t.name, t.dtype, t.shape) for t in s.slots] == [("x", "float32", (3, 8)), ("y", "float32", (3, 4))]
    assert {(p.name, p.shape) for p in s.storages} == {("weight", (8, 4)), ("bias", (4,))}
    assert len(s.calls) == 1
    kept = {p.name: bytes(p.init) for p in s.storages if p.init is not None}
    assert kept == {"weight": w.tobytes(), "bias": b.tobytes()}
    check(data, numbers(3, 8, seed=2))


def test_weights_share_the_file_s_memory() -> None:
    """The weights' bytes are held once however often a model is captured: no copy for each constant."""
    data = model([node("MatMul", "x w", "y")], {"x": [1, 64]}, {"y": [1, 64]}, {"w": numbers(64, 64)})
    (storage,) = (p for p in from_onnx(data).storages if p.init is not None)
    assert isinstance(storage.init, memoryview) and storage.init.readonly


def test_a_file_is_named_by_its_stem(tmp_path: Path) -> None:
    path = tmp_path / "small.onnx"
    path.write_bytes(model([node("Relu", "x", "y")], {"x": [4]}, {"y": [4]}, {}))
    s = from_onnx(path)
    assert s.name == "small"
    assert run(s, np.float32([-1, 2, -3, 4]))["y"].tolist() == [0, 2, 0, 4]


def test_values_that_the_graph_computes_from_constants() -> None:
    """Shapes, axes and scalars are asked for while the graph is traced."""
    data = model(
        [
            node("Shape", "x", "shape"), node("Gather", "shape one", "columns"), node("Unsqueeze", "columns zero", "c"),
            node("Concat", "minus c", "target", axis=0), node("Reshape", "x target", "flat"),
            node("Mul", "flat scale", "scaled"), node("ReduceSum", "scaled axes", "y", keepdims=0),
        ],
        {"x": [2, 3, 4]}, {"y": [8]},
        {
            "one": np.int64(1), "zero": np.int64([0]), "minus": np.int64([-1]), "scale": np.float32(2.5),
            "axes": np.int64([1]),
        },
    )  # fmt: skip
    check(data, numbers(2, 3, 4))


def test_convolutions_and_pools() -> None:
    weights = {"w1": numbers(8, 3, 3, 3), "b1": numbers(8, seed=1), "w2": numbers(4, 8, 3, 3, seed=2)}
    data = model(
        [
            node("Conv", "x w1 b1", "a", pads=[1, 1, 1, 1]), node("Relu", "a", "b"),
            node("MaxPool", "b", "c", kernel_shape=[2, 2], strides=[2, 2]), node("Conv", "c w2", "d"),
            node("GlobalMaxPool", "d", "m"), node("GlobalAveragePool", "d", "y"),
        ],
        {"x": [1, 3, 16, 16]}, {"m": [1, 4, 1, 1], "y": [1, 4, 1, 1]}, weights,
    )  # fmt: skip
    check(data, numbers(1, 3, 16, 16, seed=3))


def test_a_pool_does_not_hide_the_loops_of_the_convolution_before_it() -> None:
    data = model(
        [node("Conv", "x w", "a"), node("GlobalMaxPool", "a", "y")],
        {"x": [1, 8, 64]}, {"y": [1, 32, 1]}, {"w": numbers(32, 8, 5)},
    )  # fmt: skip
    assert len(launches(from_onnx(data))) == 2


def test_open_dimensions_are_given_or_one() -> None:
    data = model(
        [node("Add", "a b", "y")], {"a": ["batch", 4], "b": ["batch", 4]}, {"y": ["batch", 4]}, {}
    )  # fmt: skip
    assert [t.shape for t in from_onnx(data).slots] == [(1, 4)] * 3
    assert [t.shape for t in from_onnx(data, {"b": (5, 4)}).slots] == [(5, 4)] * 3, "a name means one length"
    check(data, numbers(3, 4), numbers(3, 4, seed=1), shapes={"a": (3, 4)})


def test_a_dimension_of_minus_one_is_open() -> None:
    data = model([node("Relu", "x", "y")], {"x": [-1, 4]}, {"y": [-1, 4]}, {})
    assert from_onnx(data).slots[0].shape == (1, 4)
    assert from_onnx(data, {"x": (2, 4)}).slots[0].shape == (2, 4)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"z": (1, 4)}, "shapes names 'z': the graph's inputs are 'a', 'b'"),
        ({"a": (1, 5)}, "input 'a': axis 1 is 5, the graph says 4"),
        ({"a": (4,)}, "input 'a': shape (4,) has 1 axes, the graph has 2"),
        ({"a": (-2, 4)}, "input 'a': axis 0 of the shape is -2"),
        ({"a": (2, 4), "b": (3, 4)}, "input 'b': axis 0 ('batch') is 3, but it is 2 in input 'a'"),
    ],
)
def test_shapes_that_contradict_the_graph_are_refused(shapes: Any, message: str) -> None:
    data = model([node("Add", "a b", "y")], {"a": ["batch", 4], "b": ["batch", 4]}, {"y": ["batch", 4]}, {})
    with pytest.raises(Invalid) as e:
        from_onnx(data, shapes)
    assert message in str(e.value)


@pytest.mark.parametrize("data", [b"", b"no model", b"\x08\x09" + b"\xff" * 40])
def test_bytes_that_are_no_model_are_refused(data: bytes) -> None:
    with pytest.raises(Invalid, match="ONNX model"):
        from_onnx(data)


def test_a_file_that_is_cut_is_refused(tmp_path: Path) -> None:
    data = model([node("MatMul", "x w", "y")], {"x": [1, 64]}, {"y": [1, 64]}, {"w": numbers(64, 64)})
    path = tmp_path / "cut.onnx"
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(Invalid, match=r"^cut: these bytes cannot be read as an ONNX model"):
        from_onnx(path)


def test_a_graph_of_wrong_shapes_is_refused_by_its_node() -> None:
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], name="last")], "g",
        [helper.make_tensor_value_info("x", FLOAT, ["n", 4])], [helper.make_tensor_value_info("y", FLOAT, ["n", 3])],
        [numpy_helper.from_array(numbers(5, 3), "w")],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    with pytest.raises(Invalid) as e:
        from_onnx(made.SerializeToString())
    text = str(e.value)
    assert text.startswith("the graph cannot be traced: node 'last' (MatMul that makes 'y') of float32[1, 4], float32[")
    assert text.endswith("(not given, so taken as 1: input 'x' axis 0 (n))")


def test_shapes_that_depend_on_an_input_are_refused_by_its_name() -> None:
    data = model(
        [node("Reshape", "x target", "y")],
        {"x": [4], "target": (TensorProto.INT64, [2])}, {"y": [2, 2]}, {},
    )  # fmt: skip
    with pytest.raises(Invalid, match="depends on input 'target'"):
        from_onnx(data)


def test_an_input_may_be_an_output_and_a_weight_may_too() -> None:
    data = model(
        [node("Identity", "x", "same"), node("Identity", "w", "fixed"), node("Neg", "x", "y")],
        {"x": [4]}, {"same": [4], "fixed": [2], "y": [4]}, {"w": np.float32([7, 8])},
    )  # fmt: skip
    got = check(data, numbers(4))
    assert got["fixed"].tolist() == [7, 8]


def test_types_of_the_graph_are_kept() -> None:
    data = model(
        [node("Cast", "x", "f", to=FLOAT), node("Mul", "f w", "s"), node("Cast", "s", "y", to=TensorProto.INT32)],
        {"x": (TensorProto.UINT8, [4])}, {"y": (TensorProto.INT32, [4])}, {"w": np.float32([1, 2, 3, 4])},
    )  # fmt: skip
    assert check(data, np.uint8([1, 2, 250, 4]))["y"].tolist() == [1, 4, 750, 16]


def test_half_precision_weights() -> None:
    w = numbers(8, 4, dtype="float16")
    data = model(
        [node("Cast", "w", "wide", to=FLOAT), node("MatMul", "x wide", "y")], {"x": [3, 8]}, {"y": [3, 4]}, {"w": w}
    )  # fmt: skip
    check(data, numbers(3, 8))
    s = from_onnx(data)
    assert len(s.calls) == 1, "the conversion is part of the product or is done once"


def test_a_large_unpacking_of_weights_is_not_stored() -> None:
    """Constants must not grow: what is computed from few bytes stays a call."""
    data = model(
        [node("Expand", "w shape", "wide"), node("CumSum", "wide axis", "table"), node("MatMul", "x table", "y")],
        {"x": [1, 64]}, {"y": [1, 256]},
        {"w": np.float32([[2.0]]), "shape": np.int64([64, 256]), "axis": np.int64(0)},
    )  # fmt: skip
    s = from_onnx(data)
    assert sum(p.nbytes for p in s.storages if p.init is not None) < 64 * 256 * 4
    check(data, numbers(1, 64))


def test_no_device_is_opened() -> None:
    from tinygrad import Device

    before = set(Device._opened_devices)  # tinygrad itself opens its default device for tensors without one
    from_onnx(model([node("Relu", "x", "y")], {"x": [4]}, {"y": [4]}, {}))
    assert set(Device._opened_devices) - before <= {"PYTHON", "NPY"}


@pytest.fixture(scope="module")
def magika_path() -> Path:
    magika = pytest.importorskip("magika")
    (path,) = (Path(magika.__file__).parent / "models").glob("*/model.onnx")
    return path


def test_a_real_model_is_equal_to_onnx_runtime(magika_path: Path) -> None:
    s = from_onnx(magika_path)
    assert [(t.name, t.dtype, t.shape) for t in s.slots] == [
        ("bytes", "int32", (1, 2048)),
        ("target_label", "float32", (1, 214)),
    ]
    graph = onnx.load(magika_path).graph
    names = {w.name for w in graph.initializer}
    assert {p.name for p in s.storages if p.init is not None} <= names
    text = np.full((1, 2048), 256, np.int32)
    text[0, :1024] = list((Path(__file__).read_bytes() * 8)[:1024])
    text[0, 1024:] = list((Path(__file__).read_bytes() * 8)[-1024:])
    drawn = np.random.default_rng(0).integers(0, 257, (1, 2048)).astype(np.int32)
    session = runtime.InferenceSession(str(magika_path), providers=["CPUExecutionProvider"])
    for x in (text, drawn):
        (wanted,) = session.run(["target_label"], {"bytes": x})
        got = run(s, x)["target_label"]
        assert np.abs(got - wanted).max() <= 1e-5 * np.abs(wanted).max()
        assert got.argmax() == wanted.argmax()


def test_a_second_capture_of_a_real_model_is_the_same(magika_path: Path) -> None:
    first, second = from_onnx(magika_path), from_onnx(magika_path)
    assert first.kernels == second.kernels and first.calls == second.calls
    assert [p.name for p in first.storages] == [p.name for p in second.storages]
    assert [bytes(p.init) for p in first.storages if p.init] == [bytes(p.init) for p in second.storages if p.init]
