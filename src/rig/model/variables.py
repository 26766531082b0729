"""The values of a model's variables in one call: from the shapes of its inputs, from the caller, or by default."""

from __future__ import annotations

from rig.errors import Invalid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from rig.model.signature import Signature

__all__ = ["settle"]


def settle(signature: Signature, shapes: Mapping[str, tuple[int, ...]], given: Mapping[str, Any]) -> dict[str, int]:
    """Return the value of each variable of `signature`, in their order.

    `shapes` are those of the inputs whose shape is known, by name; `given` are values by the variable's name. Raises
    `Invalid`, naming the variable and where its value comes from, for one that nothing gives, that is given twice and
    differently, that is no whole number or not in its range, and for a name that is no variable.
    """
    found: dict[str, tuple[int, str]] = {}
    known = signature.ranges
    problems = [f"{n!r} is no variable of the model: it has {_names(signature)}" for n in given if n not in known]
    for name, value in given.items():
        try:
            if name in known:
                found[name] = (_whole(value), "as given")
        except TypeError:
            problems.append(f"variable {name!r} is {value!r}, expected a whole number")
            found[name] = (known[name][0], "")
    for tensor in signature.inputs:
        shape = shapes.get(tensor.name, ())
        if len(shape) != len(tensor.shape):
            continue  # what is wrong with the shape is said where it is taken
        for axis, (extent, size) in enumerate(zip(tensor.shape, shape, strict=True)):
            if not isinstance(extent, str):
                continue
            here = f"by axis {axis} of input {tensor.name!r}"
            value, where = found.setdefault(extent, (size, here))
            if value != size:
                problems.append(f"variable {extent!r} is {value} {where} and {size} {here}")
    values = {}
    for variable in signature.variables:
        value, where = found.get(variable.name, (variable.default, "by default"))
        limits = f"{variable.min} to {variable.max}"
        if value is None:
            problems.append(f"variable {variable.name!r} ({limits}) is not given")
        elif not variable.min <= value <= variable.max:
            problems.append(f"variable {variable.name!r} is {value} {where}, allowed are {limits}")
        else:
            values[variable.name] = value
    if problems:
        raise Invalid("; ".join(problems))
    return values


def _whole(value: Any) -> int:
    """Return a whole number of any type as an int; TypeError for others, and for a bool."""
    if isinstance(value, bool):
        raise TypeError
    from operator import index

    return index(value)


def _names(signature: Signature) -> str:
    return ", ".join(repr(v.name) for v in signature.variables) or "none"
