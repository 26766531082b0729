"""Comparisons with NaN: all of them are false, but for ``!=``.

tinygrad asks for ``a <= b`` as "not ``a > b``", which is true where a side is NaN.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from tinygrad import Tensor

__all__ = ["ordered"]


@contextlib.contextmanager
def ordered() -> Iterator[None]:
    """Let ``<=`` and ``>=`` of float tensors that this thread makes be what they are in IEEE 754."""
    thread = threading.get_ident()
    own = {name: Tensor.__dict__.get(name) for name in ("__le__", "__ge__")}
    before: dict[str, Callable[[Any, Any], Any]] = {name: getattr(Tensor, name) for name in own}

    def at_most(self: Any, x: Any) -> Any:
        if threading.get_ident() != thread or not _float(self, x):
            return before["__le__"](self, x)
        return (self < x) | self.eq(x)

    def at_least(self: Any, x: Any) -> Any:
        if threading.get_ident() != thread or not _float(self, x):
            return before["__ge__"](self, x)
        return (self > x) | self.eq(x)

    for name, function in zip(own, (at_most, at_least), strict=True):
        setattr(Tensor, name, function)
    try:
        yield
    finally:
        for name, function in own.items():
            if function is None:  # Tensor inherits it
                delattr(Tensor, name)
            else:
                setattr(Tensor, name, function)


def _float(*sides: Any) -> bool:
    return any(isinstance(s, float) or (isinstance(s, Tensor) and s.is_floating_point()) for s in sides)
