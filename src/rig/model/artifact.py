"""Keep a model in one file: a program's bytes, its signature, and its weights.

The file is a zip of stored, 64-byte aligned members, in this order:

- ``signature.json``: `rig.model.signature`;
- ``program.rig``: the program's bytes, where the initial data of each weight is left empty;
- ``weights.safetensors``: the weights, read straight into the memory that a load makes;
- ``manifest.json``: which memory of the program each weight fills, the CRC-32C of everything above, and notes.

The zip's comment holds the version of this format and the manifest's CRC-32C. Every byte counts: what is outside the
members must be exactly what their names and sizes give (`rig.model.zip`), and what is inside is covered by checksums.
"""

from __future__ import annotations

import os

from rig import _core
from rig.errors import FormatError, Invalid
from rig.model import safetensors
from rig.model import signature as signatures
from rig.model import zip as archive
from rig.model.notes import Notes
from rig.model.record import Record, of_json
from rig.model.sources import mapped, opened
from rig.program.packed import Packed, described

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType
    from typing import Any

    from rig.model.signature import Signature
    from rig.model.sources import Source
    from rig.program.description import Alloc, Program, Rail

    Progress = Callable[[int, int], None]
    Weights = Sequence[tuple["Weight", Any]]

__all__ = ["FORMAT", "Artifact", "Weight", "read", "save"]

FORMAT = signatures.FORMAT
"""The version of the file's format that this rig reads and writes."""

_NAMES = ("signature.json", "program.rig", "weights.safetensors", "manifest.json")
_COMMENT = b"rig artifact format %d manifest crc32c %08x"
_MAX_TAIL = 4096
_CHUNK = 1 << 20
_PIECE = 64 << 20


class Weight(Record):
    """A weight's place: its name, the memory of the program that it fills, its element type and shape."""

    name: str
    memory: int
    dtype: str
    shape: tuple[int, ...]


class _Sum(Record):
    name: str
    memory: int
    crc32c: int


class _Manifest(Record):
    format: int
    signature: int
    program: int
    header: int
    weights: tuple[_Sum, ...]


class _Reader:
    """Reads weights from a source and reports progress."""

    __slots__ = ("_done", "_progress", "checked", "source", "total")

    def __init__(self, source: Source, progress: Progress | None, checked: bool) -> None:
        self.source = source
        self.total = 0
        self.checked = checked
        self._done = 0
        self._progress = progress

    def read_into(self, offset: int, view: memoryview) -> int:
        """Fill `view` from byte `offset`, report progress, and return the CRC-32C."""
        if self._progress is None:
            return self.source.read_into(offset, view)
        crc32c = 0
        for at in range(0, len(view), _PIECE):
            piece = view[at : at + _PIECE]
            found = self.source.read_into(offset + at, piece)
            crc32c = _core.crc32c(piece, crc32c) if at else found
            self._done += len(piece)
            self._progress(self._done, self.total)
        return crc32c

    def sum(self, view: memoryview) -> int:
        """Return the CRC-32C of bytes that are in memory already, and report progress."""
        crc32c = 0
        for at in range(0, len(view), _PIECE):
            piece = view[at : at + _PIECE]
            crc32c = _core.crc32c(piece, crc32c)
            self._done += len(piece)
            if self._progress is not None:
                self._progress(self._done, self.total)
        return crc32c


