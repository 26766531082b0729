"""Comparisons that answer what is asked, where tinygrad's own ask something else.

- It asks for ``a <= b`` as "not ``a > b``", which is true where a side is NaN. All comparisons with NaN are false here,
  but for ``!=``.
- It asks for ``x + 5 < 100`` as "``x < 95``", and for ``-x < 5`` as "``-5 < x``", which is another question where the
  sum wraps. Here such a comparison is made of the numbers' bits with the highest one turned over, which compare the
  other way (with a sign for without, and the reverse) and are no sum; a compiler makes one comparison of it again.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tinygrad import Tensor
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import GroupOp, Ops

__all__ = ["right_comparisons"]

_OTHER = {
    dtypes.int8: dtypes.uint8, dtypes.int16: dtypes.uint16, dtypes.int32: dtypes.uint32, dtypes.int64: dtypes.uint64
}  # fmt: skip
_OTHER |= {other: one for one, other in _OTHER.items()}


@contextlib.contextmanager
def right_comparisons() -> Iterator[None]:
    """Let the comparisons of tensors that this thread makes be right for NaN and for what wraps."""
    thread = threading.get_ident()
    names = ("__le__", "__ge__", "__lt__", "__gt__")
    own = {name: Tensor.__dict__.get(name) for name in names}
    before: dict[str, Callable[[Any, Any], Any]] = {name: getattr(Tensor, name) for name in names}

    def mine(self: Any, x: Any, name: str) -> bool:
        return threading.get_ident() == thread and (name in ("__lt__", "__gt__") or _float(self, x))

    def at_most(self: Any, x: Any) -> Any:
        return (self < x) | self.eq(x) if mine(self, x, "__le__") else before["__le__"](self, x)

    def at_least(self: Any, x: Any) -> Any:
        return (self > x) | self.eq(x) if mine(self, x, "__ge__") else before["__ge__"](self, x)

    def below(self: Any, x: Any) -> Any:
        return before["__lt__"](*_sides(self, x)) if mine(self, x, "__lt__") else before["__lt__"](self, x)

    def above(self: Any, x: Any) -> Any:
        return before["__gt__"](*_sides(self, x)) if mine(self, x, "__gt__") else before["__gt__"](self, x)

    for name, function in zip(names, (at_most, at_least, below, above), strict=True):
        setattr(Tensor, name, function)
    try:
        yield
    finally:
        for name, original in own.items():
            if original is None:  # Tensor inherits it
                delattr(Tensor, name)
            else:
                setattr(Tensor, name, original)


def _float(*sides: Any) -> bool:
    return any(isinstance(s, float) or (isinstance(s, Tensor) and s.is_floating_point()) for s in sides)


def _sides(self: Any, x: Any) -> tuple[Any, Any]:
    """Return both sides of a comparison, with the highest bit turned over if one may wrap."""
    if self.dtype not in dtypes.ints and not (isinstance(x, Tensor) and x.dtype in dtypes.ints):
        return self, x
    sides = self._broadcasted(x)
    dtype = next((s.dtype for s in sides if s.dtype in _OTHER), None)
    if dtype is None or not any(_may_wrap(s) for s in sides) or not all(_fits(s, dtype) for s in sides):
        return self, x
    high = dtype.min if dtype in dtypes.sints else 1 << (dtype.bitsize - 1)
    one, other = ((s.cast(dtype) ^ high).bitcast(_OTHER[dtype]) for s in sides)
    return one, other


def _may_wrap(side: Any) -> bool:
    """Tell whether a tensor is a sum or a product of data."""
    node = side.uop
    while node.op in GroupOp.Movement:
        node = node.src[0]
    return node.op in (Ops.ADD, Ops.SUB, Ops.MUL) and any(n.op in (Ops.BUFFER, Ops.PARAM) for n in node.toposort())


def _fits(side: Any, dtype: Any) -> bool:
    node = side.uop.base
    return side.dtype is dtype or (node.op is Ops.CONST and dtype.min <= node.val <= dtype.max)
