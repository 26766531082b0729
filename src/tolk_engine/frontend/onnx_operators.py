"""The operators that ONNX graphs may use: tinygrad's table, with ours where its own are missing or differ.

Functions here take and return tensors of tinygrad and are named as ONNX names them; parameters are inputs in order,
then attributes by name. Importing this module makes no tensor; `table` does, so it is called where settings are pinned.
"""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tinygrad import Tensor, dtypes

from tolk_engine.frontend.onnx_recurrent import GRU, LSTM, RNN

__all__ = ["DOMAINS", "Form", "form", "install", "names", "needs_order", "table"]

DOMAINS = ("", "ai.onnx", "ai.onnx.ml", "ai.onnx.preview.training", "ai.onnx.training", "com.microsoft")
"""Domains that have operators in the table."""

_ELSEWHERE = {
    "ArrayFeatureExtractor": "ai.onnx.ml", "Binarizer": "ai.onnx.ml", "BiasGelu": "com.microsoft",
    "EmbedLayerNormalization": "com.microsoft", "FastGelu": "com.microsoft", "QLinearAdd": "com.microsoft",
    "QLinearGlobalAveragePool": "com.microsoft", "QLinearMul": "com.microsoft",
    "SkipLayerNormalization": "com.microsoft", "Adagrad": "ai.onnx.preview.training",
    "Adam": "ai.onnx.preview.training", "Gradient": "ai.onnx.preview.training",
    "Momentum": "ai.onnx.preview.training",
}  # fmt: skip
"""Operators of the table that are of another domain than ONNX's own."""

_SHARED = ("Gelu", "ConvInteger", "MatMulInteger", "DequantizeLinear", "QuantizeLinear", "LayerNormalization")
"""Operators of ONNX's own domain that com.microsoft has too, with the same meaning."""

_LEFT_OUT = ("Attention", "DynamicQuantizeLinear", "ImageDecoder")
"""What tinygrad's table gets wrong or cannot do from a graph; the first two are computed by what they are made of."""


@dataclass(frozen=True, slots=True)
class Form:
    """What a function of the table takes: names of its parameters, of those without a default, and whether any name."""

    names: frozenset[str]
    required: frozenset[str]
    open: bool


@functools.cache
def table() -> dict[str, Any]:
    """Return the operators: functions, or several of them by operator set, as tinygrad's reader takes them."""
    from tinygrad.nn.onnx import Domain, OpSetId, onnx_ops

    found = {name: function for name, function in onnx_ops.items() if name not in _LEFT_OUT}
    found["Attention"] = {OpSetId(Domain.MICROSOFT_CONTRIB_OPS, 1): _version(onnx_ops["Attention"], "com.microsoft", 1)}
    found.update((function.__name__, function) for function in _OURS)
    return found


def names() -> list[str]:
    """Return the names of all operators of the table."""
    return sorted(table())


def form(name: str, domain: str, version: int) -> Form | None:
    """Return what the operator takes, or None where the table has none of that domain and operator set."""
    domain = domain or "ai.onnx"
    function = _version(table().get(name), domain, version)
    if function is None:
        return None
    home = _ELSEWHERE.get(name, "ai.onnx")
    if not isinstance(table()[name], dict) and domain != home and not (domain == "com.microsoft" and name in _SHARED):
        return None
    parameters = inspect.signature(function).parameters.values()
    return Form(
        frozenset(p.name for p in parameters),
        frozenset(p.name for p in parameters if p.default is p.empty),
        any(p.kind is p.VAR_KEYWORD for p in parameters),
    )


def _version(found: Any, domain: str, version: int) -> Callable[..., Any] | None:
    """Return the function for an operator set: the newest that is not newer."""
    if not isinstance(found, dict):
        return found  # type: ignore[no-any-return]
    fitting = {key.version: f for key, f in found.items() if key.domain.value == domain and key.version <= version}
    return fitting[max(fitting)] if fitting else None


# --- ours ------------------------------------------------------------------------------------------------------------


def Size(data: Any) -> Any:
    return Tensor(data.numel(), dtype=dtypes.int64, device=data.device)


def LpNormalization(x: Any, axis: int = -1, p: int = 2) -> Any:
    length = x.abs().sum(axis, keepdim=True) if p == 1 else x.square().sum(axis, keepdim=True).sqrt()
    return (length == 0).where(0, x / (length == 0).where(1, length))


def Mod(x: Any, y: Any, fmod: int = 0) -> Any:
    """Return the remainder: of the dividend's sign with `fmod`, else of the divisor's."""
    if not dtypes.is_float(x.dtype):
        return x.fmod(y) if fmod else x % y
    wide = (x.float(), y.float()) if x.dtype in (dtypes.float16, dtypes.bfloat16) else (x, y)
    a, b = wide
    finite = (a - a) == 0  # neither infinite nor NaN
    rest = (b.isinf() & finite).where(a, a.fmod(b))
    if not fmod:
        rest = ((rest != 0) & ((rest < 0) != (b < 0))).where(b.isinf().where(b, rest + b), rest)
    return rest.cast(x.dtype)


