"""Programs as bytes, in a format with a version of its own.

Version 1, integers little-endian::

    0   8s   magic
    8   u32  version
    12  u32  CRC-32C of all the bytes, with this field as zero
    16  u64  length of all the bytes
    24  u64  length of the body, which starts at byte 64
    32  u64  start of the blobs: the end of the body, rounded up to 64
    40  24 zero bytes
    64  the body: MessagePack of the program, in which a blob is [offset from the start of the blobs, length]
        the blobs, in the order in which the body names them, each at a multiple of 64; an empty one takes no place and
        is [0, 0]

Zero bytes fill the gaps and nothing follows the last blob. Each description has one encoding, and only that is decoded.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, Final

import msgspec

from rig import _core
from rig.errors import FormatError, Invalid

from .description import Alloc, Blob, Data, Fill, Image, Launch, Loop, Program, Submit
from .limits import MAX_LOOPS

if TYPE_CHECKING:
    from collections.abc import Callable

    from .description import BlobLike, Memory, Part, Step

__all__ = ["FORMAT_VERSION", "of_bytes", "to_bytes"]

FORMAT_VERSION: Final = 1
"""The version that `to_bytes` writes and `of_bytes` reads."""

_MAGIC: Final = b"\x93RIGPRG\n"
_PREAMBLE: Final = struct.Struct("<8sIIQQQ24x")
_SIZE: Final = 64  # of the preamble, and what the body's end and each blob are aligned to
_CRC_AT: Final = 12
_ZEROS: Final = bytes(_SIZE)

# The arrays inside each other at the deepest value: program and steps, two for each loop, and from a step's own array
# parts, part, params, holes, hole, terms, term, value.
_MAX_DEPTH: Final = 11 + 2 * MAX_LOOPS


class _Span(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a blob lies, in place of the blob while a body is encoded."""

    offset: int
    length: int


Blob.register(_Span)  # so that a decoder may leave spans in a blob's place

_encoder = msgspec.msgpack.Encoder()


def to_bytes(p: Program) -> bytes:
    """Return `p` as bytes of format version 1; equal descriptions give equal bytes.

    Raises Invalid, naming the place, for what has no encoding: a value that is not of its field's type, an integer past
    64 bits, more than 64 loops inside each other. Checks nothing else; `rig.program.check` does.
    """
    outline = _Outline()
    try:
        spans = outline.program(p)
        body = _encoder.encode(spans)
        decoded = msgspec.msgpack.Decoder(Program, dec_hook=_as_span).decode(body)
    except (AttributeError, OverflowError, TypeError, ValueError, msgspec.MsgspecError) as error:
        raise _unencodable(p, error) from None
    if decoded != spans:
        raise _unencodable(p, None)
    return _assemble(body, outline.blobs)


def of_bytes(data: Any) -> Program:
    """Return the description that `to_bytes` wrote as `data`, an object with the buffer protocol.

    Its blobs are read-only views of `data`, which must not change while the description is in use. Only decodes:
    `rig.program.check` says whether the description keeps its rules.

    Raises FormatError with the place in `where` if `data` is malformed, cut, changed, or of another version.
    """
    view = _bytes_of(data)
    body_end = _read_preamble(view)
    body = view[_SIZE:body_end]
    fault = _core.scan_msgpack(body, _MAX_DEPTH)
    if fault is not None:
        raise FormatError(fault[1], f"byte {_SIZE + fault[0]}")
    ends = [body_end]
    program = _decode(body, _taker(view, _aligned(body_end), ends))
    if ends[-1] != len(view) and not (len(ends) == 1 and len(view) == _aligned(body_end)):
        raise FormatError(f"{len(view) - ends[-1]} bytes follow the last blob, none may", f"byte {ends[-1]}")
    gap = _core.nonzero_gap(view, ends, _SIZE)
    if gap is not None:
        raise FormatError(f"the gap before the next blob holds {view[gap]}, not zero", f"byte {gap}")
    _require_canonical(program, body)
    return program