class Initial:
    """The bytes of one weight in an artifact, which stays open as long as this lives."""

    __slots__ = ("_crc32c", "_offset", "_pad", "_reader", "name", "nbytes")

    def __init__(self, reader: _Reader, name: str, offset: int, nbytes: int, pad: int, crc32c: int) -> None:
        self._reader = reader
        self._offset = offset
        self._pad = pad
        self._crc32c = crc32c
        self.name = name
        self.nbytes = nbytes

    def read_into(self, view: memoryview) -> None:
        """Read the weight into `view`, writable and of exactly `nbytes` bytes, and check it.

        `FormatError` naming the weight if a byte was changed; what `view` then holds is not the weight.
        """
        self._check(self._reader.read_into(self._offset, view))

    def check(self) -> None:
        """Read the weight piece by piece and check it, as `read_into` does, without room for the whole."""
        scratch = memoryview(bytearray(min(self.nbytes, _CHUNK)))
        crc32c = 0
        for at in range(0, self.nbytes, _CHUNK):
            piece = scratch[: min(_CHUNK, self.nbytes - at)]
            found = self._reader.read_into(self._offset + at, piece)
            crc32c = _core.crc32c(piece, crc32c) if at else found
        self._check(crc32c)

    def _check(self, found: int) -> None:
        source = self._reader.source
        where = f"byte {self._offset} of {self.nbytes} (weight {self.name!r})"
        if found != self._crc32c:
            raise source.damaged(where, found, self._crc32c)
        if self._pad and source.read(self._offset + self.nbytes, self._pad).strip(b"\0"):
            raise source.error("the bytes after the weight are not zero: the file is damaged", where)


class InPlace(Initial):
    """The bytes of one weight in a mapped artifact."""

    __slots__ = ()

    def in_place(self) -> memoryview | None:
        """Return the weight where it lies, checked unless that was not asked for; None if it has no bytes.

        `FormatError` as for `read_into`. The view keeps the mapping, also after the artifact is closed.
        """
        view = self._reader.source.mapped(self._offset, self.nbytes)
        if view is not None and self._reader.checked:
            self._check(self._reader.sum(view))
        return view