def QuantizeLinear(
    x: Any, y_scale: Any, y_zero_point: Any = None, axis: int = 1, block_size: int = 0, output_dtype: int = 0,
    saturate: int = 1, precision: int = 0,
) -> Any:  # fmt: skip
    """Return `x` in steps of the scale, halves to even, held within the type."""
    from tinygrad.nn.onnx import OnnxDataType

    if isinstance(y_zero_point, Tensor):
        kind = y_zero_point.dtype
    else:
        kind = OnnxDataType(output_dtype).to_dtype() if output_dtype else dtypes.uint8
    scale, zero = _along(x, y_scale, axis, block_size), _along(x, y_zero_point, axis, block_size)
    steps = (x.float() / scale.float()).round()
    if zero is not None:
        steps = steps + zero.float()
    return steps.clamp(kind.min, kind.max).cast(kind)


def _along(x: Any, value: Any, axis: int, block: int) -> Any:
    """Return a scale or zero point in a shape that broadcasts with `x`."""
    if value is None or value.numel() == 1:
        return None if value is None else value.reshape(())
    if block:
        return value.repeat_interleave(block, axis)
    axis = axis % x.ndim
    return value.reshape([-1 if i == axis else 1 for i in range(x.ndim)])


def Adagrad(
    R: Any, T: Any, *inputs: Any, decay_factor: float = 0.0, epsilon: float = 0.0, norm_coefficient: float = 0.0
) -> tuple[Any, ...]:
    """Return new weights and new sums of squares, for each tensor."""

    def step(x: Any, g: Any, h: Any) -> tuple[Any, Any]:
        g = norm_coefficient * x + g
        h = h + g.square()
        return x - R / (1 + T * decay_factor) * g / (h.sqrt() + epsilon), h

    return _grouped(step, inputs, 3)


def Momentum(
    R: Any, T: Any, *inputs: Any, alpha: float, beta: float, mode: str, norm_coefficient: float
) -> tuple[Any, ...]:
    """Return new weights and new velocities, for each tensor."""

    def step(x: Any, g: Any, v: Any) -> tuple[Any, Any]:
        g = norm_coefficient * x + g
        v = alpha * v + g * (beta if T > 0 else 1)
        return x - R * (v if mode == "standard" else g + alpha * v), v

    return _grouped(step, inputs, 3)


