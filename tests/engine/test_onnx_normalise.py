"""Graphs in forms that tinygrad's reader does not take, or takes for something else: equal to ONNX Runtime."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tinygrad")
pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx
from graphs import FLOAT, check, model, node
from onnx import TensorProto, helper, numpy_helper
from tensors import launches, numbers, run

from rig.errors import Invalid
from tolk_engine.cli import register
from tolk_engine.frontend import from_onnx, onnx_operators

INT64 = TensorProto.INT64


def shapes_of(data: bytes, shapes: Any = None) -> dict[str, tuple[int, ...]]:
    s = from_onnx(data, shapes)
    return {s.slots[i].name: s.slots[i].shape for i in s.inputs}


# --- shapes ----------------------------------------------------------------------------------------------------------


def two_inputs() -> bytes:
    return model(
        [node("Relu", "a", "y"), node("Relu", "b", "z")], {"a": ["batch", "time", -1], "b": ["batch", 4]},
        {"y": None, "z": None}, {},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("given", "a", "b"),
    [
        ({}, (1, 1, 1), (1, 4)),
        ({"batch": 3}, (3, 1, 1), (3, 4)),
        ({"batch": (3,), "time": 5}, (3, 5, 1), (3, 4)),
        ({"b": (2, -1)}, (2, 1, 1), (2, 4)),
        ({"a": (-1, 6, 7), "batch": 2}, (2, 6, 7), (2, 4)),
        ({"a": (0, 6, 7)}, (0, 6, 7), (0, 4)),
    ],
)
def test_axes_are_given_by_input_or_by_name(given: Any, a: tuple[int, ...], b: tuple[int, ...]) -> None:
    assert shapes_of(two_inputs(), given) == {"a": a, "b": b}


def test_what_nobody_gave_is_told() -> None:
    told: list[str] = []
    from_onnx(two_inputs(), {"b": (2, 4)}, notes=told.append)
    assert told == ["input 'a' axis 1 (time), axis 2: not given, taken as 1"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bach": 3}, "did you mean 'batch'?"),
        ({"aa": (1, 2, 3)}, "shapes names 'aa': the graph's inputs are 'a', 'b', its open dimensions 'batch', 'time'"),
        ({"batch": (3, 4)}, "shapes gives (3, 4) for dimension 'batch', expected one whole number from 0"),
        ({"batch": 3, "b": (2, 4)}, "input 'b': axis 0 ('batch') is 2, but it is 3 in shapes"),
        ({"b": (2, 5)}, "input 'b': axis 1 is 5, the graph says 4"),
        ({"b": (2, True)}, "input 'b': axis 1 of the shape is True, expected a whole number from 0"),
    ],
)
def test_lengths_that_contradict_or_belong_to_nothing_are_refused(given: Any, message: str) -> None:
    with pytest.raises(Invalid) as e:
        from_onnx(two_inputs(), given)
    assert message in str(e.value)


def test_an_input_without_a_number_of_axes_needs_its_shape() -> None:
    data = model([node("Relu", "x", "y")], {"x": None}, {"y": None}, {})
    with pytest.raises(Invalid, match="input 'x': the graph does not say how many axes it has"):
        from_onnx(data)
    check(data, numbers(2, 3), shapes={"x": (2, 3)})


def test_an_axis_of_length_zero_is_no_open_axis() -> None:
    data = model([node("ReduceSum", "x", "y", keepdims=0)], {"x": [0, 3]}, {"y": []}, {})
    s = from_onnx(data)
    assert s.slots[0].shape == (0, 3) and run(s, numbers(0, 3))["y"] == 0


def test_the_command_takes_names_and_open_axes_and_tells_what_it_took_as_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from argparse import ArgumentParser

    source, out = tmp_path / "m.onnx", tmp_path / "m.rig"
    source.write_bytes(two_inputs())
    parser = ArgumentParser()
    command = register(parser)
    command(parser.parse_args([str(source), "-o", str(out), "--shape", "batch=2", "--shape", "a=-1x3x-1"]))
    assert f"{source}: input 'a' axis 2: not given, taken as 1 (see --shape)\n" in capsys.readouterr().out
    import rig

    assert [t.shape for t in rig.open(out).signature.inputs] == [(2, 3, 1), (2, 4)]


# --- constants -------------------------------------------------------------------------------------------------------


def test_shapes_that_are_computed_are_constants_before_the_trace() -> None:
    """A loop-free chain of Shape, Gather, Concat and arithmetic ends in a Reshape of a branch that it also chooses."""
    data = model(
        [
            node("Shape", "x", "s"), node("Gather", "s two", "n"), node("Div", "n two", "half"),
            node("Cast", "half", "wide", to=FLOAT), node("Ceil", "wide", "up"), node("Cast", "up", "whole", to=INT64),
            node("Unsqueeze", "whole zero", "part"), node("Concat", "minus part", "target", axis=0),
            node("Equal", "whole two", "same"),
            helper.make_node(
                "If", ["same"], ["y"],
                then_branch=helper.make_graph(
                    [node("Reshape", "x target", "r")], "t", [], [helper.make_tensor_value_info("r", FLOAT, None)]),
                else_branch=helper.make_graph(
                    [node("Missing", "x", "r")], "e", [], [helper.make_tensor_value_info("r", FLOAT, None)]),
            ),
        ],
        {"x": [3, 2, "n"]}, {"y": None},
        {"two": np.int64(2), "zero": np.int64([0]), "minus": np.int64([-1])}, checked=False,
    )  # fmt: skip
    x = numbers(3, 2, 4)
    assert np.array_equal(run(from_onnx(data, {"n": 4}), x)["y"], x.reshape(-1, 2))
    with pytest.raises(Invalid, match=r"operator 'Missing' of domain 'ai\.onnx', opset 17 is not supported"):
        from_onnx(data, {"n": 6})


def typed(name: str, kind: int, dims: list[int], **fields: Any) -> Any:
    made = onnx.TensorProto(name=name, data_type=kind, dims=dims)
    for key, value in fields.items():
        getattr(made, key).extend(value)
    return made


def test_half_floats_that_are_written_as_whole_numbers_are_their_bits() -> None:
    w = numbers(2, 3, dtype="float16")
    kept = typed("w", TensorProto.FLOAT16, [2, 3], int32_data=w.view(np.uint16).reshape(-1).tolist())
    data = model(
        [node("Cast", "w", "wide", to=FLOAT), node("Add", "x wide", "y")], {"x": [2, 3]}, {"y": [2, 3]}, {"w": kept}
    )  # fmt: skip
    check(data, numbers(2, 3))


def test_a_scalar_of_bfloat16_keeps_its_value() -> None:
    one = typed("w", TensorProto.BFLOAT16, [], int32_data=[0x3FC0])
    data = model(
        [node("Cast", "w", "wide", to=FLOAT), node("Mul", "x wide", "y")], {"x": [2]}, {"y": [2]}, {"w": one}
    )  # fmt: skip
    assert run(from_onnx(data), np.float32([2, -4]))["y"].tolist() == [3, -6]


def test_empty_constants_and_empty_results() -> None:
    data = model(
        [node("Concat", "x none", "y", axis=0), node("Reshape", "one nothing", "s"), node("Add", "y s", "z")],
        {"x": [2, 3], "one": [1]}, {"z": [2, 3]}, {"none": np.zeros((0, 3), np.float32), "nothing": np.int64([])},
    )  # fmt: skip
    check(data, numbers(2, 3), numbers(1))


def test_a_result_that_is_left_out_is_not_the_value_of_an_input_that_is() -> None:
    data = model(
        [node("Split", "x parts", "", axis=0), node("Clip", "x", "y")], {"x": [4]}, {"y": [4], "b": [2]},
        {"parts": np.int64([2, 2])}, checked=False,
    )  # fmt: skip
    made = onnx.load_from_string(data)
    made.graph.node[0].output[:] = ["", "b"]
    made.graph.node[1].input[:] = ["x", "", "top"]
    made.graph.initializer.append(numpy_helper.from_array(np.float32(0.5), "top"))
    got = run(from_onnx(made.SerializeToString()), np.float32([-3, 1, 0.25, 4]))
    assert got["b"].tolist() == [0.25, 4] and got["y"].tolist() == [-3, 0.5, 0.25, 0.5]


def test_indices_that_are_constant_may_be_a_table() -> None:
    data = model(
        [node("Gather", "x table", "y", axis=1), node("Gather", "x long", "z", axis=0)],
        {"x": [5, 4]}, {"y": None, "z": None},
        {"table": np.int64([[0, -1], [2, 3]]), "long": np.arange(40) % 5},
    )  # fmt: skip
    check(data, numbers(5, 4))
    assert len(launches(from_onnx(data))) <= 4


def test_weights_beside_the_file(tmp_path: Path) -> None:
    w, b = numbers(64, 32), numbers(32, seed=1)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "w.bin").write_bytes(b"****" + w.tobytes() + b.tobytes())
    messages = {}
    for name, array, offset in (("w", w, 4), ("b", b, 4 + w.nbytes)):
        made = onnx.TensorProto(name=name, data_type=FLOAT, dims=array.shape, data_location=TensorProto.EXTERNAL)
        for key, value in (("location", "data/w.bin"), ("offset", offset), ("length", array.nbytes)):
            made.external_data.add(key=key, value=str(value))
        messages[name] = made
    data = model([node("Gemm", "x w b", "y")], {"x": [2, 64]}, {"y": [2, 32]}, messages, checked=False)
    path = tmp_path / "m.onnx"
    path.write_bytes(data)
    x = numbers(2, 64, seed=2)
    s = from_onnx(path)
    assert {p.name for p in s.storages} == {"w", "b"}
    np.testing.assert_allclose(run(s, x)["y"], x @ w + b, rtol=1e-4, atol=1e-4)
    with pytest.raises(Invalid, match=r"weight 'w' lies in the file 'data/w.bin' beside the model: give the model's"):
        from_onnx(data)
    messages["w"].external_data[0].value = "../w.bin"
    path.write_bytes(model([node("Gemm", "x w b", "y")], {"x": [2, 64]}, {"y": [2, 32]}, messages, checked=False))
    with pytest.raises(Invalid, match=r"'\.\./w\.bin', which is not beneath the model's folder"):
        from_onnx(path)
    messages["w"].external_data[0].value = "data/w.bin"
    messages["w"].external_data[2].value = "100"
    path.write_bytes(model([node("Gemm", "x w b", "y")], {"x": [2, 64]}, {"y": [2, 32]}, messages, checked=False))
    with pytest.raises(Invalid, match=r"weight 'w': float32 of shape \(64, 32\) is 8192 bytes, the file holds 100"):
        from_onnx(path)


# --- old and odd forms -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax", "Hardmax"])
@pytest.mark.parametrize("axis", [None, 0, 1, 2, -1])
def test_a_softmax_before_opset_13_covers_all_axes_from_its_own_on(op: str, axis: int | None) -> None:
    options = {} if axis is None else {"axis": axis}
    data = model([node(op, "x", "y", **options)], {"x": [2, 3, 4]}, {"y": [2, 3, 4]}, {}, opset=11)
    check(data, numbers(2, 3, 4), tolerance=1e-4)


def test_operands_that_are_aligned_by_an_axis_before_opset_7() -> None:
    data = model(
        [node("Add", "x w", "s", axis=1, broadcast=1), node("Mul", "s v", "y", broadcast=1)], {"x": [2, 3, 4]},
        {"y": [2, 3, 4]}, {"w": numbers(3), "v": numbers(1, seed=1)}, opset=6,
    )  # fmt: skip
    x = numbers(2, 3, 4, seed=2)
    wanted = (x + numbers(3).reshape(3, 1)) * numbers(1, seed=1)
    np.testing.assert_allclose(run(from_onnx(data), x)["y"], wanted, rtol=1e-6)


@pytest.mark.parametrize("size", [3, 4])
def test_a_slope_for_each_channel(size: int) -> None:
    """ONNX Runtime takes a slope of one axis for the last; where that cannot be, it is one for each channel."""
    slope = numbers(3)
    data = model([node("PRelu", "x w", "y")], {"x": [2, 3, 5, size]}, {"y": [2, 3, 5, size]}, {"w": slope})
    x = numbers(2, 3, 5, size, seed=1)
    if size == 3:
        check(data, x)
    else:
        np.testing.assert_allclose(
            run(from_onnx(data), x)["y"], np.where(x > 0, x, x * slope.reshape(3, 1, 1)), rtol=1e-6
        )


@pytest.mark.parametrize(("op", "opset"), [("Upsample", 9), ("Resize", 10)])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_sizes_that_grow_from_the_corner(op: str, opset: int, mode: str) -> None:
    scales = np.float32([1, 1, 2, 2.5])
    data = model(
        [node(op, "x s", "y", mode=mode)], {"x": [1, 2, 3, 4]}, {"y": [1, 2, 6, 10]}, {"s": scales}, opset=opset
    )
    check(data, numbers(1, 2, 3, 4))


def test_functions_of_the_file_are_written_out() -> None:
    body = helper.make_function(
        "own", "Twice", ["a"], ["b"], [node("Add", "a a", "b")], [helper.make_opsetid("", 17)]
    )  # fmt: skip
    graph = helper.make_graph(
        [helper.make_node("Twice", ["x"], ["y"], domain="own")], "g",
        [helper.make_tensor_value_info("x", FLOAT, [3])], [helper.make_tensor_value_info("y", FLOAT, [3])],
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    check(
        helper.make_model(graph, functions=[body], opset_imports=opsets, ir_version=9).SerializeToString(), numbers(3)
    )


def test_defaults_that_the_reader_asks_for_are_filled_in() -> None:
    data = model(
        [node("GatherElements", "x i", "y")], {"x": [3, 2], "i": (INT64, [2, 2])}, {"y": [2, 2]}, {}
    )  # fmt: skip
    check(data, numbers(3, 2), np.int64([[0, 2], [-1, 1]]))


def test_quantization_rounds_values_between_two_steps_to_the_even_one() -> None:
    data = model(
        [node("QuantizeLinear", "x scale zero", "q"), node("DynamicQuantizeLinear", "x", "d s z")],
        {"x": [64]}, {"q": (TensorProto.UINT8, [64]), "d": (TensorProto.UINT8, [64])},
        {"scale": np.float32(0.1), "zero": np.uint8(100)},
    )  # fmt: skip
    check(data, (np.arange(64) - 32).astype(np.float32) * np.float32(0.05), tolerance=0)


def test_whole_number_products_with_a_zero_point_for_each_row_and_column() -> None:
    uint8, int32 = TensorProto.UINT8, TensorProto.INT32
    data = model(
        [node("MatMulInteger", "a b za zb", "y"), node("ConvInteger", "x w zx zw", "c", pads=[1, 1, 1, 1])],
        {"a": (uint8, [3, 4]), "x": (uint8, [1, 2, 4, 4])}, {"y": (int32, [3, 2]), "c": (int32, [1, 2, 4, 4])},
        {
            "b": np.uint8([[1, 200], [3, 4], [250, 6], [7, 8]]), "za": np.uint8(3), "zb": np.uint8([5, 6]),
            "w": np.arange(36, dtype=np.uint8).reshape(2, 2, 3, 3), "zx": np.uint8(9), "zw": np.uint8(4),
        },
    )  # fmt: skip
    drawn = np.random.default_rng(0)
    check(data, drawn.integers(0, 256, (3, 4), np.uint8), drawn.integers(0, 256, (1, 2, 4, 4), np.uint8), tolerance=0)


# --- operators that tinygrad's reader has not ------------------------------------------------------------------------


@pytest.mark.parametrize(("op", "direction"), [("LSTM", "bidirectional"), ("GRU", "forward"), ("RNN", "reverse")])
def test_recurrent_layers(op: str, direction: str) -> None:
    ways, gates = (2 if direction == "bidirectional" else 1), {"LSTM": 4, "GRU": 3, "RNN": 1}[op]
    weights = {
        "W": numbers(ways, gates * 4, 6), "R": numbers(ways, gates * 4, 4, seed=1),
        "B": numbers(ways, gates * 8, seed=2)
    }  # fmt: skip
    data = model(
        [helper.make_node(op, ["x", "W", "R", "B", "", "h"], ["y", "last"], hidden_size=4, direction=direction)],
        {"x": [3, 2, 6], "h": [ways, 2, 4]}, {"y": [3, ways, 2, 4], "last": [ways, 2, 4]}, weights,
    )  # fmt: skip
    check(data, numbers(3, 2, 6, seed=3), numbers(ways, 2, 4, seed=4), tolerance=1e-4)


def test_attention_with_fewer_heads_of_keys_and_values() -> None:
    """Computed by ONNX's own definition; the reader pairs the heads in another order."""
    data = model(
        [node("Attention", "q k v", "y")], {"q": [1, 6, 4, 8], "k": [1, 3, 5, 8], "v": [1, 3, 5, 8]},
        {"y": [1, 6, 4, 8]}, {}, opset=23,
    )  # fmt: skip
    q, k, v = numbers(1, 6, 4, 8), numbers(1, 3, 5, 8, seed=1), numbers(1, 3, 5, 8, seed=2)
    k2, v2 = np.repeat(k, 2, 1), np.repeat(v, 2, 1)
    scores = q @ k2.transpose(0, 1, 3, 2) / np.sqrt(8)
    e = np.exp(scores - scores.max(-1, keepdims=True))
    np.testing.assert_allclose(
        run(from_onnx(data), q, k, v)["y"], e / e.sum(-1, keepdims=True) @ v2, rtol=1e-3, atol=1e-5
    )


