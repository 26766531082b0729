"""Turn what the tensor compiler makes into programs that `rig` runs.

`capture` and `from_onnx` make a `Schedule`, `compile` makes it `Compiled`, which is saved for `rig.open`, or linked to
devices and run here. Importing this package imports neither tinygrad nor a compiler; naming what needs them does.

>>> import tolk_engine
>>> schedule = tolk_engine.from_onnx("model.onnx")  # doctest: +SKIP
>>> tolk_engine.compile(schedule).save("model.rig")  # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# Modules that are named as their function are imported here: a later import of the module would hide the function.
from tolk_engine.compile import Compiled, compile
from tolk_engine.link import Linked, Storage, link, run, slots
from tolk_engine.progress import Progress
from tolk_engine.renderer import Renderer, renderer
from tolk_engine.schedule import Schedule, SlotRef, StorageRef, Var
from tolk_engine.target import Target, target

if TYPE_CHECKING:
    from tolk_engine.frontend import CFunction, Spec, capture, fori_loop, from_onnx, scan, while_loop

__all__ = [
    "CFunction", "Compiled", "Linked", "Progress", "Renderer", "Schedule", "SlotRef", "Spec", "Storage",
    "StorageRef", "Target", "Var", "capture", "compile", "fori_loop", "from_onnx", "link", "renderer", "run",
    "scan", "slots", "target", "while_loop",
]  # fmt: skip

_LATER = ("CFunction", "Spec", "capture", "fori_loop", "from_onnx", "scan", "while_loop")


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'tolk_engine' has no attribute {name!r}")
    try:
        from tolk_engine import frontend
    except ModuleNotFoundError as e:
        from rig.errors import Refused

        raise Refused(f"{name} needs a package that is not here ({e}); pip install 'rig-runtime[tolk]'") from e
    value = getattr(frontend, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
