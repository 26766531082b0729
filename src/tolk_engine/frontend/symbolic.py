"""tinygrad's variables, and the extents of shapes that are computed from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tinygrad.uop.ops import Ops, UOp

from rig.errors import Invalid

__all__ = [
    "Variable", "extent_text", "extent_variable", "has_zero", "kernel_variables", "new_variable", "variable_names",
    "varies",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Variable:
    """A variable of a kernel: its name, its least and largest value, and what its value is a multiple of."""

    name: str
    min: int
    max: int
    multiple: int


def new_variable(name: str, low: int, high: int, value: int) -> Any:
    """Return a variable that is bound to `value`, as tinygrad needs it to schedule."""
    return UOp.variable(name, low, high).bind(value)


def kernel_variables(ast: Any) -> tuple[Variable, ...]:
    """Return the variables that a kernel takes, by name."""
    return tuple(sorted(map(_variable, ast.variables()), key=lambda v: v.name))


def _variable(node: Any) -> Variable:
    return Variable(node.expr, int(node.vmin), int(node.vmax), int(node.arg.multiple_of))


def variable_names(ast: Any) -> tuple[str, ...]:
    """Return the names of a kernel's variables, sorted."""
    return tuple(v.name for v in kernel_variables(ast))


def varies(shape: Sequence[int | Any]) -> bool:
    """Tell whether an extent depends on a variable."""
    return not all(isinstance(n, int) for n in shape)


def has_zero(shape: Sequence[int | Any]) -> bool:
    """Tell whether there is no element whatever the variables are."""
    return any(isinstance(n, int) and n == 0 for n in shape)


def extent_variable(extent: Any) -> Variable | None:
    """Return the variable that an extent is, None where it is a computed one."""
    node = extent.src[0] if extent.is_bound_var else extent
    return _variable(node) if node.is_variable else None


_INFIX = {Ops.ADD: "+", Ops.MUL: "*", Ops.FLOORDIV: "//", Ops.FLOORMOD: "%", Ops.CDIV: "//", Ops.CMOD: "%"}


def extent_text(extent: int | Any) -> int | str:
    """Return an extent as an expression of its variables (`rig.model.extents`), or the number it is.

    Raises `Invalid` for one that no expression says.
    """
    if isinstance(extent, int):
        return extent
    text = _expression(extent.simplify())
    return int(text) if text.isdecimal() else text.removeprefix("(").removesuffix(")") if _wrapped(text) else text


def _wrapped(text: str) -> bool:
    """Tell whether the first parenthesis ends with the text."""
    depth = 0
    for at, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0:
            return c == ")" and at == len(text) - 1
    return False


def _expression(node: Any) -> str:
    found = extent_variable(node)
    if found is not None:
        return found.name
    if node.op is Ops.CONST:
        return str(int(node.arg)) if node.arg >= 0 else f"(0-{-int(node.arg)})"
    if node.op is Ops.CAST:
        return _expression(node.src[0])
    if node.op is Ops.MAX:
        return f"max({_expression(node.src[0])},{_expression(node.src[1])})"
    if node.op is Ops.MUL and node.src[1].op is Ops.CONST and node.src[1].arg == -1:
        return f"(0-{_expression(node.src[0])})"
    c_style = node.op in (Ops.CDIV, Ops.CMOD) and (node.src[0].vmin < 0 or node.src[1].vmin < 1)
    if node.op not in _INFIX or c_style:
        raise Invalid(f"an extent is computed by {node.op}: only sums, products, quotients and maxima are supported")
    if node.op is Ops.ADD and node.src[1].op is Ops.CONST and node.src[1].arg < 0:
        return f"({_expression(node.src[0])}-{-int(node.src[1].arg)})"
    return f"({_expression(node.src[0])}{_INFIX[node.op]}{_expression(node.src[1])})"