# --- refusals --------------------------------------------------------------------------------------------------------


def refused(data: bytes, shapes: Any = None) -> str:
    with pytest.raises(Invalid) as e:
        from_onnx(data, shapes)
    return str(e.value)


def test_an_operator_that_is_missing_is_told_by_its_node() -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Softmx", ["a"], ["b"], name="last one"),
        helper.make_node("Relu", ["b"], ["c"], domain="com.acme"), helper.make_node("Softmx", ["c"], ["y"]),
    ]  # fmt: skip
    text = refused(model(nodes, {"x": [1]}, {"y": [1]}, {}, checked=False))
    assert text == (
        "model: node 'last one' (Softmx that makes 'b'): operator 'Softmx' of domain 'ai.onnx', opset 17 is not"
        f" supported; {len(onnx_operators.names())} operators are, the nearest Softmax, LogSoftmax; nor are Relu"
    )


def test_an_operator_that_nothing_needs_may_be_missing() -> None:
    nodes = [node("Relu", "x", "y"), helper.make_node("Frobnicate", ["x"], ["z"])]
    assert run(from_onnx(model(nodes, {"x": [2]}, {"y": [2]}, {}, checked=False)), np.float32([-1, 1]))["y"][1] == 1


def test_an_operator_of_that_name_in_another_domain_is_another_operator() -> None:
    text = refused(
        model([helper.make_node("Relu", ["x"], ["y"], domain="com.acme")], {"x": [1]}, {"y": [1]}, {}, checked=False)
    )
    assert "operator 'Relu' of domain 'com.acme', opset 1 is not supported" in text


