"""Write and parse the header of a safetensors file whose tensors are 64-byte aligned.

A file is 8 bytes (the header's length, little-endian), the header (JSON: name to dtype, shape and data_offsets, padded
with spaces to a multiple of 64 bytes), then the data. The format allows no gaps, so the bytes that align a tensor are a
tensor of their own: uint8, all zero, named ``.pad.`` and a number.
"""

from __future__ import annotations

from rig import _core
from rig.errors import FormatError, Invalid
from rig.model.arrays import DTYPES
from rig.model.arrays import nbytes as nbytes_of
from rig.model.record import Record, of_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["ALIGN", "PAD", "Entry", "header", "header_size", "parse"]

ALIGN = 64
"""The alignment of each tensor's first byte in the file."""
PAD = ".pad."
"""What the names of the tensors that only fill a gap begin with; no other tensor's name may begin so."""

_MAX_HEADER = 100_000_000  # the limit of the format's own library
_NAMES = {d.tensor: d.name for d in DTYPES.values()}


class Entry(Record):
    """One tensor: its element type's name, and the first and last byte (exclusive) in the data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class _Json(Record):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


def header(tensors: Sequence[tuple[str, str, tuple[int, ...], int]]) -> tuple[bytes, list[Entry]]:
    """Lay out tensors, given as (name, dtype, shape, nbytes), in order.

    Return the bytes before the data and the entries in the order of their data, pads included.
    `Invalid`: a name that is there twice or kept for pads, or bytes that are not what dtype and shape need.
    """
    entries: list[Entry] = []
    names: set[str] = set()
    at = 0
    for name, kind, shape, size in tensors:
        if name in names or name.startswith(PAD) or name == "__metadata__":
            raise Invalid(f"weight {name!r}: the name is {'there twice' if name in names else 'not allowed'}")
        names.add(name)
        if size != nbytes_of(kind, shape):
            raise Invalid(f"weight {name!r}: {size} bytes, but {kind} of shape {shape} has {nbytes_of(kind, shape)}")
        gap = -at % ALIGN
        if gap:
            entries.append(Entry(f"{PAD}{len(entries)}", "uint8", (gap,), at, at + gap))
        entries.append(Entry(name, kind, shape, at + gap, at + gap + size))
        at += gap + size
    table = {e.name: _Json(DTYPES[e.dtype].tensor, e.shape, (e.begin, e.end)).to_json() for e in entries}
    from msgspec import json

    body = json.encode(table)
    body += b" " * (-(8 + len(body)) % ALIGN)
    return len(body).to_bytes(8, "little") + body, entries


def parse(head: bytes | bytearray | memoryview, nbytes: int, where: str) -> list[Entry]:
    """Parse the bytes before the data of a file of `nbytes` bytes in all; return the entries in order of their data.

    `FormatError`, starting with `where`: the header is no header, or the data is not covered exactly, without gaps.
    """
    try:
        table = _core.read_json(memoryview(head)[8:])
        if not isinstance(table, dict):
            raise FormatError("it is no object")
        found = {name: of_json(_Json, item, name) for name, item in table.items()}
    except FormatError as error:
        raise FormatError(f"the header of the weights is damaged: {error}", where) from None
    entries = []
    for name, item in found.items():
        kind = _NAMES.get(item.dtype)
        begin, end = item.data_offsets
        if kind is None:
            raise FormatError(f"tensor {name!r} has the unknown dtype {item.dtype!r}", where)
        if any(extent < 0 for extent in item.shape) or end - begin != nbytes_of(kind, item.shape):
            raise FormatError(f"tensor {name!r}: {end - begin} bytes do not hold {kind} of shape {item.shape}", where)
        entries.append(Entry(name, kind, item.shape, begin, end))
    entries.sort(key=lambda e: (e.begin, e.end))
    at = 0
    for entry in entries:
        if entry.begin != at:
            raise FormatError(f"tensor {entry.name!r} starts at byte {entry.begin} of the data, expected {at}", where)
        at = entry.end
    if at != nbytes - len(head):
        raise FormatError(f"the tensors cover {at} bytes, but there are {nbytes - len(head)}", where)
    return entries


def header_size(start: bytes, nbytes: int, where: str) -> int:
    """Return the size of everything before the data, from a file's first 8 bytes and its size."""
    size = int.from_bytes(start[:8], "little") + 8
    if len(start) < 8 or size > nbytes or size > _MAX_HEADER:
        raise FormatError(f"the weights' header states {size} bytes, but there are {nbytes}", where)
    return size
