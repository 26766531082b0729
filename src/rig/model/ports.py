"""What one input or output of a model accepts, and the words for what it does not."""

from __future__ import annotations

from rig.errors import Invalid
from rig.model.arrays import check_view, describe, difference, nbytes, nearest, spell
from rig.model.arrays import dtype as element

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Any

    from rig.model.signature import Tensor

__all__ = ["MISSING", "Port", "fields", "gather", "ports", "refuse", "require_numpy"]


class Port:
    """One input or output: its tensor, and what its arrays must be.

    `label` is how messages call it, `text` what they say that it is. `array` is its NumPy type and `bits` the type that
    its bytes travel as where that one cannot be exported (bfloat16), both unknown until `learn` is called. Arrays of a
    `plain` port need no look beyond NumPy's own flags.
    """

    __slots__ = ("align", "array", "bits", "dtype", "label", "name", "nbytes", "plain", "shape", "slot", "text")

    def __init__(self, kind: str, position: int, tensor: Tensor) -> None:
        self.label = f"{kind} {tensor.name!r} (position {position})"
        self.name = tensor.name
        self.dtype = tensor.dtype
        self.shape = tensor.sizes
        self.slot = tensor.slot
        self.align = tensor.align or element(tensor.dtype).itemsize
        self.nbytes = nbytes(tensor.dtype, self.shape)
        self.text = spell(tensor.dtype, tensor.shape)
        self.array: Any = None
        self.bits: Any = None
        self.plain = self.align <= element(tensor.dtype).itemsize

    def learn(self, np: Any) -> None:
        """Look up the NumPy types; bfloat16 and float8 are ml_dtypes' where that is installed, else plain bits."""
        kind = element(self.dtype)
        bits = np.dtype(f"uint{8 * kind.itemsize}")
        if kind.code:
            self.array = np.dtype(self.dtype)
            return
        try:
            import ml_dtypes  # type: ignore[import-not-found, import-untyped, unused-ignore]
        except ImportError:
            self.array = bits
        else:
            self.array = np.dtype(getattr(ml_dtypes, self.dtype))
            self.bits = bits
            self.plain = False

    def wants(self) -> str:
        """Say what is expected."""
        return f"{self.label}: expected {self.text}"

    def array_of(self, np: Any, value: Any) -> tuple[Any, str]:
        """Return `value` as a dense, aligned array in native byte order, sharing memory where it is one, or a problem.

        Values are kept: strided, byte-swapped and misaligned arrays are copied. Nothing is cast.
        """
        if isinstance(value, np.generic):
            value = np.asarray(value)
        elif not isinstance(value, np.ndarray):
            value, problem = self._exported(np, value)
            if problem:
                return None, problem
        found = value.dtype
        native = found if found.isnative else found.newbyteorder("=")
        if (native != self.array and (self.bits is None or native != self.bits)) or value.shape != self.shape:
            where = difference(self.shape, value.shape)
            text = f"{self.wants()}, found {spell(found.name, value.shape)}"
            return None, f"{text}: {where}" if where else text
        flags = value.flags
        if found != native or not flags.c_contiguous or not flags.aligned or not self.starts_well(value):
            value = np.array(value, native, order="C", copy=True)
        return value if self.bits is None or native == self.bits else value.view(self.bits), ""

    def exportable(self, array: Any) -> Any:
        """Return an array of this port's type as one whose memory NumPy exports."""
        return array if self.bits is None else array.view(self.bits)

    def written(self, np: Any, value: Any) -> str:
        """Say why a NumPy array cannot be written in place, or return an empty string."""
        if not isinstance(value, np.ndarray):
            return f"{self.wants()}, found {describe(value)}, which is no array: pass a NumPy array"
        _, problem = self.buffer_of(value, writable=True)
        if problem or self.starts_well(value):
            return problem
        return self.misaligned(value.__array_interface__["data"][0])

    def _exported(self, np: Any, value: Any) -> tuple[Any, str]:
        if not isinstance(value, (list, tuple, str)):
            try:
                return np.asarray(memoryview(value)), ""
            except (TypeError, ValueError, BufferError):
                pass
            if hasattr(value, "__dlpack__"):
                try:
                    return np.from_dlpack(value), ""
                except (TypeError, ValueError, BufferError, RuntimeError) as error:
                    return None, f"{self.wants()}, found {describe(value)} that NumPy cannot take: {error}"
        return None, f"{self.wants()}, found {describe(value)}, which is no array: pass a NumPy array"

    def starts_well(self, value: Any) -> bool:
        """Tell whether a NumPy array's first byte is aligned as the program needs it."""
        return not value.nbytes or not value.__array_interface__["data"][0] % self.align

    def buffer_of(self, value: Any, *, writable: bool) -> tuple[memoryview, str]:
        """Return a view of `value` to be used in place, or a problem; see `rig.model.arrays.check_view`."""
        if self.bits is None and not element(self.dtype).code and hasattr(value, "view"):
            value = value.view(f"uint{8 * element(self.dtype).itemsize}")  # ml_dtypes' arrays export no buffer
        elif self.bits is not None and getattr(value, "dtype", None) == self.array:
            value = value.view(self.bits)
        try:
            view = memoryview(value)
        except (TypeError, ValueError, BufferError):
            try:
                view = memoryview(_from_dlpack(value))
            except (TypeError, ValueError, BufferError, RuntimeError, ImportError) as error:
                text = f"{self.wants()}, found {describe(value)}, which does not export its memory"
                return memoryview(b""), f"{text}: {error}" if hasattr(value, "__dlpack__") else text
        problem = check_view(view, self.dtype, self.shape, writable=writable)
        return view, f"{self.label}: {problem}" if problem else ""

    def misaligned(self, address: int) -> str:
        """Say why memory at `address` cannot be used in place, or return an empty string."""
        rest = address % self.align
        if not rest or not self.nbytes:
            return ""
        return f"{self.label}: its memory starts {rest} bytes past a multiple of {self.align}, and must start on one"


