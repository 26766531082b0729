"""ONNX graphs made by hand, and their comparison with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as runtime
from onnx import TensorProto, helper, numpy_helper
from tensors import run

from tolk_engine.frontend import from_onnx

FLOAT = TensorProto.FLOAT


def model(
    nodes: Sequence[Any], inputs: dict[str, Any], outputs: dict[str, Any], weights: dict[str, Any], *, opset: int = 17,
    checked: bool = True,
) -> bytes:  # fmt: skip
    """Return the bytes of a graph; inputs and outputs are float32 shapes, or (type, shape), weights arrays."""

    def info(name: str, given: Any) -> Any:
        kind, shape = given if isinstance(given, tuple) else (FLOAT, given)
        return helper.make_tensor_value_info(name, kind, shape)

    graph = helper.make_graph(
        list(nodes), "graph", [info(n, s) for n, s in inputs.items()], [info(n, s) for n, s in outputs.items()],
        [numpy_helper.from_array(w, n) if isinstance(w, np.ndarray | np.generic) else w for n, w in weights.items()],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9)
    if checked and None not in (*inputs.values(), *outputs.values()):  # it asks for a shape of everything
        onnx.checker.check_model(made)
    return bytes(made.SerializeToString())


def check(data: bytes, *arrays: np.ndarray, shapes: Any = None, tolerance: float = 1e-5) -> dict[str, np.ndarray]:
    """Compare every output with ONNX Runtime's, to `tolerance` of the largest value; returns ours."""
    s = from_onnx(data, shapes)
    session = runtime.InferenceSession(data, providers=["CPUExecutionProvider"])
    feeds = {s.slots[i].name: a for i, a in zip(s.inputs, arrays, strict=True)}
    names = [o.name for o in session.get_outputs()]
    wanted = dict(zip(names, session.run(names, feeds), strict=True))
    got = run(s, *arrays)
    assert list(got) == names
    for name, value in wanted.items():
        assert got[name].dtype == value.dtype and got[name].shape == value.shape
        assert np.abs(got[name] - value).max() <= tolerance * np.abs(value).max(), name
    return got


def node(op: str, inputs: str, output: str, **attributes: Any) -> Any:
    return helper.make_node(op, inputs.split(), output.split(), **attributes)
