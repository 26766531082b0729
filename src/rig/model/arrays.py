"""Element types and shapes: their names, sizes and codes in other formats, and words for what does not fit.

Nothing here imports NumPy; its arrays are met through the buffer protocol.
"""

from __future__ import annotations

from rig.errors import Invalid
from rig.model.record import Record

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

__all__ = [
    "DTYPES", "DType", "check_view", "describe", "difference", "dtype", "nbytes", "nearest", "of_format", "spell",
]  # fmt: skip


class DType(Record):
    """An element type.

    `name` is NumPy's (or ml_dtypes') name, `itemsize` its bytes, `code` the struct module's letter ("" where it has
    none), `npy` the type in an .npy header, `tensor` the type in a safetensors header, `kind` one of b (bool), i
    (signed), u (unsigned), f (floating).
    """

    name: str
    itemsize: int
    code: str
    npy: str
    tensor: str
    kind: str


DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        DType("bool", 1, "?", "|b1", "BOOL", "b"),
        DType("int8", 1, "b", "|i1", "I8", "i"),
        DType("uint8", 1, "B", "|u1", "U8", "u"),
        DType("int16", 2, "h", "<i2", "I16", "i"),
        DType("uint16", 2, "H", "<u2", "U16", "u"),
        DType("int32", 4, "i", "<i4", "I32", "i"),
        DType("uint32", 4, "I", "<u4", "U32", "u"),
        DType("int64", 8, "q", "<i8", "I64", "i"),
        DType("uint64", 8, "Q", "<u8", "U64", "u"),
        DType("float16", 2, "e", "<f2", "F16", "f"),
        DType("bfloat16", 2, "", "<V2", "BF16", "f"),
        DType("float32", 4, "f", "<f4", "F32", "f"),
        DType("float64", 8, "d", "<f8", "F64", "f"),
        DType("float8_e4m3fn", 1, "", "|V1", "F8_E4M3", "f"),
        DType("float8_e5m2", 1, "", "|V1", "F8_E5M2", "f"),
    )
}
"""The element types that a signature may name, by name."""

_LETTERS = {"b": "i", "h": "i", "i": "i", "l": "i", "q": "i", "n": "i"} | {
    "B": "u", "H": "u", "I": "u", "L": "u", "Q": "u", "N": "u", "?": "b", "e": "f", "f": "f", "d": "f",
}  # fmt: skip
_BY_KIND = {(d.kind, d.itemsize): d.name for d in DTYPES.values() if d.code}


def dtype(name: str) -> DType:
    """Return the element type named `name`; `Invalid` if there is none, with the names there are."""
    found = DTYPES.get(name)
    if found is None:
        raise Invalid(f"{name!r} is no element type; it must be one of {', '.join(DTYPES)}")
    return found


def nbytes(name: str, shape: Sequence[int]) -> int:
    """Return the bytes of a dense array of `shape` with elements of type `name`; more than 2**63 is not exact."""
    total = dtype(name).itemsize
    if 0 in shape:
        return 0
    for extent in shape:
        total *= extent
        if total > 1 << 63:  # hostile shapes must not cost time
            break
    return total


def spell(name: str, shape: Sequence[int | str]) -> str:
    """Say an element type and a shape as messages say them: ``float32 of shape (1, 784)``."""
    return f"{name} of shape ({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def of_format(code: str, itemsize: int) -> tuple[str, bool]:
    """Return the element type's name behind a buffer's format, and whether its bytes are in the other order.

    A format that is no element type comes back as it is, in quotes.
    """
    order, letter = (code[0], code[1:]) if code[:1] in ("@", "=", "<", ">", "!") and code[1:] else ("", code)
    name = _BY_KIND.get((_LETTERS.get(letter, ""), itemsize), "")
    return (name, itemsize > 1 and order in (">", "!")) if name else (repr(code), False)


def describe(value: Any) -> str:
    """Say what `value` is: element type and shape of an array, else its Python type."""
    if value is None:
        return "None"
    kind = getattr(value, "dtype", None)
    shape = getattr(value, "shape", None)
    if kind is not None and isinstance(shape, tuple):
        name = getattr(kind, "name", None) or str(kind)
        text = spell(name, shape)
        return text if getattr(kind, "isnative", True) else f"{text} in the other byte order"
    try:
        view = memoryview(value)
    except (TypeError, ValueError, BufferError):
        article = "an" if type(value).__name__[:1].lower() in "aeiou" else "a"
        return f"{article} {type(value).__name__}"
    name, swapped = of_format(view.format, view.itemsize)
    text = spell(name, view.shape or ())
    return f"{text} in the other byte order" if swapped else text


def difference(want: Sequence[int | str], got: Sequence[int]) -> str:
    """Say where two shapes differ, or return an empty string."""
    if len(want) != len(got):
        return f"{len(got)} axes where {len(want)} are expected"
    pairs = [(i, w, g) for i, (w, g) in enumerate(zip(want, got, strict=True)) if isinstance(w, int)]
    axes = [f"axis {i} is {g}, expected {w}" for i, w, g in pairs if w != g]
    return ", ".join(axes)


def check_view(view: memoryview, name: str, shape: tuple[int, ...], *, writable: bool) -> str:
    """Say why `view` cannot be used in place as a dense `name` array of `shape`, or return an empty string.

    A flat buffer of single bytes stands for raw memory: only its length counts. float16's and wider types' bits may
    also come as the unsigned type of that size where the type has no format of its own.
    """
    kind = dtype(name)
    want = nbytes(name, shape)
    found, swapped = of_format(view.format, view.itemsize)
    if writable and view.readonly:
        return f"expected writable {spell(name, shape)}, found {spell(found, view.shape or ())} that is read-only"
    text = f"expected {spell(name, shape)}, found {spell(found, view.shape or ())}"
    if not view.c_contiguous:
        return f"{text} with strides {view.strides}: its elements must be dense and in C order"
    if view.itemsize == 1 and view.ndim == 1 and found in ("uint8", "int8", "'c'"):
        # An array of bytes of another shape is a mistake; what has no shapes at all is memory.
        shapeless = isinstance(view.obj, (bytes, bytearray))
        if view.nbytes == want and (name != found or shapeless):
            return ""
        if name != found or shapeless:
            return f"{text}: {view.nbytes} raw bytes where {want} are expected"
    bits = not kind.code and found == ("uint8" if kind.itemsize == 1 else "uint16")
    if (found != name and not bits) or view.shape != shape:
        where = difference(shape, view.shape or ())
        return f"{text}: {where}" if where else text
    return f"{text} in the other byte order" if swapped else ""


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the one of `names` that looks most like `name`, or an empty string."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(name, list(names), 1, 0.5)), "")
