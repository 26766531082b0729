"""Filling the holes of bytes that stay as they are after load: images and the first bytes of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rig.errors import Invalid, Refused
from rig.program.description import Address, Entry, Fixed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rig._core import Image
    from rig.program.description import Data, Value

__all__ = ["fill", "filled"]

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


def filled(
    data: Data, place: str, images: Sequence[Image], address: Callable[[int, int], int] | None
) -> bytes | bytearray | memoryview:
    """Give `data`'s bytes with its holes filled from the loaded images, and by `address` of a memory and a device.

    Raises Refused, naming `place`, for what no device has; else as `fill`.
    """

    def leaf(value: Value) -> int:
        if isinstance(value, Entry):
            return images[value.image].resolve(value.name).entry
        if isinstance(value, Address) and address is not None:
            return address(value.memory, value.on)
        if isinstance(value, Fixed):
            return value.value
        raise Refused(f"{place}: no device of this version has what {value!r} names: handles and rails")

    return fill(data, leaf, place)
