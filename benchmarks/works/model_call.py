"""A model called with a NumPy array, kernels that do nothing, against ONNX Runtime running one Slice."""

from __future__ import annotations

import tempfile
from itertools import repeat
from pathlib import Path
from time import perf_counter_ns

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

import rig
from benchmarks.build import shared
from benchmarks.measure import Result, pairs, per_call
from benchmarks.programs import kernels
from rig.model import artifact
from rig.model.signature import Signature, Tensor
from rig.program.description import (
    Data,
    Image,
    Input,
    InputSlot,
    Launch,
    Program,
    Ref,
    Submit,
    Use,
)

CALLS = 5000
WIDE, NARROW = 784, 10


def program(arch: str, image: bytes) -> Program:
    """Return a program of two kernels that do nothing, from input 0 to input 1."""
    refs = (Ref(1, 0, Use.WRITE), Ref(0, 8, Use.READ))
    parts = tuple(Launch(0, f"k{i}", Data(bytes(16)), refs) for i in range(2))
    return Program(
        devices=(arch,),
        images=(Image(0, Data(image)),),
        inputs=(Input(0, 4 * WIDE), Input(0, 4 * NARROW)),
        steps=(Submit(0, parts, (InputSlot(0), InputSlot(1))),),
    )


def slice_session() -> onnxruntime.InferenceSession:
    """Return a session of one Slice, 1x784 to 1x10, on one thread."""
    constants = [
        helper.make_tensor(name, TensorProto.INT64, [1], [value])
        for name, value in (("from", 0), ("to", NARROW), ("axis", 1))
    ]
    graph = helper.make_graph(
        [helper.make_node("Slice", ["x", "from", "to", "axis"], ["y"])],
        "slice",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, WIDE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, NARROW])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.checker.check_model(model)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


def measure() -> Result:
    """Measure ``model(x)`` against ``session.run(None, {"x": x})``; beside them a bound run of the same model."""
    host = rig.host(threads=1)
    image = shared("nothing2", kernels(2, empty=True)).read_bytes()
    signature = Signature(
        inputs=(Tensor("x", "float32", (1, WIDE), 0),),
        outputs=(Tensor("y", "float32", (1, NARROW), 1),),
        compiler="gcc",
        target=host.arch,
        name="nothing",
    )
    x = np.ones((1, WIDE), np.float32)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "nothing.rig"
        artifact.save(path, program(host.arch, image), signature, ())
        model = rig.open(path, device=host)
    session = slice_session()
    y = model(x)
    if y.shape != (1, NARROW) or y.dtype != np.float32:
        raise AssertionError(f"the model returns {y.dtype} {y.shape}")

    def ours() -> float:
        trips = repeat(None, CALLS)
        start = perf_counter_ns()
        for _ in trips:
            model(x)
        return (perf_counter_ns() - start) / CALLS

    def theirs() -> float:
        trips = repeat(None, CALLS)
        start = perf_counter_ns()
        for _ in trips:
            session.run(None, {"x": x})
        return (perf_counter_ns() - start) / CALLS

    value, reference = pairs(ours, theirs)
    bound = model.bind({"x": x}, {"y": np.zeros((1, NARROW), np.float32)})
    bound_ns = min(per_call(bound.run, CALLS)() for _ in range(5))
    return Result("model_call", "model(x)", "ns", value, reference, 1.0, 15, {"bound_run_ns": bound_ns})