def _aligned(position: int) -> int:
    return (position + _SIZE - 1) & -_SIZE


# Encoding.


class _Outline:
    """Programs with a span in the place of each blob, and the blobs in their order."""

    def __init__(self) -> None:
        self.blobs: list[BlobLike] = []
        self._at = 0

    def program(self, p: Program) -> Program:
        memory = tuple(map(self._memory, _tuple(p.memory)))
        images = tuple([Image(image.device, self._data(image.binary)) for image in _tuple(p.images)])
        steps = self._steps(p.steps, 0)
        return Program(p.devices, memory, images, p.inputs, p.ints, steps)

    def _data(self, data: Data) -> Data:
        blob = data.bytes
        if type(blob) is not bytes and (type(blob) is not memoryview or blob.format != "B" or not blob.c_contiguous):
            raise TypeError("a blob that is no bytes")
        length = len(blob)
        if length == 0:
            return Data(_Span(0, 0), data.holes)  # type: ignore[arg-type]
        offset = self._at
        self._at = (offset + length + _SIZE - 1) & -_SIZE
        self.blobs.append(blob)
        return Data(_Span(offset, length), data.holes)  # type: ignore[arg-type]

    def _memory(self, memory: Memory) -> Memory:
        if type(memory) is Alloc:
            return Alloc(memory.device, memory.nbytes, self._data(memory.init), memory.copies, memory.kind)
        return memory

    def _steps(self, steps: tuple[Step, ...], loops: int) -> tuple[Step, ...]:
        if loops > MAX_LOOPS:
            raise ValueError("too many loops inside each other")
        return tuple([self._step(step, loops) for step in _tuple(steps)])

    def _step(self, step: Step, loops: int) -> Step:
        if type(step) is Submit:
            return Submit(step.device, tuple(map(self._part, _tuple(step.parts))), step.slots, step.fixed)
        if type(step) is Loop:
            return Loop(step.trips, self._steps(step.body, loops + 1), step.trip, step.flag)
        return step

    def _part(self, part: Part) -> Part:
        if type(part) is Launch:
            params = self._data(part.params)
            return Launch(part.image, part.name, params, part.refs, part.groups, part.threads, part.shared)
        if type(part) is Fill:
            return Fill(part.fill, self._data(part.params), part.refs)
        return part


def _tuple(value: Any) -> Any:
    if type(value) is not tuple:
        raise TypeError("not a tuple")
    return value


def _as_span(_: type, pair: Any) -> _Span:
    return _Span(*pair)


def _unencodable(p: object, error: Exception | None) -> Invalid:
    from .schema import mistyped

    found = mistyped(p)
    if found is None:
        return Invalid(f"the program cannot be encoded: {error or 'it does not decode to an equal one'}")
    where, fault = found
    return Invalid(f"{where}: {fault}; a program with it cannot be encoded")


def _assemble(body: bytes, blobs: list[BlobLike]) -> bytes:
    body_end = _SIZE + len(body)
    pieces: list[BlobLike] = [b"", body, _ZEROS[: _aligned(body_end) - body_end]]
    at = _aligned(body_end)
    for index, blob in enumerate(blobs):
        if index:
            pieces.append(_ZEROS[: _aligned(at) - at])
            at = _aligned(at)
        pieces.append(blob)
        at += len(blob)
    crc = _core.crc32c(_PREAMBLE.pack(_MAGIC, FORMAT_VERSION, 0, at, len(body), _aligned(body_end)))
    for piece in pieces:
        crc = _core.crc32c(piece, crc)
    pieces[0] = _PREAMBLE.pack(_MAGIC, FORMAT_VERSION, crc, at, len(body), _aligned(body_end))
    return b"".join(pieces)


# Decoding.


def _bytes_of(data: Any) -> memoryview:
    try:
        view = memoryview(data).toreadonly()
        return view if view.format == "B" and view.ndim == 1 and view.c_contiguous else view.cast("B")
    except TypeError as error:
        raise Invalid(f"a program is decoded from contiguous bytes, not from {type(data).__name__}: {error}") from None