def test_an_attribute_that_is_not_supported_is_told() -> None:
    text = refused(
        model([node("LSTM", "x W R", "y", hidden_size=2, clip=3.0)], {"x": [1, 1, 2]}, {"y": None},
              {"W": numbers(1, 8, 2), "R": numbers(1, 8, 2)})
    )  # fmt: skip
    assert "node 0 (LSTM that makes 'y'): attribute 'clip' is not supported" in text
    text = refused(
        model([node("Cast", "x", "y", to=FLOAT, rounding="up")], {"x": [1]}, {"y": [1]}, {}, checked=False)
    )  # fmt: skip
    assert "operator 'Cast' of domain 'ai.onnx', opset 17 is not supported with attribute 'rounding' = 'up'" in text


@pytest.mark.parametrize(
    ("kind", "word"), [(TensorProto.STRING, "string"), (TensorProto.FLOAT8E4M3FN, "float8e4m3fn")]
)  # fmt: skip
def test_element_types_that_are_not_supported_are_told(kind: int, word: str) -> None:
    data = model([node("Identity", "x", "y")], {"x": (kind, [1])}, {"y": (kind, [1])}, {}, opset=19)
    assert refused(data).startswith(f"input 'x' is {word}: supported are tensors of float32, ")


def test_a_type_in_between_and_sequences_are_told_by_their_nodes() -> None:
    data = model(
        [node("Cast", "x", "small", to=TensorProto.FLOAT8E5M2), node("Cast", "small", "y", to=FLOAT)], {"x": [2]},
        {"y": [2]}, {}, opset=19,
    )  # fmt: skip
    assert (
        "node 0 (Cast that makes 'small'): operator 'Cast' of domain 'ai.onnx', opset 19 gives float8e5m2"
        in refused(data)
    )
    data = model(
        [node("SequenceConstruct", "x x", "s"), node("SequenceLength", "s", "y")], {"x": [2]}, {"y": (INT64, [])}, {}
    )
    assert "node 0 (SequenceConstruct that makes 's'): operator 'SequenceConstruct'" in refused(data)


