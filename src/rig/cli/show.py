"""Tensors as text, without NumPy."""

from __future__ import annotations

from struct import pack, unpack
from typing import TYPE_CHECKING, Any

from rig.model.arrays import dtype

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

__all__ = ["lines", "values"]

_WHOLE = 32
_FEW = 8


def lines(name: str, kind: str, shape: tuple[int, ...], data: memoryview) -> Iterator[str]:
    """Say a tensor: a line with name, element type and shape, then its values if they are few, else an extract."""
    yield f"{name}: {kind} {shape}"
    numbers = values(kind, data)
    count = len(numbers)
    if count <= _WHOLE:
        yield f"  {_nested([_text(kind, number) for number in numbers], shape)}"
        return
    yield f"  {' '.join(_text(kind, numbers[i]) for i in range(_FEW))} ... ({count} values)"
    yield f"  {_extremes(kind, numbers)}"


def values(kind: str, data: memoryview) -> Sequence[Any]:
    """Return the elements of dense `kind` memory as Python numbers, without copying where Python has the type."""
    code = dtype(kind).code
    flat = data.cast("B") if data.nbytes else memoryview(b"")
    if code == "e":
        return unpack(f"{flat.nbytes // 2}e", flat)
    if kind == "bfloat16":
        bits = flat.cast("H")
        return unpack(f"{len(bits)}f", b"".join(pack("2H", 0, b) for b in bits))
    if not code:
        return [_float8(kind, byte) for byte in flat]
    cast: Any = flat.cast
    found: memoryview = cast(code)
    return found


def _float8(kind: str, byte: int) -> float:
    sign = -1.0 if byte & 0x80 else 1.0
    bits, bias = (3, 7) if kind == "float8_e4m3fn" else (2, 15)
    exponent, fraction = (byte & 0x7F) >> bits, byte & ((1 << bits) - 1)
    if kind == "float8_e4m3fn" and byte & 0x7F == 0x7F:
        return float("nan")
    if kind == "float8_e5m2" and exponent == 31:
        return float("nan") if fraction else sign * float("inf")
    if not exponent:
        return sign * fraction * 2.0 ** (1 - bias - bits)
    return sign * (1 + fraction / (1 << bits)) * 2.0 ** (exponent - bias)


def _text(kind: str, number: Any) -> str:
    """Write a number with the fewest digits that give it back."""
    if dtype(kind).kind != "f":
        return str(number)
    if kind == "float64" or number != number or number in (float("inf"), float("-inf")):
        return repr(number)
    for digits in range(1, 10):
        text = f"{number:.{digits}g}"
        if _same(kind, float(text), number):
            break
    return repr(float(text))


def _same(kind: str, a: float, b: float) -> bool:
    try:
        if kind in ("float16", "float32"):
            code = dtype(kind).code
            return pack(code, a) == pack(code, b)
    except OverflowError:
        return False
    return abs(a - b) <= abs(b) / 1024  # half of the last place of bfloat16 and float8 and less


def _nested(texts: list[str], shape: tuple[int, ...]) -> str:
    if not shape:
        return texts[0]
    if len(shape) == 1 or not texts:
        return f"[{', '.join(texts)}]"
    step = len(texts) // shape[0]
    return f"[{', '.join(_nested(texts[i * step : (i + 1) * step], shape[1:]) for i in range(shape[0]))}]"


def _extremes(kind: str, numbers: Iterable[Any]) -> str:
    low = high = None
    at = absent = 0
    for i, number in enumerate(numbers):
        if number != number:
            absent += 1
        elif high is None or number > high:
            high, at = number, i
            low = number if low is None else low
        elif number < low:
            low = number
    if high is None:
        return f"all {absent} are nan"
    nan = f", {absent} nan" if absent else ""
    return f"min {_text(kind, low)}, max {_text(kind, high)}, argmax {at}{nan}"