class Artifact:
    """An open artifact: its signature, its program, and `initial`, which maps memory indices to weights' bytes.

    `weights` says what these are, in the file's order; `members` are the zip's.
    `to_load` is the program as `rig.program.load` takes it soonest, and `initial` goes with it. `close` (or leaving the
    context) gives the file back; a loaded program does not need it.
    """

    def __init__(
        self, source: Any, progress: Progress | None = None, *, mmap: bool = False, verify: bool = True
    ) -> None:
        """Open and check everything but the weights' data, which is checked when it is read.

        `source` is a path, or bytes in memory: any object with the buffer protocol. `progress` is called with the bytes
        of weights that were read and their total; an exception it raises ends the read and passes unchanged. With
        `mmap` a path's file is mapped, and weights can be used where they lie; with `verify` false they are then not
        read before they are used, and not checked.

        `FormatError`: no artifact, another version, or damage, with the place. `Refused`: what cannot be mapped.
        """
        self.source: Source = mapped(source) if mmap else opened(source)
        self.signature: Signature
        self.to_load: Program | Packed
        self.members: tuple[archive.Member, ...] = ()
        self._notes: object = None
        self.weights: tuple[Weight, ...] = ()
        self.initial: dict[int, Initial] = {}
        self._reader = _Reader(self.source, progress, verify or not mmap)
        self._initial = InPlace if mmap else Initial
        try:
            self._open()
        except FormatError as error:
            self.source.close()
            raise self.source.named(error) from None
        except BaseException:
            self.source.close()
            raise

    def __enter__(self) -> Artifact:
        """Return the artifact itself."""
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close the artifact."""
        self.close()

    def close(self) -> None:
        """Give the file back; the weights cannot be read any more. Closing twice does nothing."""
        self.source.close()

    def _open(self) -> None:
        members, crc32c = _members(self.source)
        manifest = self._manifest(members[3], crc32c)
        self.signature = signatures.of_bytes(self._member(members[0], manifest.signature))
        self.to_load = _program(self._member(members[1], manifest.program))
        self._weights(members[2], manifest)
        self.members = members
        try:
            signatures.check(self.signature, self.to_load)
        except Invalid as error:
            raise FormatError(str(error), "signature.json") from None

    @property
    def program(self) -> Program:
        """The program's description, decoded when it is first asked for."""
        return described(self.to_load)

    @property
    def notes(self) -> Notes | None:
        """A compiler's notes, or None. `FormatError` if they are none: what loads a model does not look at them."""
        found = self._notes
        if found is None or isinstance(found, Notes):
            return found
        try:
            self._notes = found = of_json(Notes, found, "notes")
        except FormatError as error:
            raise self.source.named(FormatError(str(error), _NAMES[3])) from None
        return found

    def _member(self, member: archive.Member, crc32c: int) -> memoryview:
        data = memoryview(bytearray(member.nbytes))
        found = self.source.read_into(member.offset, data)
        if found != crc32c:
            raise self.source.damaged(f"byte {member.offset} of {member.nbytes} ({member.name})", found, crc32c)
        return data.toreadonly()

    def _manifest(self, member: archive.Member, crc32c: int) -> _Manifest:
        data = self._member(member, crc32c)
        try:
            read = _core.read_json(data)
            if isinstance(read, dict):
                self._notes = read.pop("notes", None)
            return of_json(_Manifest, read)
        except FormatError as error:
            raise FormatError(str(error), member.name) from None

    def _weights(self, member: archive.Member, manifest: _Manifest) -> None:
        where = f"byte {member.offset} ({member.name})"
        start = self.source.read(member.offset, min(8, member.nbytes))
        head = memoryview(bytearray(safetensors.header_size(start, member.nbytes, where)))
        found = self.source.read_into(member.offset, head)
        if found != manifest.header:
            raise self.source.damaged(f"{where}, the header", found, manifest.header)
        entries = safetensors.parse(head, member.nbytes, where)
        tensors = _with_pads(entries, where)
        memory = self.to_load.memory
        weights = []
        for item in manifest.weights:
            entry, pad = tensors.pop(item.name, (None, 0))
            if entry is None:
                raise FormatError(f"weight {item.name!r} is not among the tensors", where)
            size = entry.end - entry.begin
            if not 0 <= item.memory < len(memory) or item.memory in self.initial:
                raise FormatError(f"weight {item.name!r} fills memory[{item.memory}], which cannot be", where)
            if reason := _unfit(memory[item.memory], size):
                raise FormatError(f"weight {item.name!r} fills memory[{item.memory}]: {reason}", where)
            at = member.offset + len(head) + entry.begin
            self.initial[item.memory] = self._initial(self._reader, item.name, at, size, pad, item.crc32c)
            self._reader.total += size
            weights.append(Weight(item.name, item.memory, entry.dtype, entry.shape))
        self.weights = tuple(weights)
        if tensors:
            raise FormatError(f"tensor {next(iter(tensors))!r} belongs to no memory of the program", where)


def read(source: Any) -> tuple[Program, Signature, dict[int, Initial]]:
    """Open an artifact as `Artifact` does; the file closes when the last weight's `Initial` is gone."""
    artifact = Artifact(source)
    return artifact.program, artifact.signature, artifact.initial


def _program(data: memoryview) -> Program | Packed:
    packed = Packed.read(data)
    if packed is not None:
        return packed
    from rig.program.codec import of_bytes

    return of_bytes(data)


def _members(source: Source) -> tuple[tuple[archive.Member, ...], int]:
    """Check all bytes that belong to no member; return the members and the manifest's checksum."""
    size = source.size
    source.recognise()
    tail = source.read(max(0, size - _MAX_TAIL), min(size, _MAX_TAIL))
    comment = archive.comment_of(tail)
    if comment is None:
        raise FormatError("there is no end record: the file was cut, or has bytes after its end", f"byte {size}")
    words = comment.split(b" ")
    if words[:3] != [b"rig", b"artifact", b"format"] or len(words) < 4 or not words[3].isdigit():
        raise source.unknown("it is a zip of another kind, or its last bytes are damaged")
    version = int(words[3][:9])
    if version != FORMAT:
        raise FormatError(signatures.version_message(version), f"byte {size - len(comment)}")
    members = archive.members_of(tail, size)
    names = tuple(member.name for member in members)
    if names != _NAMES:
        raise FormatError(f"the members are {', '.join(names)}; they must be {', '.join(_NAMES)}", "directory")
    try:
        crc32c = int(words[-1], 16)
    except ValueError:
        crc32c = 0
    plan = archive.layout(members, _COMMENT % (version, crc32c))
    if plan.size != size:
        raise FormatError(f"by its directory the file ends at byte {plan.size}, but it has {size} bytes", "directory")
    parts = [(m.start, header, f"header of {m.name}") for m, header in zip(plan.members, plan.headers, strict=True)]
    for at, want, here in [*parts, (plan.directory_at, plan.directory, "directory")]:
        bad = archive.difference(want, source.read(at, len(want)))
        if bad >= 0:
            raise FormatError("a byte is not what belongs there: the file is damaged", f"byte {at + bad} ({here})")
    return members, crc32c


