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
    from collections.abc import Mapping

    from rig.program.description import Program
    from rig.program.packed import Packed

__all__ = ["FORMAT", "Signature", "Tensor", "Variable", "check", "of_bytes", "to_bytes"]

FORMAT = 1
"""The version of the signature's format that this rig reads and writes."""


class Variable(Record):
    """A whole number from `min` to `max`, both included, that each run gives, or else `default`.

    An input's extent that is its name gives it, and so does the caller by name.
    """

    name: str
    min: int
    max: int
    default: int | None = None


class Tensor(Record):
    """One input or output of a model.

    `dtype` is a name of `rig.model.arrays.DTYPES`; `slot` is the index of the program's input that holds the tensor,
    dense, in C order, in native byte order. An extent is a number, the name of a variable, or for an output an
    expression of variables (`rig.model.extents`). The first byte's address must be a multiple of `align`; 0 stands for
    the element's size.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    slot: int
    align: int = 0

    @property
    def varies(self) -> bool:
        """Whether the shape depends on variables."""
        return any(isinstance(extent, str) for extent in self.shape)

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape in numbers. Raises `Invalid` if it depends on variables: see `Signature.at`."""
        if not self.varies:
            return self.shape  # type: ignore[return-value]
        return tuple(low for low, _ in _bounds(self.shape, {}))

    @property
    def nbytes(self) -> int:
        """The tensor's bytes. Raises `Invalid` if they depend on variables: see `Signature.at`."""
        return nbytes(self.dtype, self.sizes)


class Signature(Record, always=("compiler", "target", "name", "format")):
    """The inputs and outputs of a model in order, the compiler that made it, and the processor it was made for.

    Variable i is word i of the program's ints; after them come `words`, each an expression of variables.
    """

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    compiler: str = ""
    target: str = ""
    name: str = ""
    format: int = FORMAT
    variables: tuple[Variable, ...] = ()
    words: tuple[str, ...] = ()

    @property
    def ranges(self) -> dict[str, tuple[int, int]]:
        """The least and the largest value of each variable, by name."""
        return {v.name: (v.min, v.max) for v in self.variables}

    def at(self, values: Mapping[str, int]) -> Signature:
        """Return the signature with all shapes in numbers, for a value of each variable."""
        if not self.variables:
            return self
        from rig.model.extents import shape_of

        def fixed(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return tuple(t.replace(shape=shape_of(t.shape, values)) for t in tensors)

        return self.replace(inputs=fixed(self.inputs), outputs=fixed(self.outputs))

    def ints(self, values: Mapping[str, int]) -> tuple[int, ...]:
        """Return the first words of a run's ints, for a value of each variable."""
        found = [values[v.name] for v in self.variables]
        if self.words:
            from rig.model.extents import value_of

            found += [value_of(word, values) for word in self.words]
        return tuple(found)

    def largest(self) -> Signature:
        """Return the signature with each extent as large as it may be."""

        def most(tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return tuple(t.replace(shape=tuple(high for _, high in _bounds(t.shape, self.ranges))) for t in tensors)

        return self.replace(inputs=most(self.inputs), outputs=most(self.outputs)) if self.variables else self


def _bounds(shape: tuple[int | str, ...], ranges: Mapping[str, tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    if all(type(extent) is int and extent >= 0 for extent in shape):
        return tuple((extent, extent) for extent in shape)  # type: ignore[misc]
    from rig.model.extents import shape_bounds

    return shape_bounds(shape, ranges)


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


def check(signature: Signature, program: Program | Packed) -> None:
    """Hold a signature against its program.

    `Invalid`, naming the input or output: an empty name or one that is there twice, an unknown element type, a negative
    extent, an alignment that is no power of two, a slot that the program does not have or that two tensors share, or a
    slot of another size than the tensor's; an input's extent that is an expression, an output's that may be negative,
    a variable without a range or without a word of the program's ints; and a program's input that no tensor names.
    """
    slots: dict[int, str] = {}
    _check_variables(signature, program)
    for kind, tensors in (("input", signature.inputs), ("output", signature.outputs)):
        names: set[str] = set()
        for position, tensor in enumerate(tensors):
            label = f"{kind} {tensor.name!r} (position {position})"
            if not tensor.name or tensor.name in names:
                raise Invalid(f"{label}: the name is {'there twice' if tensor.name else 'empty'}")
            names.add(tensor.name)
            texts = [e for e in tensor.shape if isinstance(e, str) and kind == "input"]
            if other := next((text for text in texts if text not in signature.ranges), ""):
                raise Invalid(f"{label}: the extent {other!r} is no variable; there are {[*signature.ranges]}")
            _check_tensor(tensor, label, program, slots, signature.ranges)
    for index in range(len(program.inputs)):
        if index not in slots:
            raise Invalid(f"inputs[{index}] of the program is neither an input nor an output of the signature")


def _check_variables(signature: Signature, program: Program | Packed) -> None:
    names = {tensor.name for tensor in signature.inputs}
    for variable in signature.variables:
        label = f"variable {variable.name!r}"
        if not variable.name.isidentifier() or variable.name in names:
            raise Invalid(f"{label}: the name is {'there twice' if variable.name in names else 'no identifier'}")
        names.add(variable.name)
        default = variable.min if variable.default is None else variable.default
        if not -(1 << 63) <= variable.min <= default <= variable.max < 1 << 63:
            limits = f"min {variable.min}, default {variable.default} and max {variable.max}"
            raise Invalid(f"{label}: {limits} are not in order")
    count = len(signature.variables) + len(signature.words)
    if count > program.ints:
        raise Invalid(f"there are {count} variables and words, but the program has {program.ints} ints")
    for i, word in enumerate(signature.words):
        from rig.model.extents import bounds

        try:
            bounds(word, signature.ranges)
        except Invalid as error:
            raise Invalid(f"words[{i}]: {error}") from None


def _check_tensor(
    tensor: Tensor, label: str, program: Program | Packed, slots: dict[int, str], ranges: Mapping[str, tuple[int, int]]
) -> None:
    dtype(tensor.dtype)
    try:
        least = tuple(low for low, _ in _bounds(tensor.shape, ranges))
    except Invalid as error:
        raise Invalid(f"{label}: {error}") from None
    if tensor.align < 0 or tensor.align & (tensor.align - 1):
        raise Invalid(f"{label}: align {tensor.align} is no power of two")
    if not 0 <= tensor.slot < len(program.inputs):
        raise Invalid(f"{label}: slot {tensor.slot}, but the program has {len(program.inputs)} inputs")
    if tensor.slot in slots:
        raise Invalid(f"{label}: slot {tensor.slot} is also that of {slots[tensor.slot]}")
    slots[tensor.slot] = label
    need = program.inputs[tensor.slot].nbytes
    if nbytes(tensor.dtype, least) < need:
        have = f"{spell(tensor.dtype, least)} has {nbytes(tensor.dtype, least)} bytes"
        raise Invalid(f"{label}: {have}, but inputs[{tensor.slot}] of the program needs {need}")
