"""What a captured function takes or makes: a tensor's shape, dtype, name and device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rig.errors import Invalid
from tolk_engine.frontend import adapter
from tolk_engine.schedule import Var

__all__ = ["Spec"]


@dataclass(frozen=True, slots=True)
class Spec:
    """What a function takes: the shape of a tensor in elements, its dtype (a NumPy-like name), its name and device.

    An extent may be a `Var`: one program then takes every shape in its range, and the shape that is given to a run says
    its value. Without a `name` the function's parameter names the input. The device is a name that linking maps to a
    device.
    """

    shape: tuple[int | Var, ...]
    dtype: str = "float32"
    name: str | None = None
    device: str = "CPU"

    def __post_init__(self) -> None:
        label = f"input {self.name!r}" if self.name else "an input"
        shape = (self.shape,) if isinstance(self.shape, int) else tuple(self.shape)
        for axis, n in enumerate(shape):
            if isinstance(n, Var):
                if n.min < 0:
                    raise Invalid(f"{label}: axis {axis} of the shape is {n.name}, which may be {n.min}")
                continue
            if isinstance(n, bool) or not isinstance(n, int) or n < 0:
                raise Invalid(f"{label}: axis {axis} of the shape is {n!r}, expected a whole number from 0")
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "dtype", _dtype(self.dtype))
        object.__setattr__(self, "device", self.device.upper())


def _dtype(given: Any) -> str:
    """Return the name of a dtype that is given as a name, a NumPy dtype or type, or tinygrad's own."""
    if isinstance(given, str):
        return adapter.dtype_name(adapter.dtype_of(given))
    name = getattr(given, "__name__", None) or getattr(given, "name", None)
    if isinstance(given, type) and given in (bool, float, int):
        raise Invalid(f"dtype {given.__name__} has no width: name one, such as 'float32'")
    if type(given).__module__.startswith("tinygrad"):
        return adapter.dtype_name(given)
    return adapter.dtype_name(adapter.dtype_of(str(name)))