def _with_pads(entries: list[safetensors.Entry], where: str) -> dict[str, tuple[safetensors.Entry, int]]:
    """Map the tensors' names to their entries and the number of pad bytes after each."""
    tensors: dict[str, tuple[safetensors.Entry, int]] = {}
    last: safetensors.Entry | None = None
    for entry in entries:
        if not entry.name.startswith(safetensors.PAD):
            last = entry
            tensors[entry.name] = (entry, 0)
        elif last is None:
            raise FormatError(f"{entry.name!r} pads nothing", where)
        else:
            tensors[last.name] = (last, entry.end - entry.begin)
            last = None
    return tensors


def _unfit(memory: Alloc | Rail, nbytes: int) -> str:
    """Say why a weight of `nbytes` bytes cannot fill `memory` of an artifact's program, or return an empty string."""
    if not hasattr(memory, "init"):  # a rail
        return "it is no memory that the program makes"
    alloc: Alloc = memory  # type: ignore[assignment]  # or a row with its fields
    if alloc.nbytes != nbytes:
        return f"it has {alloc.nbytes} bytes, the weight {nbytes}"
    return "it has initial data already" if len(alloc.init.bytes) or alloc.init.holes else ""


def save(
    path: str | bytes | os.PathLike[Any],
    program: Program,
    signature: Signature,
    weights: Weights = (),
    *,
    notes: Notes | None = None,
) -> None:
    """Write an artifact to `path`, whole or not at all: on failure an old file there stays as it was.

    `weights` are pairs of a `Weight` and its bytes (any C-contiguous buffer of exactly the size), which are written
    without a second copy. The memory that a weight fills may hold the same bytes as its initial data; they are left
    out of the program's bytes. `notes` are for people who look at the file. Equal arguments give equal files.

    `Invalid`: the signature does not fit the program, a weight does not fit its memory, a name or memory is there
    twice, or `path` is there and no regular file.
    """
    signatures.check(signature, program)
    program = _without(program, weights)
    tensors = [(w.name, w.dtype, w.shape, memoryview(data).nbytes) for w, data in weights]
    head, entries = safetensors.header(tensors)
    target = _target(path)
    folder, temporary = _temporary(target)
    fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        try:
            _write(fd, program, signature, weights, head, entries, notes)
            os.fsync(fd)
        finally:
            os.close(fd)
        os.replace(temporary, target)  # noqa: PTH105
    except BaseException:
        os.unlink(temporary)  # noqa: PTH108
        raise
    _sync_folder(folder)


