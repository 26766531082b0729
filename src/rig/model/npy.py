"""Read and write .npy files without NumPy."""

from __future__ import annotations

from struct import unpack_from
from typing import Any

from rig.errors import FormatError
from rig.model.arrays import DTYPES, dtype, nbytes, spell

__all__ = ["MAGIC", "dump", "parse"]

MAGIC = b"\x93NUMPY"
"""The first bytes of every .npy file."""

_NAMES = {d.npy.lstrip("<|"): d.name for d in DTYPES.values() if d.code} | {"V2": "bfloat16"}
_MAX_AXES = 64


def dump(name: str, shape: tuple[int, ...], data: bytes | bytearray | memoryview) -> bytes:
    """Return an .npy file of a dense `name` array of `shape`; bfloat16 and float8 become plain bytes (V2, V1)."""
    text = f"{{'descr': '{dtype(name).npy}', 'fortran_order': False, 'shape': {shape}, }}"
    pad = -(10 + len(text) + 1) % 64
    head = text.encode() + b" " * pad + b"\n"
    return b"".join((MAGIC, b"\1\0", len(head).to_bytes(2, "little"), head, data))


def parse(data: bytes | bytearray | memoryview, where: str) -> tuple[str, tuple[int, ...], memoryview]:
    """Return the element type's name, the shape, and the elements of an .npy file, dense, in C order, little-endian.

    Elements in Fortran order or in the other byte order are copied into that form, values kept; others are not copied.
    The name of an element type that rig does not have comes back as it is in the file. `FormatError`, starting with
    `where`: no .npy file, or one of another length than its header states.
    """
    view = memoryview(data).cast("B")
    if view.nbytes < 10 or bytes(view[:6]) != MAGIC:
        raise FormatError("not an .npy file", where)
    wide = view[6] >= 2
    start = 12 if wide else 10
    length = unpack_from("<I" if wide else "<H", view, 8)[0] if view.nbytes >= start else 0
    text = bytes(view[start : start + length]).decode("utf-8" if view[6] >= 3 else "latin-1", "replace")
    header = _header(text, where)
    descr: Any = header.get("descr")
    fortran: Any = header.get("fortran_order")
    shape: Any = header.get("shape")
    sound = isinstance(descr, str) and isinstance(fortran, bool) and isinstance(shape, tuple)
    if not sound or len(shape) > _MAX_AXES or not all(isinstance(n, int) and 0 <= n < 1 << 63 for n in shape):
        raise FormatError(f"the header states no dense array of one element type: {text.strip()[:200]}", where)
    name = _NAMES.get(descr.lstrip("<>|="), "")
    if not name:
        return descr, shape, view[:0]
    elements = view[start + length :]
    need = nbytes(name, shape)
    if elements.nbytes != need:
        raise FormatError(f"{spell(name, shape)} has {need} bytes, but {elements.nbytes} follow the header", where)
    size = dtype(name).itemsize
    if descr[:1] == ">" and size > 1:
        elements = _swapped(elements, size)
    if fortran and len(shape) > 1:
        elements = _reordered(elements, size, shape)
    return name, shape, elements


def _header(text: str, where: str) -> dict[str, Any]:
    """Read the header's Python dict; the form that everybody writes without the `ast` module, whose import is slow."""
    try:
        return _plain(text)
    except ValueError:
        pass
    from ast import literal_eval

    try:
        found = literal_eval(text.strip())
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise FormatError(f"the header is no dict: {text.strip()[:200]}", where)
    return found


def _plain(text: str) -> dict[str, Any]:
    head, kept, rest = text.partition("', 'fortran_order': ")
    order, and_shape, rest = rest.partition(", 'shape': (")
    extents, closed, end = rest.partition("), }")
    descr = head.removeprefix("{'descr': '")
    plain = kept and and_shape and closed and not end.strip() and descr != head and "'" not in descr
    if not plain or order not in ("True", "False"):
        raise ValueError
    items = extents.split(",")
    if items[-1].strip() == "":
        items.pop()
    return {"descr": descr, "fortran_order": order == "True", "shape": tuple(map(int, items))}


def _swapped(data: memoryview, size: int) -> memoryview:
    out = bytearray(data.nbytes)
    for byte in range(size):
        out[byte::size] = data[size - 1 - byte :: size]
    return memoryview(out)


def _reordered(data: memoryview, size: int, shape: tuple[int, ...]) -> memoryview:
    """Copy from Fortran order to C order: those of index i on the first axis are every shape[0]-th from the i-th."""
    if not data.nbytes:
        return data
    parts: list[bytes] = []

    def gather(elements: memoryview, extents: tuple[int, ...]) -> None:
        if len(extents) == 1:
            parts.append(elements.tobytes())
            return
        for index in range(extents[0]):
            gather(elements[index :: extents[0]], extents[1:])

    codes: Any = {1: "B", 2: "H", 4: "I", 8: "Q"}
    gather(data.cast(codes[size]), shape)
    return memoryview(b"".join(parts))
