"""Small helpers over the messages of the `onnx` package."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from onnx import TensorProto, helper, numpy_helper

__all__ = [
    "DTYPES", "attribute", "const", "constants", "domain_of", "fresh", "opset_of", "subgraphs", "type_name",
    "used_names",
]  # fmt: skip

DTYPES: dict[int, str] = {
    TensorProto.FLOAT: "float32", TensorProto.UINT8: "uint8", TensorProto.INT8: "int8", TensorProto.UINT16: "uint16",
    TensorProto.INT16: "int16", TensorProto.INT32: "int32", TensorProto.INT64: "int64", TensorProto.BOOL: "bool",
    TensorProto.FLOAT16: "float16", TensorProto.DOUBLE: "float64", TensorProto.UINT32: "uint32",
    TensorProto.UINT64: "uint64", TensorProto.BFLOAT16: "bfloat16",
}  # fmt: skip
"""The element types that are supported, by ONNX's number, with the names that this project gives them."""


def subgraphs(node: Any) -> Iterator[Any]:
    """Yield the graphs inside a node."""
    for a in node.attribute:
        if a.HasField("g"):
            yield a.g
        yield from a.graphs


def used_names(graph: Any) -> set[str]:
    """Return every name of a value in a graph and in those inside it."""
    found = {v.name for v in (*graph.input, *graph.output)} | {i.name for i in graph.initializer}
    for node in graph.node:
        found.update(node.input, node.output)
        for inner in subgraphs(node):
            found |= used_names(inner)
    return found


def fresh(taken: set[str], stem: str) -> str:
    """Return a name that is not taken, and take it."""
    name, n = stem, 0
    while name in taken:
        n += 1
        name = f"{stem}_{n}"
    taken.add(name)
    return name


def attribute(node: Any, name: str, default: Any = None) -> Any:
    """Return an attribute's value."""
    for a in node.attribute:
        if a.name == name:
            value = helper.get_attribute_value(a)
            return value.decode() if isinstance(value, bytes) else value
    return default


def constants(graph: Any) -> dict[str, Any]:
    """Return the graph's constants as messages, by name."""
    return {i.name: i for i in graph.initializer}


def const(graph: Any, name: str, value: Any) -> str:
    """Add a constant, an array; returns its name."""
    graph.initializer.append(numpy_helper.from_array(value, name))
    return name


def domain_of(node: Any) -> str:
    """Return the domain of a node as people write it."""
    return node.domain or "ai.onnx"


def opset_of(model: Any, domain: str) -> int:
    """Return the version of a domain's operators that the model was written for; 1 where it does not say."""
    for entry in model.opset_import:
        if (entry.domain or "ai.onnx") == (domain or "ai.onnx"):
            return int(entry.version)
    return 1


def type_name(kind: Any) -> str:
    """Return how messages call a type: a tensor's is the name of its elements'."""
    what = kind.WhichOneof("value")
    if what == "tensor_type":
        number = kind.tensor_type.elem_type
        return DTYPES.get(number) or TensorProto.DataType.Name(number).lower()
    return {"sequence_type": "a sequence", "optional_type": "an optional value", "map_type": "a map"}.get(
        str(what), "no tensor"
    )
