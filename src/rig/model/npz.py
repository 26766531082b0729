"""Read .npz files without NumPy: zips of .npy files, stored or deflated."""

from __future__ import annotations

import os
from struct import Struct as Packer
from struct import error as StructError
from typing import TYPE_CHECKING

from rig.errors import FormatError

if TYPE_CHECKING:
    from typing import BinaryIO

__all__ = ["MAGIC", "Npz"]

MAGIC = (b"PK\3\4", b"PK\5\6")
"""How zip files begin, one with members and one without."""

_LIMIT = 0xFFFFFFFF
_TAIL = (1 << 16) + 22
_CENTRAL = Packer("<4s6H3L5H2L")
_END = Packer("<4s4H2LH")
_END64 = Packer("<4sQ2H2L4Q")
_LOCAL = Packer("<4s5H3L2H")
_STORED, _DEFLATED = 0, 8


class _Member:
    __slots__ = ("at", "crc32", "method", "packed", "secret", "size")

    def __init__(self, method: int, secret: bool, crc32: int, packed: int, size: int, at: int) -> None:
        self.method = method
        self.secret = secret
        self.crc32 = crc32
        self.packed = packed
        self.size = size
        self.at = at


class Npz:
    """The arrays of an .npz file: `names`, and `read` for the .npy file of each."""

    def __init__(self, path: str) -> None:
        """Read the directory of the file; `FormatError` if it is no .npz file, OSError from the system."""
        self.path = path
        try:
            with open(path, "rb") as file:
                self._members = _directory(file)
        except (StructError, IndexError):
            raise FormatError("no .npz file, or one that was cut: its directory cannot be read", path) from None
        self.names = tuple(name.removesuffix(".npy") for name in self._members)

    def read(self, name: str) -> bytes:
        """Return the .npy file of the array `name`, unpacked and checked; `FormatError` if it is damaged."""
        from zlib import crc32, decompressobj, error

        member = self._members.get(f"{name}.npy") or self._members[name]
        where = f"{self.path}: {name}"
        if member.secret or member.method not in (_STORED, _DEFLATED):
            how = "encrypted" if member.secret else f"packed by method {member.method}"
            raise FormatError(f"it is {how}; stored and deflated members can be read", where)
        with open(self.path, "rb") as file:
            file.seek(member.at)
            head = file.read(_LOCAL.size)
            if head[:4] != MAGIC[0] or len(head) < _LOCAL.size:
                raise FormatError("its header is not where the directory says", where)
            fields = _LOCAL.unpack(head)
            file.seek(fields[9] + fields[10], os.SEEK_CUR)
            data = file.read(member.packed)
        if member.method == _DEFLATED:
            unpack = decompressobj(-15)
            try:
                data = unpack.decompress(data, member.size + 1)
            except error as fault:
                raise FormatError(f"it cannot be unpacked: {fault}", where) from None
        if len(data) != member.size or crc32(data) != member.crc32:
            raise FormatError(f"the checksum is wrong, or not {member.size} bytes are there: it is damaged", where)
        return data


def _directory(file: BinaryIO) -> dict[str, _Member]:
    """Find the end record, the directory before it, and each member in that."""
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - _TAIL))
    base = file.tell()
    tail = file.read()
    end = tail.rfind(b"PK\5\6")
    if end < 0:
        raise IndexError
    _, _, _, _, count, length, at, _ = _END.unpack_from(tail, end)
    wide = end - 20 - _END64.size
    if (at == _LIMIT or count == 0xFFFF) and wide >= 0 and tail[wide : wide + 4] == b"PK\6\6":
        *_, count, length, at = _END64.unpack_from(tail, wide)
    if at + length > base + end:
        raise IndexError
    file.seek(at)
    data = file.read(length)
    members: dict[str, _Member] = {}
    position = 0
    for _ in range(count):
        f = _CENTRAL.unpack_from(data, position)
        name_at = position + _CENTRAL.size
        extra_at = name_at + f[10]
        name = data[name_at:extra_at].decode("utf-8" if f[3] & 0x800 else "cp437", "replace")
        size, packed, start = _sizes(data[extra_at : extra_at + f[11]], f[9], f[8], f[16])
        members[name] = _Member(f[4], bool(f[3] & 1), f[7], packed, size, start)
        position = extra_at + f[11] + f[12]
    return members


def _sizes(extra: bytes, size: int, packed: int, start: int) -> tuple[int, int, int]:
    """Replace what does not fit 32 bits by what the zip64 field holds, in that order."""
    at = 0
    while at + 4 <= len(extra):
        kind = int.from_bytes(extra[at : at + 2], "little")
        length = int.from_bytes(extra[at + 2 : at + 4], "little")
        if kind == 1:
            values = [int.from_bytes(extra[i : i + 8], "little") for i in range(at + 4, at + 4 + length, 8)]
            if size == _LIMIT:
                size = values.pop(0)
            if packed == _LIMIT:
                packed = values.pop(0)
            if start == _LIMIT:
                start = values.pop(0)
        at += 4 + length
    return size, packed, start
