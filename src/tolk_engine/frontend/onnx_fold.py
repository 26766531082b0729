"""Compute what shapes and small constants decide in an ONNX graph, with the `onnx` package's own evaluator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from onnx import helper, numpy_helper

from tolk_engine.frontend.onnx_graph import DTYPES, attribute, constants, fresh, subgraphs, used_names

__all__ = ["choose_branches", "fold"]

_MOST = 4096
"""Elements up to which an operand or a result is computed here; integer arithmetic of shapes has a handful."""

_MOST_FLOATS = 64
"""The same for results that are no whole numbers: scales and sizes, not tables."""

_NEVER = ("Bernoulli", "Dropout", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
          "RandomUniformLike")  # fmt: skip

Types = Mapping[str, tuple[str, tuple[int, ...] | None]]


def fold(model: Any, types: Types) -> bool:
    """Replace nodes that compute few numbers from constants and shapes by constants; tells whether there were any.

    A node that makes an output of the graph stays.
    """
    graph = model.graph
    versions = {entry.domain: entry.version for entry in model.opset_import}
    outputs = {o.name for o in graph.output}
    known = {name: t for name, t in constants(graph).items() if t.data_type in DTYPES}
    values: dict[str, Any] = {}
    kept, folded = [], False
    for node in graph.node:
        results = None if outputs.intersection(node.output) else _evaluate(node, known, values, types, versions)
        if results is None:
            kept.append(node)
            continue
        folded = True
        for name, value in zip(node.output, results, strict=True):
            tensor = numpy_helper.from_array(np.ascontiguousarray(value).reshape(np.shape(value)), name)
            graph.initializer.append(tensor)
            known[name], values[name] = tensor, value
    if folded:
        copies = [type(n).FromString(n.SerializeToString()) for n in kept]
        del graph.node[:]
        graph.node.extend(copies)
    return folded


def _evaluate(
    node: Any, known: Mapping[str, Any], values: dict[str, Any], types: Types, versions: Mapping[str, int]
) -> list[Any] | None:
    """Return a node's results, or None where they are not known or are not for here."""
    if node.domain or node.op_type in _NEVER or any(True for _ in subgraphs(node)):
        return None
    if node.op_type in ("Shape", "Size"):
        shape = types.get(node.input[0], ("", None))[1]
        if shape is None:
            return None
        if node.op_type == "Size":
            return [np.int64(np.prod(shape, dtype=np.int64))]
        return [np.array(shape[attribute(node, "start", 0) : attribute(node, "end")], np.int64)]
    feeds = {}
    for name in node.input:
        if not name:
            continue
        if name not in known or np.prod(known[name].dims, dtype=np.int64) > _MOST:
            return None
        if name not in values:
            values[name] = numpy_helper.to_array(known[name])
        feeds[name] = values[name]
    if any(name not in types or not _few(*types[name]) for name in node.output):
        return None
    try:
        from onnx.reference import ReferenceEvaluator

        with np.errstate(all="ignore"):
            results = ReferenceEvaluator(node, opsets=dict(versions)).run(None, feeds)
    except Exception:
        return None  # the reader does it, or tells why not
    results = [np.asarray(r) for r in results]
    if any(not _few(_name(r), r.shape) for r in results):
        return None
    wanted = [types.get(name, (_name(r), None))[0] for name, r in zip(node.output, results, strict=True)]
    return results if wanted == [_name(r) for r in results] else None


def _name(array: Any) -> str:
    """Return the name of an array's element type; empty for one that is not supported."""
    name = str(array.dtype)
    return name if name in DTYPES.values() else ""


def _few(dtype: str, shape: tuple[int, ...] | None) -> bool:
    """Whether a result is so small that it is computed here; of one that is not known yet this is asked later."""
    if shape is None:
        return True
    count = int(np.prod(shape, dtype=np.int64))
    return 0 < count <= (_MOST_FLOATS if dtype.startswith(("float", "bfloat")) else _MOST)


def choose_branches(model: Any) -> bool:
    """Put the taken branch in the place of each If whose condition is constant; tells whether there were any."""
    graph = model.graph
    known = constants(graph)
    taken: set[str] | None = None
    nodes, chosen = [], False
    for node in graph.node:
        if node.op_type != "If" or node.domain or node.input[0] not in known:
            nodes.append(node)
            continue
        chosen = True
        taken = used_names(graph) if taken is None else taken
        condition = bool(numpy_helper.to_array(known[node.input[0]]).reshape(-1)[0])
        branch = attribute(node, "then_branch" if condition else "else_branch")
        nodes += _inlined(graph, node, branch, taken)
    if chosen:
        copies = [type(n).FromString(n.SerializeToString()) for n in nodes]
        del graph.node[:]
        graph.node.extend(copies)
    return chosen


def _inlined(graph: Any, node: Any, branch: Any, taken: set[str]) -> list[Any]:
    """Return a branch's nodes with names of their own, and what gives its results the node's names."""
    inner = {i.name for i in branch.initializer} | {name for n in branch.node for name in n.output}
    names = {name: fresh(taken, f"{node.name or node.output[0]}/{name}") for name in sorted(inner) if name}
    for tensor in branch.initializer:
        tensor.name = names[tensor.name]
        graph.initializer.append(tensor)
    for n in branch.node:
        _rename(n, names)
    made = [
        helper.make_node("Identity", [names.get(result.name, result.name)], [name])
        for result, name in zip(branch.output, node.output, strict=False)
    ]
    return [*branch.node, *made]


def _rename(node: Any, names: Mapping[str, str]) -> None:
    for field in (node.input, node.output):
        for i, name in enumerate(field):
            field[i] = names.get(name, name)
    for graph in subgraphs(node):
        own = {i.name for i in graph.initializer} | {name for n in graph.node for name in n.output}
        outer = {old: new for old, new in names.items() if old not in own}
        for inner in graph.node:
            _rename(inner, outer)
        for output in graph.output:
            output.name = outer.get(output.name, output.name)
