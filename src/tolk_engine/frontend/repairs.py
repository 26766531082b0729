"""What tinygrad takes for granted of whole numbers from data, put right for the whole process.

- The range of a sum, a product or a cast that does not fit into its type: values wrap, so that it may be anything.
  Taken for the range of numbers that do not wrap, it drops the check of an index and answers comparisons before a run.
- An index of type uint64: compared with whole numbers that have a sign it became a float, which holds 24 bits.

Both make results right that were wrong, and change no others, so that they may stay.
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
    """Replace the two functions; once."""
    ranges = UOp.__dict__["_min_max"]
    ranges.func = functools.partial(_range, ranges.func)
    one_hot = Tensor._one_hot_along_dim

    @functools.wraps(one_hot)
    def matches(self: Any, *args: Any, **named: Any) -> Any:
        return one_hot(self.cast(dtypes.int64) if self.dtype is dtypes.uint64 else self, *args, **named)

    Tensor._one_hot_along_dim = matches


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