def _grouped(step: Callable[..., tuple[Any, Any]], inputs: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    """Do a step for the first, second... of each `count` kinds of inputs; results are sorted by kind again."""
    each = len(inputs) // count
    made = [step(*inputs[i::each]) for i in range(each)]
    return tuple(m[kind] for kind in range(len(made[0])) for m in made)


def BitShift(x: Any, y: Any, direction: str) -> Any:
    """Return whole numbers shifted by whole numbers; any count but 0 to the width shifts all of them out."""
    left = direction == "LEFT"
    bits = 8 * x.dtype.itemsize
    moved = x
    for k in range(bits.bit_length() - 1):
        step = moved.lshift(1 << k) if left else moved.rshift(1 << k)
        moved = (y.rshift(k) % 2 == 1).where(step, moved)
    nothing = 0 if left else (x < 0).where(-1, 0)
    return ((y >= 0) & (y < bits)).where(moved, nothing).cast(x.dtype)


def BitCast(x: Any, to: int) -> Any:
    from tinygrad.nn.onnx import OnnxDataType

    return x.bitcast(OnnxDataType(to).to_dtype())


def CumProd(x: Any, axis: Any, exclusive: int = 0, reverse: int = 0) -> Any:
    """Return products of all elements up to each along an axis."""
    at = int(axis.item()) % x.ndim
    if reverse:
        x = x.flip(at)
    if exclusive:
        one = tuple((1, 0) if i == at else None for i in range(x.ndim))
        x = x.pad(one, value=1).shrink(tuple((0, n) if i == at else None for i, n in enumerate(x.shape)))
    x = x.cumprod(at)
    return x.flip(at) if reverse else x


def OptionalHasElement(x: Any = None) -> Any:
    return Tensor(x is not None)


def OptionalGetElement(x: Any) -> Any:
    return x


def LpPool(
    X: Any, kernel_shape: Any, auto_pad: str = "NOTSET", ceil_mode: int = 0, dilations: Any = 1, p: int = 2,
    pads: Any = 0, strides: Any = 1,
) -> Any:  # fmt: skip
    """Return the p-norm of each window."""
    if ceil_mode:
        raise NotImplementedError("attribute 'ceil_mode' is not supported")
    mean = _reader("AveragePool")(
        X.abs().pow(p), kernel_shape, auto_pad, count_include_pad=1, dilations=dilations, pads=pads, strides=strides
    )
    return (mean * math.prod(kernel_shape)).pow(1 / p)


def GlobalLpPool(X: Any, p: int = 2) -> Any:
    return X.abs().pow(p).sum(tuple(range(2, X.ndim)), keepdim=True).pow(1 / p)


def ConvInteger(
    x: Any, w: Any, x_zero_point: Any = None, w_zero_point: Any = None, auto_pad: str = "NOTSET", **options: Any
) -> Any:
    """Return a convolution of whole numbers; a zero point of the weights may be one for each output channel."""
    return _reader("Conv")(
        _less(x, x_zero_point), _less(w, w_zero_point, *[1] * (w.ndim - 1)), auto_pad=auto_pad, **options
    )


def MatMulInteger(A: Any, B: Any, a_zero_point: Any = None, b_zero_point: Any = None) -> Any:
    """Return a product of whole numbers; a zero point of A may be one for each row, of B for each column."""
    return _less(A, a_zero_point, 1) @ _less(B, b_zero_point)


def QLinearMatMul(
    a: Any, a_scale: Any, a_zero_point: Any, b: Any, b_scale: Any, b_zero_point: Any, y_scale: Any, y_zero_point: Any
) -> Any:
    """Return a product of numbers in steps of a scale: one, or of A one for each row, of B one for each column."""
    found = _less(a, a_zero_point, 1) @ _less(b, b_zero_point)
    row_scale = a_scale.reshape(-1, 1) if a_scale.ndim == 1 and a_scale.numel() > 1 else a_scale
    real = found.float() * (row_scale.float() * b_scale.float())
    return QuantizeLinear(real, y_scale, y_zero_point, axis=-1)


def _less(x: Any, zero: Any, *behind: int) -> Any:
    """Return whole numbers from their zero point; one of a single axis is followed by `behind`."""
    if zero is None:
        return x.int()
    if zero.ndim == 1 and zero.numel() > 1:
        zero = zero.reshape(-1, *behind)
    elif zero.numel() == 1:
        zero = zero.reshape(())
    return x.int() - zero.int()


def _reader(name: str) -> Any:
    from tinygrad.nn.onnx import onnx_ops

    return onnx_ops[name]


_OURS: tuple[Any, ...] = (
    Size, LpNormalization, Mod, QuantizeLinear, Adagrad, Momentum, BitShift, BitCast, CumProd, LSTM, GRU, RNN,
    ConvInteger, MatMulInteger, QLinearMatMul, OptionalHasElement, OptionalGetElement, LpPool, GlobalLpPool,
)  # fmt: skip


def install(runner: Any) -> None:
    """Let a reader's graph, and the graphs inside its nodes, use the table."""
    ops = {**table(), **{name: _apart(table()[name]) for name in _APART}}
    for graph in _graphs(runner):
        graph.onnx_ops = ops
        # The reader takes these as Python lists: flat ones, and a slice for each index.
        graph.const_names = {n for n in graph.const_names if _is_short(graph.graph_values.get(n))}


_APART = ("AveragePool", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "LpPool", "MaxPool")
"""Operators that are computed from memory: fused with the convolution before them, a pool hides its loops."""


def _apart(operator: Any) -> Any:
    """Return an operator with its first input computed into memory before."""

    def apart(x: Any, *args: Any, **options: Any) -> Any:
        return operator(x.contiguous(), *args, **options)

    return apart


def _is_short(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim < 2 and 0 < value.numel() <= 8


def _graphs(runner: Any) -> Iterator[Any]:
    """Yield a reader's graph and those inside its nodes."""
    waiting = [runner]
    while waiting:
        graph = waiting.pop()
        yield graph
        for node in graph.graph_nodes:
            waiting.extend(value for value in node.opts.values() if hasattr(value, "graph_nodes"))


_OLD_FORMS = {"Softmax": 13, "LogSoftmax": 13, "Hardmax": 13, "Resize": 11, "Upsample": 99, "Add": 7}
"""Operators that meant something else before an operator set."""


def needs_order(runner: Any) -> str:
    """Say why the reader would not be right about its graph as it stands, or return an empty string."""
    for graph in _graphs(runner):
        for node in graph.graph_nodes:
            domain, version = node.opset_id.domain.value, node.opset_id.version
            what = f"operator {node.op!r} of domain {domain!r}, opset {version}"
            found = form(node.op, domain, version)
            if found is None:
                return f"{what} is not supported as it stands"
            if version < _OLD_FORMS.get(node.op, 0) and domain == "ai.onnx":
                return f"{what} has an older meaning"
            unknown = sorted(set(node.opts) - found.names)
            if unknown and not found.open:
                return f"{what} has attribute {unknown[0]!r}, which is not supported as it stands"
            if "" in node.outputs:
                return f"{what} leaves out a result"
    return ""
