"""A fresh process to the first result of a small network from its file, without NumPy, beside an empty process."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.measure import Result, pairs

ROOT = Path(__file__).parents[2]
SIZES = (784, 128, 10)

_OURS = """
import rig, sys
model = rig.open(sys.argv[1])
with open(sys.argv[2], "rb") as file:
    x = file.read()
y = bytearray(40)
model.bind({"x": x}, {"y": y}).run()
print(memoryview(y).cast("f").tolist())
"""
_THEIRS = """
import numpy, onnxruntime, sys
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(sys.argv[1], options, providers=["CPUExecutionProvider"])
print(session.run(None, {"x": numpy.fromfile(sys.argv[2], numpy.float32).reshape(1, 784)})[0][0].tolist())
"""


def runtime_python() -> str:
    """Return the interpreter of the environment that holds the runtime alone, else this one."""
    path = ROOT / ".venv-run" / "bin" / "python"
    return str(path) if path.exists() else sys.executable


def network(folder: Path) -> tuple[Path, Path, Path]:
    """Make the network 784-128-10 as an ONNX file, as an artifact, and an input; return their paths."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    import tolk_engine

    random = np.random.default_rng(0)
    weights = {
        name: (random.standard_normal(shape) * 0.05).astype(np.float32)
        for name, shape in (("w1", SIZES[:2]), ("b1", SIZES[1:2]), ("w2", SIZES[1:]), ("b2", SIZES[2:]))
    }
    nodes = [
        helper.make_node("Gemm", ["x", "w1", "b1"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("Gemm", ["r", "w2", "b2"], ["l"]),
        helper.make_node("Softmax", ["l"], ["y"], axis=1),
    ]
    graph = helper.make_graph(
        nodes,
        "mlp",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, SIZES[0]])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, SIZES[2]])],
        [numpy_helper.from_array(w, name) for name, w in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    source, made, given = folder / "mlp.onnx", folder / "mlp.rig", folder / "x.bin"
    onnx.save(model, str(source))
    tolk_engine.compile(tolk_engine.from_onnx(source)).save(made)
    random.standard_normal(SIZES[0], np.float32).tofile(given)
    return source, made, given


def process(python: str, script: str, *arguments: Path) -> tuple[Callable[[], float], list[str]]:
    """Return a measurement, milliseconds of a whole process, and the list that receives what it printed last."""
    printed: list[str] = []
    command = [python, "-c", script, *map(str, arguments)]

    def sample() -> float:
        start = time.perf_counter_ns()
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tempfile.gettempdir())
        spent = time.perf_counter_ns() - start
        printed[:] = [done.stdout]
        return spent / 1e6

    return sample, printed


def _floats(printed: list[str]) -> np.ndarray:
    return np.array([float(word) for word in printed[0].strip(" []\n").split(",")])


def measure() -> Result:
    """Measure against ``python -c pass``; the goal bounds the extra milliseconds."""
    with tempfile.TemporaryDirectory() as name:
        _, made, given = network(Path(name))
        ours, printed = process(runtime_python(), _OURS, made, given)
        nothing, _ = process(runtime_python(), "pass")
        value, against = pairs(ours, nothing, n=21)
        if abs(_floats(printed).sum() - 1) > 1e-5:
            raise AssertionError(f"the network answers {printed}")
    return Result("cold", "a fresh process to a result", "ms", value, against, 30, 21, on_extra=True)


def measure_ort() -> Result:
    """Measure against ONNX Runtime in its own fresh process."""
    with tempfile.TemporaryDirectory() as name:
        source, made, given = network(Path(name))
        ours, printed = process(runtime_python(), _OURS, made, given)
        theirs, expected = process(sys.executable, _THEIRS, source, given)
        value, against = pairs(ours, theirs, n=15)
        if not np.allclose(_floats(printed), _floats(expected), atol=1e-5):
            raise AssertionError(f"the network answers {printed}, ONNX Runtime {expected}")
    return Result("cold_ort", "a fresh process to a result", "ms", value, against, 0.6, 15)