def test_a_result_that_is_not_what_onnx_says_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """No operator of the table does this: one that is wrong about its shape would be found before it computes."""
    data = model([node("Abs", "x", "y")], {"x": [2]}, {"y": [2]}, {})
    assert run(from_onnx(data), np.float32([-1, 1]))["y"].tolist() == [1, 1]
    monkeypatch.setitem(onnx_operators.table(), "Abs", lambda x: x[:1])
    assert refused(data) == "node 0 (Abs that makes 'y'): its result 'y' has the shape (1,), ONNX says (2,)"


# --- without the onnx package ----------------------------------------------------------------------------------------

_WITHOUT = """
import sys
sys.modules["onnx"] = None
from tolk_engine import from_onnx
from rig.errors import Invalid
for path in sys.argv[1:]:
    try:
        print([s.shape for s in from_onnx(path, {"x": (2, 3)}).slots])
    except Invalid as e:
        print(e)
"""


def test_without_the_onnx_package_plain_graphs_work_and_others_name_it(tmp_path: Path) -> None:
    graphs = {
        "plain": model([node("MatMul", "x w", "y")], {"x": ["n", 3]}, {"y": ["n", 4]}, {"w": numbers(3, 4)}),
        "old": model([node("Softmax", "x", "y")], {"x": ["n", 3]}, {"y": ["n", 3]}, {}, opset=11),
        "missing": model([node("LSTMM", "x", "y")], {"x": ["n", 3]}, {"y": ["n", 3]}, {}, checked=False),
    }
    paths = []
    for name, data in graphs.items():
        paths.append(str(tmp_path / f"{name}.onnx"))
        Path(paths[-1]).write_bytes(data)
    done = subprocess.run([sys.executable, "-c", _WITHOUT, *paths], capture_output=True, text=True, check=True)
    advice = "the package 'onnx', which brings such graphs into order, is not installed: pip install onnx"
    assert done.stdout.splitlines() == [
        "[(2, 3), (2, 4)]",
        f"old: operator 'Softmax' of domain 'ai.onnx', opset 11 has an older meaning; {advice}",
        f"missing: operator 'LSTMM' of domain 'ai.onnx', opset 17 is not supported as it stands; {advice}",
    ]
