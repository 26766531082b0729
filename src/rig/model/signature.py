"""What a model takes and gives: names, element types and shapes, and which input of its program holds each.

A signature is plain data; in an artifact it is the JSON member ``signature.json``.
"""

from __future__ import annotations

from rig import _core
from rig.errors import FormatError, Invalid
from rig.model.arrays import dtype, nbytes, spell
from rig.model.record import Record, of_json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rig.program.description import Program

__all__ = ["FORMAT", "Signature", "Tensor", "check", "of_bytes", "to_bytes"]

FORMAT = 1
"""The version of the signature's format that this rig reads and writes."""


class Tensor(Record):
    """One input or output of a model.

    `dtype` is a name of `rig.model.arrays.DTYPES`; `slot` is the index of the program's input that holds the tensor,
    dense, in C order, in native byte order. The first byte's address must be a multiple of `align`; 0 stands for the
    element's size.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    slot: int
    align: int = 0

    @property
    def nbytes(self) -> int:
        """The tensor's bytes."""
        return nbytes(self.dtype, self.shape)


class Signature(Record, always=("compiler", "target", "name", "format")):
    """The inputs and outputs of a model in order, the compiler that made it, and the processor it was made for."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    compiler: str = ""
    target: str = ""
    name: str = ""
    format: int = FORMAT


def to_bytes(signature: Signature) -> bytes:
    """Encode a signature as JSON, the same bytes for the same signature."""
    from msgspec import json

    return json.format(json.encode(signature.to_json()), indent=1) + b"\n"


def of_bytes(data: bytes | bytearray | memoryview) -> Signature:
    """Decode a signature.

    `FormatError`: another version of the format (the message has both numbers), or bytes that are no signature.
    """
    try:
        read = _core.read_json(data)
        found = read.get("format") if type(read) is dict else None
        if type(found) is not int:
            raise FormatError("it states no format")
        if found != FORMAT:
            raise FormatError(version_message(found))
        return of_json(Signature, read)
    except FormatError as error:
        raise FormatError(str(error), "signature.json") from None


def version_message(found: int) -> str:
    """Say that a file's format has another version than this rig's, and what to do about it."""
    if found > FORMAT:
        advice = "open it with a newer rig, or compile the model again with this one"
    else:
        advice = "compile the model again with this rig, or open it with the rig that wrote it"
    return f"the file has format {found}, this rig reads format {FORMAT}: {advice}"


def check(signature: Signature, program: Program) -> None:
    """Hold a signature against its program.

    `Invalid`, naming the input or output: an empty name or one that is there twice, an unknown element type, a negative
    extent, an alignment that is no power of two, a slot that the program does not have or that two tensors share, or a
    slot of another size than the tensor's; and a program's input that no tensor names.
    """
    slots: dict[int, str] = {}
    for kind, tensors in (("input", signature.inputs), ("output", signature.outputs)):
        names: set[str] = set()
        for position, tensor in enumerate(tensors):
            label = f"{kind} {tensor.name!r} (position {position})"
            if not tensor.name or tensor.name in names:
                raise Invalid(f"{label}: the name is {'there twice' if tensor.name else 'empty'}")
            names.add(tensor.name)
            _check_tensor(tensor, label, program, slots)
    for index in range(len(program.inputs)):
        if index not in slots:
            raise Invalid(f"inputs[{index}] of the program is neither an input nor an output of the signature")


def _check_tensor(tensor: Tensor, label: str, program: Program, slots: dict[int, str]) -> None:
    dtype(tensor.dtype)
    if any(extent < 0 for extent in tensor.shape):
        raise Invalid(f"{label}: the shape {tensor.shape} has a negative extent")
    if tensor.align < 0 or tensor.align & (tensor.align - 1):
        raise Invalid(f"{label}: align {tensor.align} is no power of two")
    if not 0 <= tensor.slot < len(program.inputs):
        raise Invalid(f"{label}: slot {tensor.slot}, but the program has {len(program.inputs)} inputs")
    if tensor.slot in slots:
        raise Invalid(f"{label}: slot {tensor.slot} is also that of {slots[tensor.slot]}")
    slots[tensor.slot] = label
    need = program.inputs[tensor.slot].nbytes
    if tensor.nbytes < need:
        have = f"{spell(tensor.dtype, tensor.shape)} has {tensor.nbytes} bytes"
        raise Invalid(f"{label}: {have}, but inputs[{tensor.slot}] of the program needs {need}")
