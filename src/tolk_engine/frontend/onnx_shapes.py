"""Decide the shapes of a graph's inputs from what the graph says and what the caller gives."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from rig.errors import Invalid

__all__ = ["Declared", "Decision", "Given", "decide"]

Given: TypeAlias = Mapping[str, int | Sequence[int]]
"""Shapes by input, -1 for an axis that is left to the graph, and lengths by the name of an open dimension."""


@dataclass(frozen=True, slots=True)
class Declared:
    """An input as the graph declares it: each axis a length, the name of an open dimension, or None.

    `dims` is None where the graph does not even say how many axes there are.
    """

    name: str
    dims: tuple[int | str | None, ...] | None


@dataclass(frozen=True, slots=True)
class Decision:
    """The shape of each input, and the axes that nobody decided, which are 1, a line for each input with some."""

    shapes: dict[str, tuple[int, ...]]
    guessed: tuple[str, ...]

    def hint(self) -> str:
        """Return what to add to a message about a graph that cannot be traced."""
        return f" (not given, so taken as 1: {'; '.join(self.guessed)})" if self.guessed else ""


def decide(declared: Sequence[Declared], given: Given) -> Decision:
    """Return the shape of every input.

    An open axis is what `given` says for its input or its name, else 1. One name has one length everywhere. Raises
    `Invalid` for a name that is neither an input's nor an open dimension's, and for lengths that contradict.
    """
    shapes, lengths = _sorted(declared, given)
    symbols: dict[str, tuple[int, str]] = {name: (n, "shapes") for name, n in lengths.items()}
    for value in declared:
        shape = shapes.get(value.name)
        if shape is None:
            continue
        if value.dims is not None and len(shape) != len(value.dims):
            raise Invalid(
                f"input {value.name!r}: shape {tuple(shape)} has {len(shape)} axes, the graph has {len(value.dims)}"
            )
        for axis, n in enumerate(shape):
            _check(value.name, axis, value.dims[axis] if value.dims is not None else None, n, symbols)
    found: dict[str, tuple[int, ...]] = {}
    guessed: list[str] = []
    for value in declared:
        found[value.name] = _shape(value, shapes.get(value.name), symbols, guessed)
    return Decision(found, tuple(guessed))


def _sorted(declared: Sequence[Declared], given: Given) -> tuple[dict[str, Sequence[int]], dict[str, int]]:
    """Return the given shapes by input and the given lengths by the name of a dimension."""
    inputs = {value.name for value in declared}
    names = list(dict.fromkeys(d for value in declared for d in value.dims or () if isinstance(d, str)))
    shapes: dict[str, Sequence[int]] = {}
    lengths: dict[str, int] = {}
    for name, value in given.items():
        if name in inputs:
            shapes[name] = (value,) if isinstance(value, int) else value
        elif name in names:
            n = value if isinstance(value, int) else value[0] if len(value) == 1 else None
            if isinstance(n, bool) or not isinstance(n, int) or n < -1:
                raise Invalid(f"shapes gives {value!r} for dimension {name!r}, expected one whole number from 0")
            if n >= 0:
                lengths[name] = n
        else:
            raise Invalid(_unknown(name, [value.name for value in declared], names))
    return shapes, lengths


def _unknown(name: str, inputs: Sequence[str], dimensions: Sequence[str]) -> str:
    text = f"shapes names {name!r}: the graph's inputs are {_listed(inputs) or 'none'}"
    if dimensions:
        text += f", its open dimensions {_listed(dimensions)}"
    near = difflib.get_close_matches(name, [*inputs, *dimensions], 1, 0.5)
    return f"{text}; did you mean {near[0]!r}?" if near else text


def _listed(names: Iterable[str]) -> str:
    return ", ".join(map(repr, names))


def _check(name: str, axis: int, declared: int | str | None, given: int, symbols: dict[str, tuple[int, str]]) -> None:
    """Hold a given length against the graph and against `symbols`, its named dimensions' lengths so far."""
    if isinstance(given, bool) or not isinstance(given, int) or given < -1:
        raise Invalid(f"input {name!r}: axis {axis} of the shape is {given!r}, expected a whole number from 0")
    if given == -1:
        return
    if isinstance(declared, int) and given != declared:
        raise Invalid(f"input {name!r}: axis {axis} is {given}, the graph says {declared}")
    if isinstance(declared, str):
        was, where = symbols.setdefault(declared, (given, f"input {name!r}"))
        if was != given:
            raise Invalid(f"input {name!r}: axis {axis} ({declared!r}) is {given}, but it is {was} in {where}")


def _shape(
    value: Declared, given: Sequence[int] | None, symbols: Mapping[str, tuple[int, str]], guessed: list[str]
) -> tuple[int, ...]:
    """Return one input's shape; adds a line to `guessed` where axes of it are decided by nobody."""
    if value.dims is None and given is None:
        raise Invalid(f"input {value.name!r}: the graph does not say how many axes it has: give its shape in shapes")
    dims: Sequence[int | str | None] = value.dims if value.dims is not None else (None,) * len(given or ())
    shape: list[int] = []
    unknown: list[str] = []
    for axis, declared in enumerate(dims):
        if given is not None and given[axis] != -1:
            shape.append(given[axis])
        elif isinstance(declared, int):
            shape.append(declared)
        elif isinstance(declared, str) and declared in symbols:
            shape.append(symbols[declared][0])
        else:
            shape.append(1)
            unknown.append(f"axis {axis} ({declared})" if declared else f"axis {axis}")
    if unknown:
        guessed.append(f"input {value.name!r} {', '.join(unknown)}")
    return tuple(shape)
