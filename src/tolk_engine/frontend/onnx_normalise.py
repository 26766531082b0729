"""Bring an ONNX graph into the form that tinygrad's reader is right about, with the `onnx` package.

Shapes are fixed, functions written out, what only shapes and small constants decide is computed, forms that the reader
misreads are rewritten, and what nothing needs is dropped. Operators that are missing are told here, by node.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from rig.errors import Invalid
from tolk_engine.frontend import onnx_fold, onnx_rewrite
from tolk_engine.frontend.onnx_graph import DTYPES, domain_of, fresh, opset_of, subgraphs, type_name, used_names
from tolk_engine.frontend.onnx_operators import DOMAINS, form, names
from tolk_engine.frontend.onnx_shapes import Decision, Declared, Given, decide

__all__ = ["Normal", "Weight", "normalise"]

_INLINE = 1 << 10
"""Bytes of a weight up to which it stays in the graph, where the steps here see its value."""

_LEGACY = ("consumed_inputs", "is_test")
"""Attributes of old operator sets that say nothing about the result of a graph that is only run."""

_BY_BODY = ("Attention", "DynamicQuantizeLinear")
"""Operators that are always computed by what ONNX defines them as."""


@dataclass(frozen=True, slots=True)
class Weight:
    """A constant of the graph: dtype (NumPy-like name), shape, and its bytes."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass(frozen=True, slots=True)
class Normal:
    """A graph for the reader: `data` without its larger constants, which are `weights`, and what is known of it.

    `inputs` are dtype and shape by name, in order. `types` holds the dtype and, where known, the shape of each value;
    `labels` how to call the node that makes a value.
    """

    data: bytes
    inputs: dict[str, tuple[str, tuple[int, ...]]]
    weights: dict[str, Weight]
    types: dict[str, tuple[str, tuple[int, ...] | None]]
    labels: dict[str, str]
    decision: Decision


def normalise(data: bytes, label: str, folder: Path | None, given: Given) -> Normal:
    """Return a model's graph in normal form; call it where tinygrad's settings are pinned.

    `folder` is where tensors outside the file are looked for. Raises `Invalid` for bytes that are no model, shapes that
    contradict the graph, and operators, attributes and types that are not supported, by node.
    """
    model = _parse(data, label)
    work = _Work(model, label, folder)
    work.inline_functions()
    work.clean()
    work.take_weights()
    decision = work.fix_shapes(given)
    work.prune()
    work.settle()
    work.write_out_bodies()
    work.check()
    return work.result(decision)


def _parse(data: bytes, label: str) -> Any:
    if not data:
        raise Invalid(f"{label}: an ONNX model was expected, found no bytes")
    try:
        model = onnx.ModelProto.FromString(data)
    except Exception as e:
        raise Invalid(f"{label}: these bytes cannot be read as an ONNX model: {type(e).__name__}: {e}") from e
    if not model.graph.node and not model.graph.output:
        raise Invalid(f"{label}: these bytes cannot be read as an ONNX model: there is no graph in them")
    return model


