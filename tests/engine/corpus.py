"""Functions whose kernels use what kernels use: every kind of number, loops, sums, products, gathers, conversions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from tinygrad import Tensor
from tinygrad.dtype import dtypes

from tolk_engine.frontend import Spec, capture
from tolk_engine.schedule import Schedule

__all__ = ["FUNCTIONS", "arrays", "schedule", "several"]

_F, _I = "float32", "int32"


def _attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-1, -2) * 0.25).softmax(-1) @ v


def _norm(x: Tensor, w: Tensor) -> Tensor:
    return x.layernorm() * w + x.mean(axis=1, keepdim=True)


def _numbers(x: Tensor) -> dict[str, Tensor]:
    return {
        "waves": x.sin() + x.exp() * x.abs().log(), "roots": x.abs().sqrt() / (x + 3.5), "round": (x * 9).round(),
        "tanh": x.tanh().sigmoid(), "odd": x.reciprocal().trunc(),
    }  # fmt: skip


def _whole(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    return {
        "sum": (x * y).sum(axis=0), "quotient": x // y, "rest": x % y, "bits": (x ^ y) & (x | 5), "most": x.maximum(y),
        "less": x < y, "shift": x << 3,
    }  # fmt: skip


def _casts(x: Tensor) -> dict[str, Tensor]:
    kinds = (dtypes.half, dtypes.bfloat16, dtypes.double, dtypes.int8, dtypes.uint8, dtypes.int64, dtypes.bool)
    return {kind.name: (x * 7).cast(kind) for kind in kinds} | {"back": (x * 7).cast(dtypes.half).float() + x}


def _quantized(x: Tensor, w: Tensor) -> Tensor:
    small = (x * 12).round().clamp(-128, 127).cast(dtypes.int8)
    return (small.cast(dtypes.int32) @ w.cast(dtypes.int32)).cast(dtypes.float32) * 0.013


FUNCTIONS: dict[str, tuple[Callable[..., object], tuple[tuple[tuple[int, ...], str], ...]]] = {
    "affine": (lambda x: x * 2.5 + 1, (((37,), _F),)),
    "numbers": (_numbers, (((67,), _F),)),
    "double": (_numbers, (((19,), "float64"),)),
    "half": (lambda x: (x * x + x).exp().sum(axis=0), (((8, 33), "float16"),)),
    "matmul": (lambda a, b: a @ b, (((48, 32), _F), ((32, 40), _F))),
    "matmul_half": (lambda a, b: a @ b, (((16, 24), "float16"), ((24, 20), "float16"))),
    "attention": (_attention, (((2, 12, 16), _F), ((2, 12, 16), _F), ((2, 12, 8), _F))),
    "norm": (_norm, (((6, 50), _F), ((50,), _F))),
    "convolution": (lambda x, w: x.conv2d(w, padding=1).relu(), (((1, 3, 14, 14), _F), ((5, 3, 3, 3), _F))),
    "pool": (lambda x: x.max_pool2d((2, 2)).sum(axis=1), (((1, 4, 10, 10), _F),)),
    "whole": (_whole, (((9, 7), _I), ((9, 7), _I))),
    "bytes": (_whole, (((5, 11), "uint8"), ((5, 11), "uint8"))),
    "casts": (_casts, (((40,), _F),)),
    "quantized": (_quantized, (((6, 20), _F), ((20, 9), "int8"))),
    "gather": (lambda x, i: x[i], (((12, 5), _F), ((7,), _I))),
    "scan": (lambda x: x.cumsum(axis=1).flip(1), (((4, 30), _F),)),
    "best": (lambda x: (x.argmax(axis=1), x.max(axis=1)), (((5, 23), _F),)),
    "edges": (lambda x: x.pad(((1, 2), (0, 3)))[:, 1:].contiguous() * 3, (((4, 6), _F),)),
}  # fmt: skip


def schedule(name: str) -> Schedule:
    """Return a function of the corpus, captured."""
    function, specs = FUNCTIONS[name]
    return capture(function, *(Spec(shape, dtype) for shape, dtype in specs))


def arrays(name: str) -> list[np.ndarray]:
    """Return inputs for it, the same in every process; whole numbers are small and hold zeros."""
    draw = np.random.default_rng(7)
    out = []
    for shape, dtype in FUNCTIONS[name][1]:
        if dtype.startswith("float"):
            out.append(draw.standard_normal(shape).astype(dtype))
        else:
            out.append(draw.integers(0, 5, shape).astype(dtype))
    return out


def several() -> Schedule:
    """Return one schedule of several kernels: what a small model is."""

    def model(x: Tensor, w: Tensor, u: Tensor) -> dict[str, Tensor]:
        hidden = (x.conv2d(w, padding=1).relu().max_pool2d((2, 2)) * 0.5).contiguous()
        flat = (hidden.reshape(1, -1) @ u).layernorm().contiguous()
        return {"out": flat.softmax(-1), "half": flat.cast(dtypes.half), "best": flat.argmax(axis=1)}

    return capture(model, Spec((1, 3, 16, 16), _F), Spec((6, 3, 3, 3), _F), Spec((384, 24), _F))
