"""Filling the holes of bytes that stay as they are after load: images and the first bytes of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rig.errors import Invalid

if TYPE_CHECKING:
    from collections.abc import Callable

    from rig.program.description import Data, Value

__all__ = ["fill"]

_MASK = (1 << 64) - 1


def fill(data: Data, leaf: Callable[[Value], int], place: str) -> bytes | bytearray | memoryview:
    """Give `data`'s bytes with each hole filled by `leaf`'s values; without holes they are the very same object.

    Raises Invalid, naming `place`, if a value meets a set bit of the bytes under its hole.
    """
    if not data.holes:
        return data.bytes
    out = bytearray(data.bytes)
    for i, hole in enumerate(data.holes):
        total = hole.add + sum(leaf(term.value) * term.factor for term in hole.terms)
        value = (total & _MASK) >> hole.shift & ((1 << hole.width) - 1)
        size = hole.width // 8
        bits = int.from_bytes(out[hole.at : hole.at + size], "little")
        if value & bits:
            raise Invalid(f"{place}.holes[{i}]: the value {value:#x} meets set bits of {bits:#x} at byte {hole.at}")
        out[hole.at : hole.at + size] = (value | bits).to_bytes(size, "little")
    return out
