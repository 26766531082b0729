"""What writes and compiles the programs of a target, made once per target."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from threading import Event
from typing import TYPE_CHECKING

from rig.errors import Refused
from tolk_engine import cache
from tolk_engine.compiler import Compiler, compiler
from tolk_engine.target import DeviceRecord, Target, target

if TYPE_CHECKING:
    from tolk_engine.schedule import Kernel, Lowered

__all__ = ["Renderer", "of_target", "renderer"]


class Renderer:
    """Writes kernels as text for one host target and compiles them, by default with llvmlite or what the user chose.

    `target` is what it writes for, `version` names what compiles, `processor` what code is tuned for if it is. The two
    keys name text and objects in a `tolk_engine.cache.Cache`: equal keys, equal bytes.

    Raises `Refused` with the reason if the target's compiler is not available.
    """

    def __init__(self, target: Target, using: Compiler | None = None) -> None:
        if not target.on_host:
            raise Refused(f"programs for {target.device} ({target.arch}) cannot be written: only host code is, so far")
        self.target = target
        self._compiler = compiler(target) if using is None else using
        self.version = self._compiler.version
        self.processor = self._compiler.processor

    def render(self, kernel: Kernel) -> Lowered:
        """Return `kernel` as text. Raises `Refused` if the tensor compiler is missing, `Invalid` for a bad kernel."""
        try:
            from tolk_engine.frontend import lower
        except ImportError as e:
            raise Refused(f"kernels are written by tinygrad, which does not import ({e}); "
                          "pip install 'rig-runtime[tolk]'") from e  # fmt: skip
        return lower(kernel, self.target)

    def text_key(self, kernel: Kernel) -> str | None:
        """Return a digest of all that `kernel`'s text depends on, None if that is known in this process only."""
        if not cache.is_key(kernel.key):
            return None
        try:
            from tolk_engine.frontend.writing import writing
        except ImportError:  # `render` says so
            return None
        parts = writing(self.target)
        return cache.key("text", kernel.key, *parts) if parts else None

    def object(self, texts: Sequence[str], *, first: int = 0, stop: Event | None = None) -> bytes:
        """Return the object of `texts`, numbered from `first`. Raises as `tolk_engine.compiler.Compiler.object`."""
        return self._compiler.object(texts, first=first, stop=stop)

    def object_key(self, texts: Sequence[str], *, first: int = 0) -> str | None:
        """Return a digest of all that `object` depends on, None if that cannot be said. Raises as `object`."""
        parts = self._compiler.recipe
        return cache.key("object", self._compiler.module(texts, first=first), *parts) if parts else None


def of_target(target: Target, backend: str | None = None) -> Renderer:
    """Return the renderer of `target` with `backend`, made once: ``llvmlite``, ``clang``, or as ``RIG_COMPILER`` says.

    Raises `Refused` with the reason if its compiler is not available, and `Invalid` if there is no such backend.
    """
    if not target.on_host:
        return Renderer(target)  # says why there is none
    return _made(target, compiler(target, backend))


@functools.cache
def _made(target: Target, using: Compiler) -> Renderer:
    return Renderer(target, using)


def renderer(d: DeviceRecord, backend: str | None = None) -> Renderer:
    """Return the renderer of `d`'s target, the same one for devices of one target.

    Raises `Invalid` if `d` runs no program, and otherwise as `of_target`.
    """
    return of_target(target(d), backend)
