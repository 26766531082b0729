"""Write and read one shape of zip file: stored members, each 64-byte aligned, and nothing that is not accounted for.

Any zip tool opens the files. Reading is strict: names, order, and every byte outside the members' contents must be what
`layout` makes of the members' names, sizes and CRC-32s, so that one changed, missing or added byte is noticed.

Of a file: a local header and the content of each member in turn, then the central directory and its end. A header's
padding is an extra field, so contents follow each other without gaps. Sizes and offsets over 4 GiB use zip64 fields.
"""

from __future__ import annotations

from struct import Struct as Packer

from rig.errors import FormatError

__all__ = ["ALIGN", "Layout", "Member", "comment_of", "difference", "layout", "members_of"]

ALIGN = 64
"""The alignment of each member's first byte in the file."""

_LIMIT = 0xFFFFFFFF
_MAX_COMMENT = 256
_MAX_MEMBERS = 64
_LOCAL = Packer("<4s5H3L2H")  # signature, version, flags, method, time, date, crc32, packed, size, name, extra
_CENTRAL = Packer("<4s6H3L5H2L")  # signature, made by, version, flags, ... external attributes, offset
_END = Packer("<4s4H2LH")  # signature, disk, disk, members, members, directory's size and offset, comment
_END64 = Packer("<4sQ2H2L4Q")
_LOCATOR = Packer("<4sLQL")
_DATE = 0x21  # 1980-01-01, so that equal contents give equal files
_MODE = 0o100644 << 16


class Member:
    """One member: its name, the bytes of its content, their zip CRC-32, and where content and header start."""

    __slots__ = ("crc32", "name", "nbytes", "offset", "start")

    def __init__(self, name: str, nbytes: int, crc32: int = 0) -> None:
        self.name = name
        self.nbytes = nbytes
        self.crc32 = crc32
        self.start = 0
        self.offset = 0


class Layout:
    """The bytes around the contents: a header for each member, the directory after the last, and the file's size."""

    __slots__ = ("directory", "directory_at", "headers", "members", "size")

    def __init__(self, members: tuple[Member, ...], headers: tuple[bytes, ...], at: int, directory: bytes) -> None:
        self.members = members
        self.headers = headers
        self.directory_at = at
        self.directory = directory
        self.size = at + len(directory)


def layout(members: tuple[Member, ...], comment: bytes) -> Layout:
    """Lay members out in order, setting their `start` and `offset`, with `comment` as the file's last bytes."""
    headers = []
    at = 0
    for member in members:
        member.start = at
        headers.append(_header(member))
        member.offset = at + len(headers[-1])
        at = member.offset + member.nbytes
    return Layout(members, tuple(headers), at, _directory(members, at, comment))


def _header(member: Member) -> bytes:
    name = member.name.encode("ascii")
    large = member.nbytes >= _LIMIT
    extra = Packer("<2H2Q").pack(1, 16, member.nbytes, member.nbytes) if large else b""
    pad = -(member.start + _LOCAL.size + len(name) + len(extra) + 6) % ALIGN
    # 0xD935 is the extra field that Android's zipalign pads with: the alignment, then zeros.
    extra += Packer("<3H").pack(0xD935, 2 + pad, ALIGN) + bytes(pad)
    size = _LIMIT if large else member.nbytes
    fixed = _LOCAL.pack(b"PK\3\4", 45 if large else 20, 0, 0, 0, _DATE, member.crc32, size, size, len(name), len(extra))
    return fixed + name + extra


