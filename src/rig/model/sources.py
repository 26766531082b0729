"""Where an artifact's bytes come from: a file, a pipe, or memory."""

from __future__ import annotations

import os
import stat

from rig import _core
from rig.errors import FormatError, Invalid, Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

__all__ = ["Disk", "Mapped", "Memory", "Source", "mapped", "opened"]

_MAGIC = b"PK\3\4"
_KINDS = (
    (b"\x89PNG", "a PNG image"), (b"\xff\xd8\xff", "a JPEG image"), (b"GIF8", "a GIF image"),
    (b"\x7fELF", "an ELF file"), (b"%PDF", "a PDF document"), (b"\x1f\x8b", "a gzip file"),
    (b"\x93NUMPY", "a NumPy array"), (b"GGUF", "a GGUF file"),
    (b"\x80\2", "a pickle"), (b"\x80\3", "a pickle"), (b"\x80\4", "a pickle"), (b"\x80\5", "a pickle"),
    (b"\x89HDF", "an HDF5 file"), (b"PK\5\6", "an empty zip"), (b"#!", "a script"),
)  # fmt: skip


_NO_FILES = (
    (stat.S_ISFIFO, "a pipe"), (stat.S_ISDIR, "a folder"), (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"), (stat.S_ISBLK, "a device"),
)  # fmt: skip


class Source:
    """Bytes with a length: `size` of them, and `label`, what messages call them ("" if they have no name)."""

    __slots__ = ("label", "size")

    def __init__(self, size: int, label: str) -> None:
        self.size = size
        self.label = label

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return `nbytes` bytes from byte `offset`; `FormatError` if there are fewer."""
        raise NotImplementedError

    def read_into(self, offset: int, view: memoryview) -> int:
        """Fill `view` from byte `offset` and return its CRC-32C; `FormatError` if there are fewer bytes."""
        raise NotImplementedError

    def mapped(self, offset: int, nbytes: int) -> memoryview | None:
        """Return bytes where they lie, which stay there as long as the view does; None if they can't be used so."""
        return None

    def close(self) -> None:
        """Give the bytes back; closing twice does nothing."""

    def error(self, message: str, where: str) -> FormatError:
        """Make an error about these bytes."""
        return FormatError(message, f"{self.label}: {where}" if self.label else where)

    def named(self, error: FormatError) -> FormatError:
        """Return `error` with the label in front, unless it is there already."""
        if not self.label or error.where.startswith(self.label):
            return error
        text = str(error)
        message = text[len(error.where) + 2 :] if error.where else text
        return self.error(message, error.where) if error.where else FormatError(message, self.label)

    def damaged(self, where: str, found: int, expected: int) -> FormatError:
        """Make the error for bytes whose checksum is wrong."""
        return self.error(f"the checksum is {found:08x}, expected {expected:08x}: the file is damaged", where)

    def unknown(self, reason: str) -> FormatError:
        """Make the error for bytes that are something else."""
        return FormatError(f"not a rig artifact: {reason}", self.label)

    def recognise(self) -> None:
        """Raise `FormatError` unless the bytes begin as an artifact does, saying what they look like."""
        start = self.read(0, min(self.size, 512))
        if not start:
            raise self.unknown("there are no bytes")
        if start.startswith(_MAGIC):
            return
        kind = next((name for magic, name in _KINDS if start.startswith(magic)), "")
        if not kind:
            text = all(byte >= 32 or byte in b"\t\n\r\f" for byte in start)
            kind = "text" if text else f"unknown data that starts with {start[:4].hex(' ')}"
        raise self.unknown(f"it looks like {kind}")


class Disk(Source):
    """A regular file, open until `close` or until nothing refers to this."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int, size: int, label: str) -> None:
        super().__init__(size, label)
        self._fd = fd

    def __del__(self) -> None:
        """Close the file if nobody did."""
        self.close()

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return bytes of the file."""
        data = os.pread(self._open(), nbytes, offset)
        if len(data) != nbytes:
            raise self.error(f"{nbytes} bytes are expected, {len(data)} are there: the file was cut", f"byte {offset}")
        return data

    def read_into(self, offset: int, view: memoryview) -> int:
        """Fill `view` straight from the file."""
        try:
            return _core.read_into(self._open(), offset, view)
        except FormatError as error:
            raise self.named(error) from None

    def close(self) -> None:
        """Close the file."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def _open(self) -> int:
        if self._fd < 0:
            raise Invalid(f"{self.label}: the artifact is closed")
        return self._fd


class Memory(Source):
    """Bytes that are in memory already."""

    __slots__ = ("_view",)

    def __init__(self, view: memoryview, label: str = "") -> None:
        super().__init__(view.nbytes, label)
        self._view: memoryview | None = view

    def read(self, offset: int, nbytes: int) -> bytes:
        """Return a copy of bytes."""
        data = bytes(self._open()[offset : offset + nbytes])
        if len(data) != nbytes:
            raise self.error(f"{nbytes} bytes are expected, {len(data)} are there", f"byte {offset}")
        return data

    def read_into(self, offset: int, view: memoryview) -> int:
        """Copy into `view`, and check what was copied, not what it was copied from."""
        data = self._open()[offset : offset + view.nbytes]
        if data.nbytes != view.nbytes:
            raise self.error(f"{view.nbytes} bytes are expected, {data.nbytes} are there", f"byte {offset}")
        view[:] = data
        return _core.crc32c(view)

    def close(self) -> None:
        """Let go of the memory."""
        self._view = None

    def _open(self) -> memoryview:
        if self._view is None:
            raise Invalid("the artifact is closed")
        return self._view


class Mapped(Memory):
    """A regular file, mapped read-only and private, until nothing refers to this or to one of its views."""

    __slots__ = ()

    def mapped(self, offset: int, nbytes: int) -> memoryview | None:
        """Return bytes of the mapping."""
        return self._open()[offset : offset + nbytes] if nbytes else None


def mapped(source: Any) -> Source:
    """Map the file of a path. `Refused`: bytes, and a path of what is no regular file."""
    if not isinstance(source, (str, os.PathLike)):
        raise Refused(f"mmap=True maps a file: give its path, not {type(source).__name__}")
    path = os.fspath(source)
    label = os.fsdecode(path)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # of a pipe without a writer, do not wait for one
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            kind = next((name for is_kind, name in _NO_FILES if is_kind(status.st_mode)), "no regular file")
            raise Refused(f"{label}: mmap=True maps a regular file, and this is {kind}")
        if not status.st_size:
            return Memory(memoryview(b""), label)
        from mmap import MAP_PRIVATE, PROT_READ, mmap

        return Mapped(memoryview(mmap(fd, status.st_size, flags=MAP_PRIVATE, prot=PROT_READ)), label)
    finally:
        os.close(fd)


def opened(source: Any) -> Source:
    """Open `source`: a path (str or PathLike), or any object with the buffer protocol, which stands for its bytes.

    What is no regular file (a pipe, say) is read whole. `Invalid`: `source` is neither; `OSError` from the system.
    """
    if isinstance(source, (str, os.PathLike)):
        return _opened_path(os.fspath(source))
    try:
        view = memoryview(source)
    except TypeError:
        raise Invalid(f"a model is opened from a path or from bytes, not from {type(source).__name__}") from None
    if not view.c_contiguous:
        raise Invalid("the bytes of a model must be contiguous")
    return Memory(view.cast("B") if view.nbytes else memoryview(b""))


def _opened_path(path: str | bytes) -> Source:
    label = os.fsdecode(path)
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if stat.S_ISREG(status.st_mode):
            return Disk(fd, status.st_size, label)
        data = _drained(fd, path)
    except BaseException:
        os.close(fd)
        raise
    os.close(fd)
    return Memory(memoryview(data), label)


def _drained(fd: int, path: str | bytes) -> bytearray:
    """Read a descriptor to its end, or until it is plain that it holds no artifact."""
    data = bytearray()
    try:
        while chunk := os.read(fd, 1 << 20):
            data += chunk
            if len(data) >= 512 and not data.startswith(_MAGIC):
                break  # such as /dev/zero, which has no end
    except IsADirectoryError as error:
        raise IsADirectoryError(error.errno, error.strerror, path) from None
    return data
