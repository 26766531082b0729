"""Functions of a shared library as kernels of a captured function."""

from __future__ import annotations

import hashlib
import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from tinygrad import Tensor

from rig.errors import Invalid
from tolk_engine.elf import machine
from tolk_engine.frontend import adapter, kernels, symbolic
from tolk_engine.frontend.spec import Spec
from tolk_engine.schedule import Foreign

__all__ = ["CFunction", "ForeignCall", "known"]

Outputs: TypeAlias = Spec | Sequence[Spec]

_PREFIX = "foreign_"


class ForeignCall:
    """A foreign kernel with the values of one call; those that a run gives are names of variables."""

    def __init__(self, kernel: Foreign, values: tuple[int | str, ...], outputs: int) -> None:
        self.kernel = kernel
        self.values = values
        self.outputs = outputs


_KNOWN: weakref.WeakValueDictionary[str, ForeignCall] = weakref.WeakValueDictionary()


class CFunction:
    """A function of a shared library, called like one of tensors inside a function that is captured.

    The library is an ELF file, such as ``gcc -O2 -shared -fPIC`` makes, or its bytes. It becomes a part of the model;
    what it needs beside the C and math libraries must be in it. The function has the calling form

        void f(const uint64_t *words, uint64_t begin, uint64_t end)

    in which `words` are the addresses of the outputs, then of the inputs, each dense, in C order and aligned to its
    elements, then the whole numbers of the call as they are. It writes each element of its outputs and nothing else. A
    run calls it for ranges that together are 0 to `iterations`, on several threads at once where that pays: `ops`
    operations and `mem` bytes of memory in all say how much work it is. By default there is one iteration.

    `outputs` is a `Spec` for each output, or a function that is called with the inputs and numbers and returns them; so
    may be `iterations`, `ops` and `mem`. The code must run on every processor that the model is for: nothing checks its
    instructions.

    >>> gemm = tolk_engine.CFunction("gemm.so", "gemm", lambda a, b: Spec((a.shape[0], b.shape[1])))  # doctest: +SKIP
    >>> tolk_engine.capture(lambda a, b: gemm(a, b).relu(), Spec((8, 16)), Spec((16, 4)))  # doctest: +SKIP

    Raises `Invalid` if the library is no shared library or has no such name, `OSError` if it cannot be read.
    """

    def __init__(
        self,
        library: str | os.PathLike[str] | bytes,
        name: str,
        outputs: Outputs | Callable[..., Outputs],
        *,
        iterations: int | Callable[..., int] = 1,
        ops: int | Callable[..., int] = 0,
        mem: int | Callable[..., int] = 0,
    ) -> None:
        label = "the library" if isinstance(library, bytes) else os.fspath(library)
        data = library if isinstance(library, bytes) else Path(library).read_bytes()
        if not machine(data):
            raise Invalid(f"{label} is no shared library for x86-64 or arm64, such as `gcc -shared -fPIC` makes")
        if b"\0" + name.encode() + b"\0" not in data:
            raise Invalid(f"{label} has no function named {name!r}")
        self.name = name
        self._library = data
        self._digest = hashlib.sha256(data).hexdigest()
        self._outputs = outputs
        self._sizes = {"iterations": iterations, "ops": ops, "mem": mem}
        self._calls: dict[str, ForeignCall] = {}

    def __repr__(self) -> str:
        """Say the function's name."""
        return f"CFunction({self.name!r})"

    def __call__(self, *args: Any) -> Any:
        """Return the tensors that the function makes of tensors and whole numbers: one, or a tuple of several.

        A number may be a variable. Raises `Invalid` for other arguments, and tensors whose shape varies.
        """
        tensors = [a for a in args if isinstance(a, Tensor)]
        values = tuple(self._value(i, a) for i, a in enumerate(args) if not isinstance(a, Tensor))
        for i, t in enumerate(tensors):
            if symbolic.varies(t.shape) or not adapter.is_placeable(t):
                raise Invalid(f"{self.name}: tensor {i} must have a fixed shape and lie on a device, it is {t}")
        wanted = self._outputs(*args) if callable(self._outputs) else self._outputs
        specs = [wanted] if isinstance(wanted, Spec) else list(wanted)
        for spec in specs:
            if not isinstance(spec, Spec) or not all(isinstance(n, int) for n in spec.shape):
                raise Invalid(f"{self.name}: an output is {spec!r}, expected a Spec of fixed shape")
        if not specs:
            raise Invalid(f"{self.name}: it has no outputs")
        device = next((t.device for t in tensors), specs[0].device)
        shapes = [tuple(n for n in s.shape if isinstance(n, int)) for s in specs]
        made = [adapter.new_placeholder(n, s.dtype, device)[0] for n, s in zip(shapes, specs, strict=True)]
        call = self._call(args, made, tensors, values)
        uops = kernels.call_opaque(call.kernel.name, [t.uop for t in made], [t.contiguous().uop for t in tensors])
        results = tuple(Tensor(u) for u in uops)
        return results[0] if isinstance(wanted, Spec) else results

    def _value(self, position: int, given: Any) -> int | str:
        if isinstance(given, int) and not isinstance(given, bool):
            return given
        variable = symbolic.extent_variable(given) if hasattr(given, "is_bound_var") else None
        if variable is None:
            raise Invalid(
                f"{self.name}: argument {position} is {type(given).__name__}, expected a tensor, a whole number or a "
                "variable"
            )
        return variable.name

    def _call(
        self, args: Sequence[Any], made: Sequence[Any], tensors: Sequence[Any], values: tuple[int | str, ...]
    ) -> ForeignCall:
        """Return the kernel for these arguments, the same one for equal ones."""
        sizes = {}
        for what, given in self._sizes.items():
            number = given(*args) if callable(given) else given
            if isinstance(number, bool) or not isinstance(number, int) or number < 0:
                raise Invalid(f"{self.name}: {what} is {number!r}, expected a whole number from 0")
            sizes[what] = number
        forms = [(tuple(t.shape), adapter.dtype_name(t.dtype)) for t in (*made, *tensors)]
        said = repr((self._digest, self.name, sizes, forms, len(made), values))
        key = hashlib.sha256(said.encode()).hexdigest()
        name = f"{_PREFIX}{self.name}_{key[:16]}"
        if name not in self._calls:
            aligns = tuple(adapter.itemsize(dtype) for _, dtype in forms)
            kernel = Foreign(key, name, self._library, self.name, aligns, len(values), **sizes)
            self._calls[name] = _KNOWN[name] = ForeignCall(kernel, values, len(made))
        return self._calls[name]


def known(name: str) -> ForeignCall | None:
    """Return the foreign call of which a recorded kernel has the name, None for tinygrad's own kernels."""
    return _KNOWN.get(name) if name.startswith(_PREFIX) else None
