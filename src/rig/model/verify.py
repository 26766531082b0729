"""Check a model's file as far as that goes without loading it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from rig.errors import FormatError, Invalid
from rig.model.artifact import Artifact
from rig.program.arch import runs
from rig.program.check import check
from rig.program.images import look
from rig.program.parts import parts

if TYPE_CHECKING:
    from collections.abc import Callable

    from rig.model.sources import Source
    from rig.program.description import Area, Program

__all__ = ["Report", "verify"]

_CHUNK = 1 << 20
_PROGRAM = "program.rig"


class Report(NamedTuple):
    """What was checked: the file's bytes, how many of each thing there are, and the devices' archs."""

    nbytes: int
    members: int
    weights: int
    memory: int
    images: int
    functions: int
    parts: int
    devices: tuple[str, ...]


class _Device:
    """Stands in a check for a device of just the arch that the program asks for."""

    kind = "host"

    def __init__(self, index: int, arch: str, host: _Device | None) -> None:
        self.name = f"device {index}"
        self.arch = arch
        self.host: _Device = host or self


class _End:
    """Stands in a check for a rail's end, whose size only its owner knows."""

    def nbytes(self, area: Area) -> int:
        """Return more bytes than a view can name."""
        return (1 << 63) - 1


def verify(source: Any, progress: Callable[[int, int], None] | None = None) -> Report:
    """Read every byte of an artifact and check all that can be checked without loading it; return what was checked.

    These are: the layout and each checksum, the zip's own included; the program against its rules, for devices of the
    archs that it names; each image's own tables, what it needs, and that it has the functions that are launched; and
    that the signature fits: no run writes an input, and each output is written; and that notes are notes.

    `source` and `progress` are as for `rig.open`. `FormatError` with the place of the first fault.
    """
    with Artifact(source, progress) as artifact:
        for initial in artifact.initial.values():
            initial.check()
        _sums(artifact)
        try:
            found = _program(artifact.program)
            _signature(artifact)
            _ = artifact.notes  # decoded, and refused, when they are asked for
        except FormatError as error:
            raise artifact.source.named(error) from None
        except Invalid as error:
            raise artifact.source.error(str(error), _PROGRAM) from None
        p = artifact.program
        sizes = (artifact.source.size, len(artifact.members), len(artifact.weights), len(p.memory), len(p.images))
        return Report(*sizes, *found, p.devices)


def _sums(artifact: Artifact) -> None:
    """Hold the members against the CRC-32s that other tools check."""
    from zlib import crc32

    source: Source = artifact.source
    scratch = memoryview(bytearray(_CHUNK))
    for member in artifact.members:
        found = 0
        for at in range(0, member.nbytes, _CHUNK):
            piece = scratch[: min(_CHUNK, member.nbytes - at)]
            source.read_into(member.offset + at, piece)
            found = crc32(piece, found)
        if found != member.crc32:
            raise source.damaged(f"{member.name}, the zip's CRC-32", found, member.crc32)


def _program(p: Program) -> tuple[int, int]:
    """Check a program against its rules and its images; return the number of functions and of parts."""
    first = _Device(0, p.devices[0] if p.devices else "", None)
    devices = [_Device(i, arch, first) if i else first for i, arch in enumerate(p.devices)]
    check(p, devices, lambda rail: _End())
    looks = []
    for i, image in enumerate(p.images):
        try:
            found = look(image.binary.bytes)
        except FormatError as error:
            raise FormatError(str(error), f"{_PROGRAM}: images[{i}]") from None
        wanted = p.devices[image.device]
        if found.requires and not runs(wanted, found.requires):
            raise FormatError(
                f"its code needs {found.requires}, but device {image.device} is one of {wanted}",
                f"{_PROGRAM}: images[{i}]",
            )
        looks.append(found)
    count = 0
    for part in parts(p):
        count += 1
        if part.kind == "launch" and looks[part.image].functions and part.name not in looks[part.image].functions:
            where = f"{_PROGRAM}: {part.where} (launch of {part.name!r})"
            raise FormatError(f"images[{part.image}] has no such function", where)
    return sum(len(one.functions) for one in looks), count


def _signature(artifact: Artifact) -> None:
    """Check that a run leaves the signature's inputs alone and writes its outputs."""
    written = {
        touch.number for part in parts(artifact.program) for touch in part.touches if touch.writes and not touch.memory
    }
    for kind, tensors in (("input", artifact.signature.inputs), ("output", artifact.signature.outputs)):
        for position, tensor in enumerate(tensors):
            label = f"signature.json: {kind} {tensor.name!r} (position {position})"
            if kind == "input" and tensor.slot in written:
                raise FormatError("the program writes it", label)
            if kind == "output" and tensor.nbytes and tensor.slot not in written:
                raise FormatError("the program does not write it", label)
