"""Extents of a shape that depend on a model's variables: expressions of whole numbers, such as ``2*n+1``.

    sum     = product (("+" | "-") product)*
    product = factor (("*" | "//" | "%") factor)*
    factor  = number | name | "-" factor | "(" sum ")" | ("max" | "min") "(" sum "," sum ")"

Numbers are exact; ``//`` and ``%`` round down and their divisor is positive. Names are variables'. The value of an
expression is a range here, from the ranges of its variables, so that one evaluator gives values and bounds.
"""

from __future__ import annotations

from rig.errors import Invalid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    Range = tuple[int, int]

__all__ = ["bounds", "shape_bounds", "shape_of", "value_of"]

_MAX_LENGTH = 1000
_SIGNS = ("//", "+", "-", "*", "%", "(", ")", ",")


def bounds(text: str, ranges: Mapping[str, Range]) -> Range:
    """Return the least and the largest value of an expression, each variable going through its range.

    The bounds of an expression that names a variable twice may be wider than its values; where each range is one
    number they are exact. Raises `Invalid` if `text` is no expression, names no variable of `ranges`, or may divide by
    a number below 1.
    """
    return _Reader(text, ranges).whole()


def value_of(text: str, values: Mapping[str, int]) -> int:
    """Return the value of an expression, each variable having its value. Raises as `bounds`."""
    return bounds(text, {name: (value, value) for name, value in values.items()})[0]


def shape_bounds(shape: Sequence[int | str], ranges: Mapping[str, Range]) -> tuple[Range, ...]:
    """Return the bounds of each extent. Raises as `bounds`, and `Invalid` for an extent that may be negative."""
    out = []
    for axis, extent in enumerate(shape):
        low, high = bounds(extent, ranges) if isinstance(extent, str) else (extent, extent)
        if low < 0:
            raise Invalid(f"axis {axis}: the extent {extent} may be negative ({low})")
        out.append((low, high))
    return tuple(out)


def shape_of(shape: Sequence[int | str], values: Mapping[str, int]) -> tuple[int, ...]:
    """Return `shape` in numbers, each variable having its value. Raises as `shape_bounds`."""
    ranges = {name: (value, value) for name, value in values.items()}
    return tuple(low for low, _ in shape_bounds(shape, ranges))


class _Reader:
    """Reads one expression from left to right."""

    def __init__(self, text: str, ranges: Mapping[str, Range]) -> None:
        self._text = text
        self._ranges = ranges
        self._at = 0
        if len(text) > _MAX_LENGTH:
            raise Invalid(f"the extent {text[:40]!r}... has {len(text)} characters, allowed are {_MAX_LENGTH}")
        self._words = self._split()

    def whole(self) -> Range:
        value = self._sum(0)
        if self._at < len(self._words):
            raise self._wrong(f"{self._words[self._at]!r} was not expected")
        return value

    def _wrong(self, why: str) -> Invalid:
        return Invalid(f"the extent {self._text!r} is no expression of the variables: {why}")

    def _split(self) -> list[str]:
        words: list[str] = []
        text, at = self._text, 0
        while at < len(text):
            sign = next((s for s in _SIGNS if text.startswith(s, at)), "")
            end = at + len(sign)
            if not sign:
                while end < len(text) and (text[end].isalnum() or text[end] == "_"):
                    end += 1
                if end == at:
                    raise self._wrong(f"{text[at]!r} was not expected")
            words.append(text[at:end])
            at = end
        return words

    def _next(self) -> str:
        return self._words[self._at] if self._at < len(self._words) else ""

    def _take(self) -> str:
        word = self._next()
        self._at += 1
        return word

    def _expect(self, word: str) -> None:
        if self._take() != word:
            raise self._wrong(f"{word!r} is missing")

    def _sum(self, depth: int) -> Range:
        if depth > 50:
            raise self._wrong("it is nested too deeply")
        low, high = self._product(depth)
        while self._next() in ("+", "-"):
            sign = self._take()
            a, b = self._product(depth)
            low, high = (low + a, high + b) if sign == "+" else (low - b, high - a)
        return low, high

    def _product(self, depth: int) -> Range:
        found = self._factor(depth)
        while self._next() in ("*", "//", "%"):
            sign = self._take()
            by = self._factor(depth)
            if sign == "*":
                ends = [a * b for a in found for b in by]
                found = min(ends), max(ends)
                continue
            if by[0] < 1:
                raise self._wrong(f"it may divide by {by[0]}")
            if sign == "//":
                ends = [a // b for a in found for b in by]
                found = min(ends), max(ends)
            elif found[0] == found[1] and by[0] == by[1]:
                found = (found[0] % by[0],) * 2
            else:
                found = 0, by[1] - 1
        return found

    def _factor(self, depth: int) -> Range:
        word = self._take()
        if word.isdecimal():
            return (int(word),) * 2
        if word == "-":
            if depth > 50:
                raise self._wrong("it is nested too deeply")
            low, high = self._factor(depth + 1)
            return -high, -low
        if word == "(":
            found = self._sum(depth + 1)
            self._expect(")")
            return found
        if word in ("max", "min") and self._next() == "(":
            self._expect("(")
            a = self._sum(depth + 1)
            self._expect(",")
            b = self._sum(depth + 1)
            self._expect(")")
            pick = max if word == "max" else min
            return pick(a[0], b[0]), pick(a[1], b[1])
        if word in self._ranges:
            return self._ranges[word]
        if word.isidentifier():
            raise self._wrong(f"there is no variable {word!r}; there are {', '.join(self._ranges) or 'none'}")
        raise self._wrong(f"{word!r} was not expected" if word else "it ends too early")
