"""Rewrite forms of ONNX operators that tinygrad's reader misreads into forms that it reads as they are meant."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from tolk_engine.frontend.onnx_graph import attribute, const, fresh, opset_of, used_names

__all__ = ["rewrite"]

Types = Mapping[str, tuple[str, tuple[int, ...] | None]]


class _Place:
    """Where a node is: its model, what is known of values, and names for new ones."""

    def __init__(self, model: Any, types: Types) -> None:
        self.model = model
        self.graph = model.graph
        self.types = types
        self.version = opset_of(model, "")
        self._taken: set[str] = set()

    def shape(self, name: str) -> tuple[int, ...] | None:
        return self.types.get(name, ("", None))[1]

    def name(self, stem: str) -> str:
        self._taken = self._taken or used_names(self.graph)
        return fresh(self._taken, stem)

    def ints(self, stem: str, *values: int) -> str:
        """Add whole numbers as a constant; returns its name."""
        return const(self.graph, self.name(stem), np.array(values, np.int64))


def rewrite(model: Any, types: Types) -> bool:
    """Rewrite every node of the graph that needs it; tells whether there were any."""
    place = _Place(model, types)
    nodes, changed = [], False
    for node in model.graph.node:
        rule = _RULES.get(node.op_type) if not node.domain else None
        made = rule(place, node) if rule else None
        changed |= made is not None
        nodes += [node] if made is None else made
    if changed:
        copies = [type(n).FromString(n.SerializeToString()) for n in nodes]
        del model.graph.node[:]
        model.graph.node.extend(copies)
    return changed


def _with(node: Any, *, drop: tuple[str, ...] = (), **attributes: Any) -> Any:
    """Return a copy of a node with other attributes."""
    made = type(node).FromString(node.SerializeToString())
    kept = [a for a in made.attribute if a.name not in drop and a.name not in attributes]
    kept = [type(a).FromString(a.SerializeToString()) for a in kept]
    del made.attribute[:]
    made.attribute.extend([*kept, *(helper.make_attribute(k, v) for k, v in attributes.items())])
    return made


def _prelu(place: _Place, node: Any) -> list[Any] | None:
    """A slope for each channel, written as one axis, belongs to axis 1."""
    x, slope = place.shape(node.input[0]), place.shape(node.input[1])
    if not x or slope is None or len(slope) != 1 or len(x) < 3 or slope[0] == 1 or slope[0] != x[1]:
        return None
    if place.version >= 7 and slope[0] == x[-1]:
        return None  # it broadcasts as ONNX says
    new = place.name(f"{node.input[1]}_by_channel")
    shape = place.ints(f"{node.input[1]}_shape", -1, *([1] * (len(x) - 2)))
    made = _with(node)
    made.input[1] = new
    return [helper.make_node("Reshape", [node.input[1], shape], [new]), made]


def _softmax(place: _Place, node: Any) -> list[Any] | None:
    """Before opset 13 these work on all axes from `axis` on together."""
    if place.version >= 13 or attribute(node, "axis") == -1:
        return None
    x = place.shape(node.input[0])
    axis = attribute(node, "axis", 1)
    if x is None:
        return None
    axis = axis % max(len(x), 1)
    if axis == len(x) - 1:
        return [_with(node, axis=-1)]
    flat, done = place.name(f"{node.output[0]}_flat"), place.name(f"{node.output[0]}_done")
    made = _with(node, axis=-1)
    made.input[0], made.output[0] = flat, done
    shape = place.ints(f"{node.output[0]}_shape", *x)
    return [
        helper.make_node("Flatten", [node.input[0]], [flat], axis=axis), made,
        helper.make_node("Reshape", [done, shape], [node.output[0]], allowzero=0),
    ]  # fmt: skip


def _old_broadcast(place: _Place, node: Any) -> list[Any] | None:
    """Before opset 7 the second operand's axes may start at any of the first's."""
    if not any(a.name in ("axis", "broadcast") for a in node.attribute):
        return None
    x, y = place.shape(node.input[0]), place.shape(node.input[1])
    axis = attribute(node, "axis")
    made = _with(node, drop=("axis", "broadcast"))
    if axis is None:
        return [made]
    if x is None or y is None:
        return None
    behind = len(x) - axis % max(len(x), 1) - len(y)
    if behind <= 0:
        return [made]
    new = place.name(f"{node.input[1]}_aligned")
    shape = place.ints(f"{node.input[1]}_shape", *y, *([1] * behind))
    made.input[1] = new
    return [helper.make_node("Reshape", [node.input[1], shape], [new]), made]


def _upsample(place: _Place, node: Any) -> list[Any] | None:
    """Upsample, and Resize before opset 11, count coordinates from the first element's corner."""
    if node.op_type == "Resize" and (place.version >= 11 or len(node.input) != 2):
        return None
    scales = attribute(node, "scales")
    if scales is None:
        name = node.input[1]
    else:
        name = const(place.graph, place.name(f"{node.output[0]}_scales"), np.array(scales, np.float32))
    return [
        helper.make_node(
            "Resize", [node.input[0], "", name], list(node.output), node.name, mode=attribute(node, "mode", "nearest"),
            coordinate_transformation_mode="asymmetric", nearest_mode="floor", antialias=0,
        )
    ]  # fmt: skip


def _cast(place: _Place, node: Any) -> list[Any] | None:
    """Before opset 6 the type was a word."""
    to = attribute(node, "to")
    if not isinstance(to, str):
        return None
    return [_with(node, to=int(helper.TensorProto.DataType.Value(to.upper())))]


def _axes(place: _Place, node: Any) -> list[Any] | None:
    """Some write the one axis of a list as a scalar."""
    name = node.input[1] if len(node.input) > 1 else ""
    found = next((i for i in place.graph.initializer if i.name == name), None)
    if found is None or found.dims:
        return None
    made = _with(node)
    made.input[1] = place.ints(f"{name}_list", int(numpy_helper.to_array(found)))
    return [made]


_OLD = ("Add", "And", "Div", "Equal", "Greater", "Less", "Mul", "Or", "Pow", "Sub", "Xor")

_RULES: dict[str, Callable[[_Place, Any], list[Any] | None]] = {
    "Cast": _cast, "Hardmax": _softmax, "LogSoftmax": _softmax, "PRelu": _prelu, "Resize": _upsample,
    "Softmax": _softmax, "Squeeze": _axes, "Unsqueeze": _axes, "Upsample": _upsample,
    **dict.fromkeys(_OLD, _old_broadcast),
}  # fmt: skip
