"""Bounds of descriptions that the codec and the check share."""

from __future__ import annotations

from typing import Final

__all__ = ["I64_MAX", "I64_MIN", "MAX_LOOPS"]

MAX_LOOPS: Final = 64
"""The most loops inside each other."""

I64_MIN: Final = -(2**63)
I64_MAX: Final = 2**63 - 1