@dataclass
class _Work:
    """A model while it is changed. `weights` are the larger constants, which are inputs of the graph meanwhile; `taken`
    the names of all that there were."""

    model: Any
    label: str
    folder: Path | None
    weights: dict[str, Weight] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    types: dict[str, tuple[str, tuple[int, ...] | None]] = field(default_factory=dict)

    @property
    def graph(self) -> Any:
        return self.model.graph

    # --- the form of the file

    def inline_functions(self) -> None:
        """Write out the functions that the file defines."""
        if self.model.functions:
            from onnx import inliner

            self.model = inliner.inline_local_functions(self.model)

    def clean(self) -> None:
        """Name nameless results, bring all small constants into one form, and drop stale shapes."""
        taken = used_names(self.graph)
        for graph in self.graphs():
            del graph.value_info[:]
            for sparse in graph.sparse_initializer:
                graph.initializer.append(numpy_helper.from_array(_dense(sparse), sparse.values.name))
            del graph.sparse_initializer[:]
            for node in graph.node:
                node.domain = "" if node.domain == "ai.onnx" else node.domain
                for i, name in enumerate(node.output):
                    if not name:  # the reader would keep it as the value of every input that is left out
                        node.output[i] = fresh(taken, f"{node.op_type}_unused")
                for a in node.attribute:
                    if a.type == onnx.AttributeProto.TENSOR:
                        self.raw(a.t, f"attribute {a.name!r} of node {node.name or node.op_type!r}")
                if node.op_type == "Constant" and not node.domain:
                    self.constant(graph, node)
            for tensor in graph.initializer:
                if graph is not self.graph or tensor.data_location != TensorProto.EXTERNAL:
                    self.raw(tensor, f"weight {tensor.name!r}")
            kept = [n for n in graph.node if n.op_type != "Constant" or n.domain]
            del graph.node[:]
            graph.node.extend(kept)
        for output in self.graph.output:
            output.type.tensor_type.ClearField("shape") if output.type.HasField("tensor_type") else None

    def graphs(self) -> Iterator[Any]:
        """Yield the graph and every graph inside its nodes."""
        waiting = [self.graph]
        while waiting:
            graph = waiting.pop()
            yield graph
            waiting.extend(g for node in graph.node for g in subgraphs(node))

    def constant(self, graph: Any, node: Any) -> None:
        """Turn a Constant node into an initializer."""
        if len(node.attribute) != 1:
            raise Invalid(f"node {node.name or node.output[0]!r} (Constant): one value was expected")
        a = node.attribute[0]
        if a.name == "value":
            tensor = onnx.TensorProto()
            tensor.CopyFrom(a.t)
        elif a.name == "sparse_value":
            tensor = numpy_helper.from_array(_dense(a.sparse_tensor))
        elif a.name in ("value_float", "value_floats"):
            tensor = numpy_helper.from_array(np.array(helper.get_attribute_value(a), np.float32))
        elif a.name in ("value_int", "value_ints"):
            tensor = numpy_helper.from_array(np.array(helper.get_attribute_value(a), np.int64))
        else:
            tensor = onnx.TensorProto(data_type=TensorProto.STRING)
        tensor.name = node.output[0]
        graph.initializer.append(tensor)

    def raw(self, tensor: Any, what: str) -> None:
        """Bring a constant's value into the one form that the reader reads as it is meant."""
        if tensor.data_location == TensorProto.EXTERNAL:
            tensor.raw_data = _external(tensor, self.folder, what)
            tensor.data_location = TensorProto.DEFAULT
            del tensor.external_data[:]
        elif not tensor.HasField("raw_data") and tensor.data_type in DTYPES:
            array = numpy_helper.to_array(tensor)
            for name in ("float_data", "int32_data", "int64_data", "double_data", "uint64_data"):
                tensor.ClearField(name)
            tensor.raw_data = array.tobytes()

    def take_weights(self) -> None:
        """Take the larger constants out of the graph; until the end they are inputs of it."""
        named = {i.name for i in self.graph.initializer}
        inputs = [value for value in self.graph.input if value.name not in named]
        small = []
        for tensor in self.graph.initializer:
            what = f"weight {tensor.name!r}"
            nbytes = _nbytes(tensor)
            if nbytes is None:  # of a type that is told where it is used
                small.append(tensor)
                continue
            if tensor.data_location == TensorProto.EXTERNAL and nbytes > _INLINE:
                data = _external(tensor, self.folder, what)
            else:
                self.raw(tensor, what)
                data = tensor.raw_data
            dtype, shape = DTYPES[tensor.data_type], tuple(tensor.dims)
            if len(data) != nbytes:
                raise Invalid(f"{what}: {dtype} of shape {shape} is {nbytes} bytes, the file holds {len(data)}")
            if nbytes <= _INLINE:
                small.append(tensor)
            else:
                self.weights[tensor.name] = Weight(dtype, shape, data)
                inputs.append(helper.make_tensor_value_info(tensor.name, tensor.data_type, shape))
        _replace(self.graph.initializer, small)
        _replace(self.graph.input, inputs)

    def fix_shapes(self, given: Given) -> Decision:
        """Give each input the shape that is decided for it."""
        declared = []
        inputs = [v for v in self.graph.input if v.name not in self.weights]
        for value in inputs:
            if not value.type.HasField("tensor_type") or value.type.tensor_type.elem_type not in DTYPES:
                raise Invalid(
                    f"input {value.name!r} is {type_name(value.type)}: supported are tensors of"
                    f" {', '.join(DTYPES.values())}"
                )
            kind = value.type.tensor_type
            dims = tuple(_dimension(d) for d in kind.shape.dim) if kind.HasField("shape") else None
            declared.append(Declared(value.name, dims))
        decision = decide(declared, given)
        for value in inputs:
            shape = value.type.tensor_type.shape
            del shape.dim[:]
            shape.SetInParent()
            for n in decision.shapes[value.name]:
                shape.dim.add().dim_value = n
        return decision

    # --- the graph

    def prune(self) -> None:
        """Drop nodes and constants that no output needs."""
        needed = {o.name for o in self.graph.output}
        kept = []
        for node in reversed(self.graph.node):
            if needed.intersection(node.output):
                needed.update(node.input)
                for inner in subgraphs(node):
                    needed |= used_names(inner)
                kept.append(node)
        _replace(self.graph.node, kept[::-1])
        _replace(self.graph.initializer, [i for i in self.graph.initializer if i.name in needed])
        self.taken |= set(self.weights)
        self.weights = {name: w for name, w in self.weights.items() if name in needed}
        _replace(self.graph.input, [v for v in self.graph.input if v.name in needed or v.name not in self.taken])

    def settle(self) -> None:
        """Find out shapes and compute what follows from them, as long as there is something new."""
        for _ in range(64):
            self.infer()
            changed = onnx_fold.fold(self.model, self.types)
            changed |= onnx_fold.choose_branches(self.model)
            changed |= onnx_rewrite.rewrite(self.model, self.types)
            if not changed:
                return
            self.prune()

    def infer(self) -> None:
        """Ask the package what type and shape each value has."""
        try:
            inferred = onnx.shape_inference.infer_shapes(self.model, data_prop=True).graph
        except Exception:
            inferred = self.graph  # it is only less that is known
        self.types = {}
        for value in (*inferred.value_info, *inferred.input, *inferred.output):
            kind = value.type.tensor_type
            if not value.type.HasField("tensor_type") or not kind.elem_type:
                if value.type.WhichOneof("value"):
                    self.types[value.name] = (type_name(value.type), None)
                continue
            shape = tuple(_dimension(d) for d in kind.shape.dim) if kind.HasField("shape") else (None,)
            known = all(isinstance(n, int) for n in shape)
            self.types[value.name] = (type_name(value.type), shape if known else None)  # type: ignore[assignment]
        for tensor in self.graph.initializer:
            if tensor.data_type in DTYPES:
                self.types[tensor.name] = (DTYPES[tensor.data_type], tuple(tensor.dims))

    def write_out_bodies(self) -> None:
        """Replace operators that the reader has not, or not in this form, by what ONNX defines them as."""
        from onnx import inliner

        tried: set[tuple[str, str]] = set()
        while True:
            wanted = {
                (n.domain, n.op_type)
                for graph in self.graphs()
                for n in graph.node
                if (n.op_type in _BY_BODY and not n.domain) or self.problem(n)
            } - tried
            if not wanted:
                return
            tried |= wanted
            before = [n.op_type for n in self.graph.node]
            try:
                model = inliner.inline_selected_functions(self.model, sorted(wanted), inline_schema_functions=True)
            except Exception:
                continue  # the check tells what is missing
            if [n.op_type for n in model.graph.node] != before:
                self.model = model
                self.clean()
                self.prune()
                self.settle()

    # --- what is supported

    def problem(self, node: Any) -> str:
        """Say why the reader cannot take a node, or return an empty string; fills in defaults that it needs."""
        version = opset_of(self.model, node.domain)
        found = form(node.op_type, node.domain, version) if node.domain in DOMAINS else None
        where = f"domain {domain_of(node)!r}, opset {version}"
        if found is None and node.op_type in _BY_BODY and not node.domain:
            return f"operator {node.op_type!r} of {where} is not supported with these inputs and attributes"
        if found is None:
            near = difflib.get_close_matches(node.op_type, names(), 3, 0.7)
            text = f"operator {node.op_type!r} of {where} is not supported; {len(names())} operators are"
            return f"{text}, the nearest {', '.join(near)}" if near else text
        schema = _schema(node, version)
        defaults = {n: a.default_value for n, a in schema.attributes.items()} if schema else {}
        present = {a.name: a for a in node.attribute}
        for name, a in present.items():
            if found.open or name in found.names or name in _LEGACY:
                continue
            default = defaults.get(name)
            if default is None or not default.type or _value(a) != _value(default):
                return f"operator {node.op_type!r} of {where} is not supported with attribute {name!r} = {_value(a)!r}"
        for name in sorted(found.required & set(defaults) - set(present)):
            if defaults[name].type:
                node.attribute.append(defaults[name])
        _replace(node.attribute, [a for a in node.attribute if found.open or a.name in found.names])
        for name in node.output:
            made = self.types.get(name, ("float32", None))[0]
            if made not in DTYPES.values():
                return f"operator {node.op_type!r} of {where} gives {made}: only tensors of these are: {_DTYPE_LIST}"
        return ""

    def check(self) -> None:
        """Raise `Invalid` for the first node that is not supported; the message counts the others' operators."""
        found: dict[str, str] = {}
        for graph in self.graphs():
            for at, node in enumerate(graph.node):
                text = self.problem(node)
                if text and node.op_type not in found:
                    found[node.op_type] = f"{_label(node, at)}: {text}"
        if found:
            first, *others = found
            more = f"; nor are {', '.join(others)}" if others else ""
            raise Invalid(f"{self.label}: {found[first]}{more}")
        for output in self.graph.output:
            if output.type.WhichOneof("value") not in (None, "tensor_type"):
                raise Invalid(f"{self.label}: output {output.name!r} is {type_name(output.type)}, expected a tensor")
        for tensor in (t for graph in self.graphs() for t in graph.initializer):
            if tensor.data_type not in DTYPES:
                kind = TensorProto.DataType.Name(tensor.data_type).lower()
                raise Invalid(f"{self.label}: weight {tensor.name!r} holds {kind}: supported are {_DTYPE_LIST}")

    def result(self, decision: Decision) -> Normal:
        """Return the normal form."""
        labels = {name: _label(n, at) for at, n in enumerate(self.graph.node) for name in n.output}
        inputs = {
            v.name: (DTYPES[v.type.tensor_type.elem_type], decision.shapes[v.name])
            for v in self.graph.input
            if v.name not in self.weights
        }
        # The reader expects some bytes, and takes scalars as Python numbers, which bfloat16 has not.
        odd = [t for t in self.graph.initializer if 0 in t.dims or t.data_type == TensorProto.BFLOAT16]
        for tensor in odd:
            self.weights[tensor.name] = Weight(DTYPES[tensor.data_type], tuple(tensor.dims), tensor.raw_data)
        _replace(self.graph.initializer, [t for t in self.graph.initializer if t.name not in self.weights])
        _replace(self.model.opset_import, [e for e in self.model.opset_import if e.domain in DOMAINS])
        _replace(self.graph.input, [v for v in self.graph.input if v.name in inputs])
        return Normal(self.model.SerializeToString(), inputs, self.weights, self.types, labels, decision)