def ports(kind: str, tensors: Sequence[Tensor]) -> tuple[Port, ...]:
    """Make the ports of a model's inputs or outputs."""
    return tuple(Port(kind, position, tensor) for position, tensor in enumerate(tensors))


def _from_dlpack(value: Any) -> Any:
    """Return a NumPy array over the memory of an object with DLPack; TypeError for others."""
    if not hasattr(value, "__dlpack__"):
        raise TypeError
    return require_numpy().from_dlpack(value)


class _Missing:
    """What stands in the place of a value that was not given."""

    __slots__ = ()


MISSING = _Missing()


def gather(
    wanted: Sequence[Port], args: Sequence[Any], named: Mapping[str, Any], kind: str, *, optional: bool = False
) -> tuple[list[Any], list[str]]:
    """Bring values into the ports' order, MISSING where there is none; return what is wrong too."""
    values: list[Any] = [MISSING] * len(wanted)
    problems: list[str] = []
    index = {port.name: i for i, port in enumerate(wanted)}
    for position, value in enumerate(args):
        if position < len(wanted):
            values[position] = value
        else:
            problems.append(f"position {position}: {_takes(wanted, kind)}, found one more, {describe(value)}")
    for name, value in named.items():
        at = index.get(name, -1)
        if at < 0:
            problems.append(_unknown(wanted, name, value, kind))
        elif values[at] is not MISSING:
            problems.append(f"{wanted[at].label}: it is given by position and by name")
        else:
            values[at] = value
    if not optional:
        lacking = [port for port, value in zip(wanted, values, strict=True) if value is MISSING]
        problems += [f"{port.wants()}, but it is missing" for port in lacking]
    return values, problems


def _takes(wanted: Sequence[Port], kind: str) -> str:
    names = ", ".join(repr(port.name) for port in wanted)
    return f"the model has {len(wanted)} {kind}{'s' if len(wanted) != 1 else ''} ({names})"


def _unknown(wanted: Sequence[Port], name: str, value: Any, kind: str) -> str:
    close = nearest(name, [port.name for port in wanted])
    text = f"{name!r} is no {kind} (found {describe(value)}): {_takes(wanted, kind)}"
    port = next((port for port in wanted if port.name == close), None)
    return f"{text}; did you mean {close!r}, {port.text}?" if port else text


def refuse(problems: Iterable[str]) -> None:
    """Raise `Invalid` with all problems, if there are any."""
    text = "; ".join(problem for problem in problems if problem)
    if text:
        raise Invalid(text)


def require_numpy() -> Any:
    """Import NumPy; an ImportError that says what to do where it is missing."""
    try:
        import numpy
    except ImportError as error:
        raise ImportError(
            "calling a model takes and returns NumPy arrays, and the package numpy is not installed: "
            "install numpy, or use Model.bind or the `rig run` command, which work without it"
        ) from error
    return numpy


def fields(names: Sequence[str]) -> list[str]:
    """Turn output names into distinct field names of a named tuple: what no identifier may hold becomes ``_``."""
    from keyword import iskeyword

    found: list[str] = []
    for name in names:
        text = "".join(c if f"a{c}".isidentifier() else "_" for c in name).lstrip("_") or "output"
        if not text.isidentifier() or text in ("count", "index"):
            text = f"output_{text}"
        if iskeyword(text):
            text += "_"
        plain, number = text, 1
        while text in found:
            number += 1
            text = f"{plain}_{number}"
        found.append(text)
    return found