def _write(
    fd: int,
    program: Program,
    signature: Signature,
    weights: Weights,
    head: bytes,
    entries: list[safetensors.Entry],
    notes: Notes | None,
) -> None:
    from rig.program.codec import to_bytes

    contents = (signatures.to_bytes(signature), to_bytes(program))
    sizes = [*map(len, contents), len(head) + (entries[-1].end if entries else 0), 0]
    members = tuple(map(archive.Member, _NAMES, sizes))
    archive.layout(members, b"")
    sums = [_put(fd, m, m.offset, data) for m, data in zip(members, contents, strict=False)]
    sums.append(_put(fd, members[2], members[2].offset, head))
    by_name = {w.name: (w, data) for w, data in weights}
    items = []
    for entry in entries:
        weight, data = by_name.get(entry.name, (None, bytes(entry.end - entry.begin)))
        crc32c = _put(fd, members[2], members[2].offset + len(head) + entry.begin, data)
        if weight is not None:
            items.append(_Sum(weight.name, weight.memory, crc32c))
    from msgspec import json

    held = _Manifest(FORMAT, sums[0], sums[1], sums[2], tuple(items)).to_json()
    if notes is not None:
        held["notes"] = notes.to_json()
    manifest = json.encode(held)
    members[3].nbytes = len(manifest)
    crc32c = _put(fd, members[3], members[3].offset, manifest)
    plan = archive.layout(members, _COMMENT % (FORMAT, crc32c))
    for member, header in zip(plan.members, plan.headers, strict=True):
        _write_all(fd, header, member.start)
    _write_all(fd, plan.directory, plan.directory_at)


def _put(fd: int, member: archive.Member, at: int, data: Any) -> int:
    """Write a piece of a member's content, bring its CRC-32 up to date, and return the piece's CRC-32C."""
    from zlib import crc32

    crc32c = 0
    view = memoryview(data)
    view = view.cast("B") if view.nbytes else memoryview(b"")
    for start in range(0, view.nbytes, _CHUNK):
        chunk = view[start : start + _CHUNK]
        _write_all(fd, chunk, at + start)
        member.crc32 = crc32(chunk, member.crc32)
        crc32c = _core.crc32c(chunk, crc32c)
    return crc32c


def _write_all(fd: int, data: bytes | memoryview, at: int) -> None:
    view = memoryview(data)
    while view.nbytes:
        done = os.pwrite(fd, view, at)
        view = view[done:]
        at += done


def _without(program: Program, weights: Weights) -> Program:
    """Return the program with the initial data of the weights left out; `Invalid` where a weight does not fit."""
    from msgspec import structs

    from rig.program.description import Alloc, Data

    memory = list(program.memory)
    filled: set[int] = set()
    for weight, data in weights:
        where = f"weight {weight.name!r}: memory[{weight.memory}]"
        if not 0 <= weight.memory < len(memory):
            raise Invalid(f"{where} is not there; the program has {len(memory)}")
        if weight.memory in filled:
            raise Invalid(f"{where} is filled by another weight")
        filled.add(weight.memory)
        alloc = memory[weight.memory]
        view = memoryview(data)
        if not view.c_contiguous:
            raise Invalid(f"weight {weight.name!r}: its bytes must be contiguous")
        if isinstance(alloc, Alloc) and len(alloc.init.bytes) == view.nbytes and not alloc.init.holes:
            alloc = structs.replace(alloc, init=Data())
        if reason := _unfit(alloc, view.nbytes):
            raise Invalid(f"{where}: {reason}")
        memory[weight.memory] = alloc
    return structs.replace(program, memory=tuple(memory))


def _target(path: str | bytes | os.PathLike[Any]) -> str:
    """Return the file to replace: `path`, or what it links to."""
    import stat

    target = os.path.realpath(os.fsdecode(path))
    try:
        mode = os.stat(target).st_mode  # noqa: PTH116
    except FileNotFoundError:
        return target
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(21, os.strerror(21), target)
    if not stat.S_ISREG(mode):
        raise Invalid(f"{target}: an artifact is written to a regular file, and this is none")
    return target


def _temporary(target: str) -> tuple[str, str]:
    folder = os.path.dirname(target)  # noqa: PTH120
    return folder, os.path.join(folder, f".rig-{os.getpid()}-{os.urandom(6).hex()}.tmp")  # noqa: PTH118


def _sync_folder(folder: str) -> None:
    """Make the new name last through a crash, where the file system can."""
    try:
        fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        os.fsync(fd)
    except OSError:
        pass  # the file itself is whole either way
    finally:
        os.close(fd)