def _read_preamble(view: memoryview) -> int:
    """Check the preamble of `view` against its bytes and return where the body ends."""
    size = len(view)
    start = bytes(view[: len(_MAGIC)])
    if start != _MAGIC and (size >= len(_MAGIC) or not _MAGIC.startswith(start)):
        raise FormatError(f"these bytes are no program: they start with {start!r}, a program with {_MAGIC!r}", "byte 0")
    if size >= _CRC_AT:
        version = int.from_bytes(view[8:_CRC_AT], "little")
        if version != FORMAT_VERSION:
            raise FormatError(f"version {version} of the format; only version {FORMAT_VERSION} is read here", "byte 8")
    if size < _SIZE:
        raise FormatError(f"the bytes end inside the preamble, which has {_SIZE} bytes", f"byte {size}")
    _, _, crc, total, body_length, blobs_at = _PREAMBLE.unpack_from(view)
    if total != size:
        raise FormatError(f"the program has {total} bytes, but {size} are here", "byte 16")
    body_end: int = _SIZE + body_length
    if body_end > size or _aligned(body_end) > size:
        raise FormatError(f"a body of {body_length} bytes does not fit into {size} bytes", "byte 24")
    if blobs_at != _aligned(body_end):
        raise FormatError(f"blobs at {blobs_at}, but after the body they start at {_aligned(body_end)}", "byte 32")
    found = _core.crc32c(view[16:], _core.crc32c(_ZEROS[:4], _core.crc32c(view[:_CRC_AT])))
    if found != crc:
        raise FormatError(f"the bytes were changed: their CRC-32C is {found:#010x}, not {crc:#010x}", "byte 12")
    if view[40:_SIZE] != _ZEROS[40:]:
        raise FormatError("the unused end of the preamble is not zero", "byte 40")
    return body_end


def _taker(view: memoryview, base: int, ends: list[int]) -> Callable[[type, Any], BlobLike]:
    """Return a decoder's hook that takes the next blob from `view`, where blobs start at `base`, and notes its end."""
    expected = 0
    size = len(view) - base

    def take(_: type, pair: Any) -> BlobLike:
        nonlocal expected
        if type(pair) is not list or len(pair) != 2 or type(pair[0]) is not int or type(pair[1]) is not int:
            raise ValueError("a blob is [offset, length]")
        offset, length = pair
        if offset == length == 0:
            return b""
        if offset != expected or length <= 0:
            raise ValueError(f"a blob of {length} bytes at {offset}; the next blob is at {expected}, an empty one at 0")
        end = offset + length
        if end > size:
            raise ValueError(f"a blob of {length} bytes at {offset}, but the blobs have {size} bytes")
        expected = (end + _SIZE - 1) & -_SIZE
        ends.append(base + end)
        return view[base + offset : base + end]

    return take


def _decode(body: memoryview, take: Callable[[type, Any], BlobLike]) -> Program:
    try:
        return msgspec.msgpack.Decoder(Program, dec_hook=take).decode(body)
    except msgspec.MsgspecError as error:
        message, _, path = str(error).partition(" - at `$")
    from .schema import readable

    indices = [int(index) for index in path.strip("`[]").split("][") if index]
    where, tag = readable(indices, msgspec.msgpack.decode(body))
    raise FormatError(message if tag is None else f"no kind has the tag {tag}", where)


def _require_canonical(program: Program, body: memoryview) -> None:
    """Refuse a body that leaves out fields which have a default, or has too many loops inside each other."""
    try:
        again = _encoder.encode(_Outline().program(program))
    except ValueError:
        raise FormatError(f"more than {MAX_LOOPS} loops are inside each other", "steps") from None
    if bytes(body) != again:
        position = next((i for i, (a, b) in enumerate(zip(body, again, strict=False)) if a != b), len(body))
        raise FormatError("the program is not in its one encoding: fields are left out", f"byte {_SIZE + position}")
