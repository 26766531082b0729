"""What images say about themselves, read from their bytes without loading them: functions, sizes, what they need.

The loader trusts none of this; it checks an image itself.
"""

from __future__ import annotations

from struct import Struct as Packer
from struct import error as StructError
from typing import TYPE_CHECKING, NamedTuple

from rig import _core
from rig.errors import FormatError

if TYPE_CHECKING:
    from rig.program.description import BlobLike

__all__ = ["Look", "look"]

FLAT = b"\x93RIGIMG\n"
_FLAT_VERSION = 1
_HEADER = Packer("<8sIIQIIIIIII12s")
_RECORD = Packer("<IIQ")
_ELF = b"\x7fELF\2\1"
_SECTION = Packer("<2I4Q2I2Q")
_SYMBOL = Packer("<IBBHQQ")
_DYNSYM = 11
_STUB = 16


class Look(NamedTuple):
    """An image: its kind, the arch that it needs ("" if it does not say), and its functions' sizes in bytes by name.

    `code` is the bytes of code and of the data that belongs to it. A size includes what aligns the next function.
    """

    kind: str
    requires: str
    code: int
    functions: dict[str, int]


def look(binary: BlobLike) -> Look:
    """Read what an image says about itself; `FormatError`, with the byte, for a flat one that is damaged."""
    view = memoryview(binary)
    if bytes(view[:8]) == FLAT:
        return _flat(view)
    if bytes(view[:6]) == _ELF:
        try:
            return Look("shared library", "", len(view), _exported(view))
        except (StructError, IndexError, ValueError):
            raise FormatError("the section headers of the shared library lead nowhere", "byte 40") from None
    return Look("of another kind", "", len(view), {})


def _flat(view: memoryview) -> Look:
    size = len(view)
    if size < _HEADER.size:
        raise FormatError(f"the header of a flat image has {_HEADER.size} bytes, {size} are here", f"byte {size}")
    _, version, start, body, count, imports, text, at, length, _, crc32c, _ = _HEADER.unpack_from(view)
    if version != _FLAT_VERSION:
        raise FormatError(f"version {version} of flat images; only version {_FLAT_VERSION} is read here", "byte 8")
    strings = _HEADER.size + (count + imports) * _RECORD.size
    if start + body != size or strings + text > start or at + length > text:
        raise FormatError(f"the parts that the header states do not make {size} bytes", "byte 12")
    found = _core.crc32c(view[_HEADER.size :])
    if found != crc32c:
        raise FormatError(f"the checksum is {found:08x}, expected {crc32c:08x}: the image is damaged", "byte 48")
    table = bytes(view[strings : strings + text])
    records = [_RECORD.unpack_from(view, _HEADER.size + i * _RECORD.size) for i in range(count + imports)]
    # Behind the code come the stubs of imported functions, each with its slot as its last eight bytes.
    end = min([body, *(offset + 8 - _STUB for _, _, offset in records[count:])])
    starts = sorted(offset for _, _, offset in records[:count])
    after = dict(zip(starts, [*starts[1:], end], strict=True))
    sizes = {table[name : name + n].decode("utf-8", "replace"): after[o] - o for name, n, o in records[:count]}
    return Look("flat", table[at : at + length].decode("utf-8", "replace"), body, sizes)


def _exported(view: memoryview) -> dict[str, int]:
    """Return the sizes of a shared library's defined functions, from its table of dynamic symbols."""
    (at,) = Packer("<Q").unpack_from(view, 40)
    each, count = Packer("<2H").unpack_from(view, 58)
    sections = [_SECTION.unpack_from(view, at + i * each) for i in range(count)]
    sizes: dict[str, int] = {}
    for section in sections:
        if section[1] != _DYNSYM:
            continue
        names = sections[section[6]]
        table = bytes(view[names[4] : names[4] + names[5]])
        for i in range(section[5] // _SYMBOL.size):
            name, info, _, defined, _, size = _SYMBOL.unpack_from(view, section[4] + i * _SYMBOL.size)
            if defined and info & 15 == 2:
                sizes[table[name : table.index(b"\0", name)].decode("utf-8", "replace")] = size
    return sizes
