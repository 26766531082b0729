"""ONNX graphs as schedules, through tinygrad's own reader of them.

A graph is brought into normal form first, which needs the `onnx` package; without it, a graph that the reader is right
about as it stands is taken. The reader runs parts of the graph while it reads (shapes, axes, scalar weights); those
values come from our own evaluation, so no device is opened for them.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinygrad import Tensor

from rig.errors import Invalid
from tolk_engine.frontend import adapter, onnx_operators
from tolk_engine.frontend.capture import read_only, trace
from tolk_engine.frontend.onnx_shapes import Decision, Declared, decide
from tolk_engine.frontend.spec import Spec

if TYPE_CHECKING:
    from tolk_engine.frontend.onnx_normalise import Normal
    from tolk_engine.frontend.onnx_shapes import Given
    from tolk_engine.schedule import Schedule

__all__ = ["from_onnx"]


def from_onnx(
    source: str | os.PathLike[str] | bytes,
    shapes: Mapping[str, int | Sequence[int]] | None = None,
    *,
    name: str | None = None,
    device: str = "CPU",
    notes: Callable[[str], None] | None = None,
) -> Schedule:
    """Return the schedule of an ONNX model, given as a file's path or as its bytes.

    Inputs and outputs keep the names of the graph, weights those of their initializers. `shapes` holds shapes in
    elements by input, with -1 for an axis that is left as the graph has it, and lengths by the name of an open
    dimension. An axis that nobody decides is 1: the slots show it, and `notes` is told, a line for each such input.

    Raises `Invalid` for bytes that are no model, a shape that contradicts the graph, a node that is not supported, by
    its name, operator, domain and operator set, and a graph whose shapes depend on its inputs' values.
    """
    data, label, folder = _read(source)
    graph: _Graph = read_only(lambda: _prepare(data, label, folder, shapes or {}))
    for line in graph.decision.guessed if notes else ():
        notes(f"{line}: not given, taken as 1")  # type: ignore[misc]
    specs = [Spec(shape, dtype, label, device) for label, (dtype, shape) in graph.inputs.items()]
    weights = {name: value for name, value in graph.runner.graph_values.items() if name and isinstance(value, Tensor)}

    def call(placeholders: Sequence[Any]) -> dict[str, Any]:
        return graph.run({str(s.name): p for s, p in zip(specs, placeholders, strict=True)})

    return trace(name or label, specs, call, owners=[("", weights)])


def _read(source: str | os.PathLike[str] | bytes) -> tuple[bytes, str, Path | None]:
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source), "model", None
    path = Path(os.fspath(source))
    return path.read_bytes(), path.stem, path.parent


@dataclass
class _Graph:
    """A graph that the reader has read: its inputs' dtypes and shapes, and what is known of its values by name."""

    runner: Any
    inputs: dict[str, tuple[str, tuple[int, ...]]]
    decision: Decision
    types: Mapping[str, tuple[str, tuple[int, ...] | None]] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Trace the graph on placeholders, node by node, so that what goes wrong has a place."""
        runner = self.runner
        nodes, outputs, values = runner.graph_nodes, runner.graph_outputs, dict(runner.graph_values)
        runner.graph_values.update(inputs)
        runner.graph_inputs, runner.graph_outputs = {}, ()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for node in nodes:
                    self._step(node)
            found = {name: runner.graph_values[name] for name in outputs}
        finally:
            runner.graph_nodes, runner.graph_outputs, runner.graph_values = nodes, outputs, values
        for name, value in found.items():
            if not isinstance(value, Tensor):
                raise Invalid(f"output {name!r} is {type(value).__name__}, expected a tensor")
        return found

    def _step(self, node: Any) -> None:
        runner = self.runner
        runner.graph_nodes = (node,)
        where = self.labels.get(node.outputs[0], f"node {node.op} that makes {node.outputs[0]!r}")
        try:
            runner({})
            for name in node.outputs:
                runner.graph_values[name] = self._checked(name, runner.graph_values[name])
        except Invalid as e:
            raise Invalid(f"{where}: {e}") from e
        except NotImplementedError as e:
            raise Invalid(f"the graph uses what is not supported: {where}: {e}") from e
        except Exception as e:
            given = ", ".join(_described(runner.graph_values.get(n)) for n in node.inputs if n)
            text = f"the graph cannot be traced: {where} of {given}: {type(e).__name__}: {e}"
            raise Invalid(f"{text}{self.decision.hint()}") from e

    def _checked(self, name: str, value: Any) -> Any:
        """Hold a result against what ONNX says that it is; one of another element type is converted."""
        dtype, shape = self.types.get(name, ("", None))
        if not isinstance(value, Tensor):
            return value
        if shape is not None and tuple(value.shape) != shape:
            raise Invalid(f"its result {name!r} has the shape {tuple(value.shape)}, ONNX says {shape}")
        if dtype and adapter.dtype_of(dtype) != value.dtype:
            return value.cast(adapter.dtype_of(dtype))
        return value


def _described(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{adapter.dtype_name(value.dtype)}{list(value.shape)}"
    return "nothing" if value is None else type(value).__name__


def _prepare(data: bytes, label: str, folder: Path | None, shapes: Given) -> _Graph:
    """Read a model; settings are pinned."""
    try:
        from tolk_engine.frontend.onnx_normalise import normalise
    except ModuleNotFoundError as e:
        if e.name not in ("onnx", "numpy"):
            raise
        return _as_it_stands(data, label, shapes, e.name)
    return _of_normal(normalise(data, label, folder, shapes), label)


def _of_normal(normal: Normal, label: str) -> _Graph:
    runner = _parse(normal.data, label)
    for name, weight in normal.weights.items():
        runner.graph_values[name] = adapter.constant(weight.data, weight.dtype, weight.shape)
        runner.graph_inputs.pop(name, None)
    return _Graph(runner, normal.inputs, normal.decision, normal.types, normal.labels)


def _parse(data: bytes, label: str) -> Any:
    if not data:
        raise Invalid(f"{label}: an ONNX model was expected, found no bytes")
    try:
        runner = adapter.onnx_runner(data)
    except Invalid:
        raise
    except Exception as e:
        raise Invalid(f"{label}: these bytes cannot be read as an ONNX model: {type(e).__name__}: {e}") from e
    onnx_operators.install(runner)
    return runner


# --- without the onnx package ----------------------------------------------------------------------------------------


def _as_it_stands(data: bytes, label: str, shapes: Given, package: str) -> _Graph:
    """Take a graph that needs no normal form; `Invalid` with how to install `package` for one that does."""
    advice = f"the package {package!r}, which brings such graphs into order, is not installed: pip install {package}"
    try:
        runner = _parse(data, label)
    except Invalid as e:
        raise Invalid(f"{e}; {advice}") from e
    reason = onnx_operators.needs_order(runner)
    if reason:
        raise Invalid(f"{label}: {reason}; {advice}")
    declared = []
    for name, value in runner.graph_inputs.items():
        if value is None or value.is_sequence or value.is_optional:
            raise Invalid(f"input {name!r} is no tensor: only tensors are supported")
        dims = tuple(d if isinstance(d, str) or (isinstance(d, int) and d > 0) else None for d in value.shape)
        declared.append(Declared(name, dims))
    decision = decide(declared, shapes)
    inputs = {n: (adapter.dtype_name(v.dtype), decision.shapes[n]) for n, v in runner.graph_inputs.items()}
    return _Graph(runner, inputs, decision)
