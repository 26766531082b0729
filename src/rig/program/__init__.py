"""Programs: memory, code and steps of one machine's devices, as plain data that loads once and runs many times.

`description` says what a program is, `codec` turns it into bytes and back, `check` holds it against its rules, `load`
makes it runnable, `run` runs it.
"""

# ruff: noqa: F403, F405 - the names of a description are listed once, below

from __future__ import annotations

import sys

from rig._core import StepPoints
from rig.program.check import check
from rig.program.load import load
from rig.program.run import Bound, Frame, Loaded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from rig.program.codec import of_bytes, to_bytes
    from rig.program.description import *
    from rig.program.initial import Initial

__all__ = [
    "Access", "Address", "Alloc", "Area", "Blob", "Bound", "Copies", "Copy", "Data", "Entry", "Fill", "Fixed", "Frame",
    "Handle", "Hole", "Image", "Initial", "Input", "InputSlot", "Int", "IntsSlot", "Kind", "Launch", "Leaf", "Loaded",
    "Loop", "Memory", "MemorySlot", "Move", "Offset", "Part", "Program", "Rail", "Ready", "Ref", "Slot", "Step",
    "StepPoints", "Submit", "Term", "Use", "Value", "View", "Width", "Words", "check", "load", "of_bytes", "to_bytes",
]  # fmt: skip

# What is imported when it is first named; all other names are a description's. A load of a model needs none of these.
_LATER = {"Initial": "initial", "of_bytes": "codec", "to_bytes": "codec"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'rig.program' has no attribute {name!r}")
    home = f"rig.program.{_LATER.get(name, 'description')}"
    __import__(home)
    value = getattr(sys.modules[home], name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
