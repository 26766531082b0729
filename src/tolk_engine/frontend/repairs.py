"""What tinygrad takes for granted of whole numbers from data, put right for the whole process.

- The range of a sum, a product or a cast that does not fit into its type: values wrap, so that it may be anything.
  Taken for the range of numbers that do not wrap, it drops the check of an index and answers comparisons before a run.
- An index of a narrow type: where it counts from the end, or several make one, the sum is of its type, and wraps.
- An index of type uint64: compared with whole numbers that have a sign it became a float, which holds 24 bits.

They make results right that were wrong, and change no others, so that they may stay.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from tinygrad import Tensor
from tinygrad.dtype import dtypes
from tinygrad.uop.ops import Ops, UOp

__all__ = ["repair"]


@functools.cache
def repair() -> None:
    """Replace the functions that do so; once."""
    ranges = UOp.__dict__["_min_max"]
    ranges.func = functools.partial(_range, ranges.func)
    one_hot = Tensor._one_hot_along_dim

    @functools.wraps(one_hot)
    def matches(self: Any, *args: Any, **named: Any) -> Any:
        return one_hot(_signed(self) if self.dtype is dtypes.uint64 else self, *args, **named)

    Tensor._one_hot_along_dim = matches
    take = Tensor._getitem

    @functools.wraps(take)
    def taken(self: Any, indices: Any, v: Any = None) -> Any:
        if isinstance(indices, tuple):
            return take(self, tuple(_wide(self, i) for i in indices), v)
        return take(self, _wide(self, indices), v)

    Tensor._getitem = taken


def _wide(tensor: Any, index: Any) -> Any:
    """Return an index, as a type that holds the number of each element of `tensor` if it is a tensor itself."""
    if not isinstance(index, Tensor) or index.dtype not in dtypes.ints or index.dtype is dtypes.int64:
        return index
    small = all(isinstance(n, int) for n in tensor.shape) and math.prod(tensor.shape) < 2**31
    if small and index.dtype.max < 2**31:
        return index.cast(dtypes.int32)
    return _signed(index) if index.dtype is dtypes.uint64 else index.cast(dtypes.int64)


def _signed(index: Any) -> Any:
    """Return uint64 as int64; what that does not hold, the largest number, which is no element's either."""
    return index.minimum(2**63 - 1).cast(dtypes.int64)


def _range(original: Any, node: Any) -> tuple[Any, Any]:
    """Return the least and the largest value that a node may have."""
    if node.dtype not in dtypes.ints or node.op is Ops.CONST:
        return original(node)  # type: ignore[no-any-return]
    low, high = node.src[0]._min_max if node.op is Ops.CAST else original(node)
    if math.isfinite(low) and math.isfinite(high):
        low, high = math.trunc(low), math.trunc(high)
        if node.dtype.min <= low and high <= node.dtype.max:
            return low, high
    return node.dtype.min, node.dtype.max
