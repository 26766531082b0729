"""ONNX graphs as schedules, through tinygrad's own reader of them.

That reader runs parts of the graph while it reads (shapes, axes, scalar weights); those values come from our own
evaluation, so no device is opened for them.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tinygrad import Tensor

from rig.errors import Invalid
from tolk_engine.frontend import adapter
from tolk_engine.frontend.capture import Spec, read_only, trace

if TYPE_CHECKING:
    from tolk_engine.schedule import Schedule

__all__ = ["from_onnx"]


def from_onnx(
    source: str | os.PathLike[str] | bytes,
    shapes: Mapping[str, Sequence[int]] | None = None,
    *,
    name: str | None = None,
    device: str = "CPU",
) -> Schedule:
    """Return the schedule of an ONNX model, given as a file's path or as its bytes.

    Inputs and outputs keep the names of the graph, weights those of their initializers. A dimension that the graph
    leaves open is taken from `shapes` (by input, in elements), else it is 1; the slots tell what was chosen. Raises
    `Invalid` for bytes that are no model, a shape that contradicts the graph, an operator that is not supported, and a
    graph whose shapes depend on its inputs' values.
    """
    data, label = _read(source)
    runner = read_only(lambda: _parse(data, label))
    specs = _specs(runner, dict(shapes or {}), device)
    weights = {name: value for name, value in runner.graph_values.items() if name and isinstance(value, Tensor)}

    def call(placeholders: Sequence[Any]) -> dict[str, Any]:
        inputs = {str(s.name): p for s, p in zip(specs, placeholders, strict=True)}
        return _run(runner, inputs, specs, shapes or {})

    return trace(name or label, specs, call, owners=[("", weights)])


def _read(source: str | os.PathLike[str] | bytes) -> tuple[bytes, str]:
    if isinstance(source, bytes | bytearray | memoryview):
        return bytes(source), "model"
    path = os.fspath(source)
    with open(path, "rb") as file:
        return file.read(), Path(path).stem


def _parse(data: bytes, label: str) -> Any:
    if not data:
        raise Invalid(f"{label}: an ONNX model was expected, found no bytes")
    try:
        return adapter.onnx_runner(data)
    except Invalid:
        raise
    except Exception as e:
        raise Invalid(f"{label}: these bytes cannot be read as an ONNX model: {type(e).__name__}: {e}") from e


def _specs(runner: Any, shapes: dict[str, Sequence[int]], device: str) -> list[Spec]:
    """Return what each input is, with its open dimensions decided; the graph is patched to match."""
    unknown = sorted(set(shapes) - set(runner.graph_inputs))
    if unknown:
        raise Invalid(
            f"shapes names {unknown[0]!r}: the graph's inputs are {', '.join(map(repr, runner.graph_inputs))}"
        )
    symbols: dict[str, tuple[int, str]] = {}
    for name, value in runner.graph_inputs.items():
        if value is None or value.is_sequence:
            raise Invalid(f"input {name!r} is no tensor: sequences are not supported")
        given = shapes.get(name)
        if given is not None and len(given) != len(value.shape):
            raise Invalid(
                f"input {name!r}: shape {tuple(given)} has {len(given)} axes, the graph has {len(value.shape)}"
            )
        for axis, declared in enumerate(value.shape if given is not None else ()):
            _check_dimension(name, axis, declared, shapes[name][axis], symbols)
    specs = []
    for name, value in runner.graph_inputs.items():
        shape = shapes.get(name)
        if shape is None:
            shape = [_default_dimension(declared, symbols) for declared in value.shape]
        specs.append(Spec(tuple(shape), adapter.dtype_name(value.dtype), name, device))
    return specs


def _default_dimension(declared: Any, symbols: dict[str, tuple[int, str]]) -> int:
    """Return the length of an axis that nobody gave: the graph's own, that of its name elsewhere, else 1."""
    if _is_length(declared):
        return int(declared)
    return symbols[declared][0] if isinstance(declared, str) and declared in symbols else 1


def _check_dimension(name: str, axis: int, declared: Any, given: int, symbols: dict[str, tuple[int, str]]) -> None:
    """Hold a given length against the graph and against `symbols`, its named dimensions' lengths so far."""
    fixed = _is_length(declared)
    if isinstance(given, bool) or not isinstance(given, int) or given < 0:
        raise Invalid(f"input {name!r}: axis {axis} of the shape is {given!r}, expected a whole number from 0")
    if fixed and given != declared:
        raise Invalid(f"input {name!r}: axis {axis} is {given}, the graph says {declared}")
    if isinstance(declared, str) and declared:
        was, where = symbols.setdefault(declared, (given, name))
        if was != given:
            raise Invalid(f"input {name!r}: axis {axis} ({declared!r}) is {given}, but it is {was} in input {where!r}")


def _guessed(declared: dict[str, Any], given: Mapping[str, Any]) -> str:
    """Return a note about dimensions that nobody gave."""
    open_ = [f"{n!r}" for n, shape in declared.items() if n not in given and not all(_is_length(d) for d in shape)]
    return f" (open dimensions of input {', '.join(open_)} were taken as 1: give them in shapes)" if open_ else ""


def _is_length(dimension: Any) -> bool:
    return isinstance(dimension, int) and dimension > 0


def _run(runner: Any, inputs: dict[str, Any], specs: Sequence[Spec], given: Mapping[str, Any]) -> dict[str, Any]:
    """Trace the graph on placeholders."""
    declared = {name: value.shape for name, value in runner.graph_inputs.items()}
    for spec in specs:
        value = runner.graph_inputs[spec.name]
        runner.graph_inputs[spec.name] = replace(value, shape=spec.shape)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results: dict[str, Any] = runner(inputs)
        for name, value in results.items():
            if not isinstance(value, Tensor):
                raise Invalid(f"output {name!r} is {type(value).__name__}, expected a tensor")
            _ = value.shape  # found now, wrong shapes are errors of the graph
    except Invalid:
        raise
    except (NotImplementedError, KeyError) as e:
        raise Invalid(f"the graph uses what is not supported: {e}") from e
    except Exception as e:
        raise Invalid(f"the graph cannot be traced: {type(e).__name__}: {e}{_guessed(declared, given)}") from e
    return results
