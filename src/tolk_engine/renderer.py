"""What writes and compiles the programs of a target, made once per target."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rig.errors import Refused
from tolk_engine.compiler import compiler
from tolk_engine.target import DeviceRecord, Target, target

if TYPE_CHECKING:
    from tolk_engine.schedule import Kernel, Lowered

__all__ = ["Renderer", "of_target", "renderer"]


class Renderer:
    """Writes kernels as text for one host target and compiles them.

    `target` is what it writes for, `version` names what compiles, `processor` what code is tuned for if it is.

    Raises `Refused` with the reason if the target's compiler is not available.
    """

    def __init__(self, target: Target) -> None:
        if not target.on_host:
            raise Refused(f"programs for {target.device} ({target.arch}) cannot be written: only host code is, so far")
        self.target = target
        self._compiler = compiler(target)
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

    def object(self, texts: Sequence[str], *, first: int = 0) -> bytes:
        """Return the object of `texts`, numbered from `first`. Raises as `tolk_engine.compiler.Compiler.object`."""
        return self._compiler.object(texts, first=first)


@functools.cache
def of_target(target: Target) -> Renderer:
    """Return the renderer of `target`. Raises `Refused` with the reason if its compiler is not available."""
    return Renderer(target)


def renderer(d: DeviceRecord) -> Renderer:
    """Return the renderer of `d`'s target, the same one for devices of one target.

    Raises `Invalid` if `d` runs no program, and `Refused` with the reason if its compiler is not available.
    """
    return of_target(target(d))
