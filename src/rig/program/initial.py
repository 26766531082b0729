"""First bytes of memory that come from elsewhere than the description, such as a weight in a file."""

from __future__ import annotations

from typing import Protocol

__all__ = ["InPlace", "Initial"]


class Initial(Protocol):
    """What a load reads first bytes from."""

    @property
    def nbytes(self) -> int: ...

    def read_into(self, view: memoryview) -> None:
        """Fill `view`, of exactly `nbytes` bytes; called once per copy."""


class InPlace(Initial, Protocol):
    """First bytes that may be used where they lie."""

    def in_place(self) -> memoryview | None:
        """Return the bytes, which stay as they are while the view is there, or None if they have to be read."""