_DTYPE_LIST = ", ".join(DTYPES.values())


def _label(node: Any, at: int) -> str:
    name = f"{node.name!r}" if node.name else f"{at}"
    return f"node {name} ({node.op_type} that makes {node.output[0]!r})"


def _schema(node: Any, version: int) -> Any:
    try:
        return onnx.defs.get_schema(node.op_type, version, node.domain)
    except Exception:
        return None


def _value(a: Any) -> Any:
    value = helper.get_attribute_value(a)
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else list(value) if _many(value) else value


def _many(value: Any) -> bool:
    return isinstance(value, Iterable) and not isinstance(value, str)


def _dimension(d: Any) -> int | str | None:
    """Return an axis as the graph gives it; some write -1 for an open one."""
    if d.HasField("dim_value"):
        return int(d.dim_value) if d.dim_value >= 0 else None
    return str(d.dim_param) or None


def _nbytes(tensor: Any) -> int | None:
    """Return the bytes of a constant's elements, or None for a type that is not supported."""
    if tensor.data_type not in DTYPES:
        return None
    return int(np.prod(tensor.dims, dtype=np.int64)) * int(helper.tensor_dtype_to_np_dtype(tensor.data_type).itemsize)


def _replace(field_: Any, items: list[Any]) -> None:
    """Let a repeated field hold `items`, which may be its own."""
    copies = [type(i).FromString(i.SerializeToString()) for i in items]
    del field_[:]
    field_.extend(copies)


def _dense(sparse: Any) -> Any:
    """Return a sparse tensor's elements as an array."""
    values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    out = np.zeros(tuple(sparse.dims), values.dtype)
    if indices.ndim == 1:
        out.reshape(-1)[indices] = values
    else:
        out[tuple(indices.T)] = values
    return out


def _external(tensor: Any, folder: Path | None, what: str) -> bytes:
    """Return the bytes of a tensor that lies outside the file."""
    entries: Mapping[str, str] = {e.key: e.value for e in tensor.external_data}
    location = entries.get("location", "")
    if folder is None:
        raise Invalid(f"{what} lies in the file {location!r} beside the model: give the model's path, not its bytes")
    path = Path(location)
    if not location or path.is_absolute() or ".." in path.parts:
        raise Invalid(f"{what} lies in the file {location!r}, which is not beneath the model's folder")
    offset = int(entries.get("offset", 0))
    try:
        with (folder / path).open("rb") as file:
            file.seek(offset)
            data = file.read(int(entries["length"]) if "length" in entries else -1)
    except OSError as e:
        raise Invalid(f"{what} lies in the file {location!r}, which cannot be read: {e}") from e
    return data