def _directory(members: tuple[Member, ...], at: int, comment: bytes) -> bytes:
    entries = []
    for member in members:
        name = member.name.encode("ascii")
        size = member.nbytes if member.nbytes < _LIMIT else _LIMIT
        start = member.start if member.start < _LIMIT else _LIMIT
        wide = [member.nbytes] * 2 if size == _LIMIT else []
        wide += [member.start] if start == _LIMIT else []
        extra = Packer(f"<2H{len(wide)}Q").pack(1, 8 * len(wide), *wide) if wide else b""
        version = 45 if wide else 20
        entries.append(
            _CENTRAL.pack(
                b"PK\1\2", 3 << 8 | version, version, 0, 0, 0, _DATE, member.crc32, size, size,
                len(name), len(extra), 0, 0, 0, _MODE, start,
            ) + name + extra
        )  # fmt: skip
    body = b"".join(entries)
    count = len(members)
    tail = b""
    if at >= _LIMIT:
        tail = _END64.pack(b"PK\6\6", _END64.size - 12, 3 << 8 | 45, 45, 0, 0, count, count, len(body), at)
        tail += _LOCATOR.pack(b"PK\6\7", 0, at + len(body), 1)
    end = _END.pack(b"PK\5\6", 0, 0, count, count, len(body), min(at, _LIMIT), len(comment))
    return body + tail + end + comment


def comment_of(tail: bytes) -> bytes | None:
    """Return the comment that ends a zip whose last bytes are `tail`, or None where no end record fits."""
    at = len(tail)
    while (at := tail.rfind(b"PK\5\6", 0, at)) >= 0:
        start = at + _END.size
        if start <= len(tail) and start + int.from_bytes(tail[start - 2 : start], "little") == len(tail):
            return tail[start:]
        at += 3
    return None


def members_of(tail: bytes, size: int) -> tuple[Member, ...]:
    """Read the directory of a file of `size` bytes that ends with `tail`, which must hold the whole directory.

    Offsets are not read but follow from order and sizes: compare what `layout` makes of the members with the file.
    `FormatError`, with the byte: records that run into each other or past the end, or names that are not ASCII.
    """
    base = size - len(tail)
    comment = comment_of(tail)
    if comment is None:
        raise FormatError("there is no end record: the file was cut, or has bytes after its end", f"byte {size}")
    end = len(tail) - len(comment) - _END.size
    _, _, _, count, _, length, at, _ = _END.unpack_from(tail, end)
    if at == _LIMIT:
        wide = end - _LOCATOR.size - _END64.size
        if wide < 0 or tail[wide : wide + 4] != b"PK\6\6":
            raise FormatError("the zip64 end record is missing", f"byte {base + end}")
        at = _END64.unpack_from(tail, wide)[-1]
    position = at - base
    if position < 0 or position + length > end or count > _MAX_MEMBERS:
        raise FormatError(
            f"the end record states {count} members listed in {length} bytes at byte {at}, which cannot be",
            f"byte {base + end}",
        )
    members = []
    for _ in range(count):
        member, position = _entry(tail, position, end, base)
        members.append(member)
    return tuple(members)


def _entry(tail: bytes, position: int, end: int, base: int) -> tuple[Member, int]:
    where = f"byte {base + position} (directory)"
    if position + _CENTRAL.size > end or tail[position : position + 4] != b"PK\1\2":
        raise FormatError("an entry of the directory is damaged", where)
    fields = _CENTRAL.unpack_from(tail, position)
    crc32, size, names, extras = fields[7], fields[9], fields[10], fields[11]
    name_at = position + _CENTRAL.size
    extra_at = name_at + names
    after = extra_at + extras
    if after > end:
        raise FormatError("an entry of the directory is damaged", where)
    if size == _LIMIT:
        if extras < 20:
            raise FormatError("a size over 4 GiB is missing from the directory", where)
        size = int.from_bytes(tail[extra_at + 4 : extra_at + 12], "little")
    member = Member(tail[name_at:extra_at].decode("ascii", "replace"), size, crc32)
    if not member.name.isascii():
        raise FormatError(f"the name {member.name!r} is not ASCII", where)
    return member, after


def difference(want: bytes, got: bytes) -> int:
    """Return the index of the first byte in which two strings differ, or -1."""
    if want == got:
        return -1
    return next((i for i, (a, b) in enumerate(zip(want, got, strict=False)) if a != b), min(len(want), len(got)))
