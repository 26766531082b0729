"""What decides a kernel's text besides its description."""

from __future__ import annotations

from tinygrad import codegen
from tinygrad.helpers import TUPLE_ORDER, getenv

from tolk_engine.frontend import adapter
from tolk_engine.frontend.identity import sources
from tolk_engine.frontend.lower import TargetLike, portable_arch

__all__ = ["writing"]

_ENVIRONMENT = {"ALLOW_HALF8": 0, "DMC": 0, "OCCUPANCY_FLOOR": 4096}
"""What tinygrad's code generator asks of the environment where it writes for a host, and what it takes for granted."""


def writing(target: TargetLike | str) -> tuple[str, ...]:
    """Return all that `lower` goes by for `target` besides a kernel: versions, code and settings.

    Empty where the code that writes cannot be read, so that nobody knows whether it is the same.
    """
    code = sources()
    if not code:
        return ()
    with adapter.pinned():
        settings = [f"{v.key}={v.value}" for v in (*codegen.to_program_config, TUPLE_ORDER)]
    settings += [f"{name}={getenv(name, default)}" for name, default in _ENVIRONMENT.items()]
    arch = portable_arch(target if isinstance(target, str) else target.arch)
    return (arch, f"tinygrad {adapter.VERSION}", code, *settings)
