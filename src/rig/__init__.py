"""Run compiled tensor programs: devices, memory, code, and programs as plain data that load once and run many times.

The nouns are `Device`, `Buffer`, `Image`, `Submission`, `Point` and `Claim`; `rig.program` describes, checks, loads and
runs programs; `rig.open` opens a model's file. Importing this package opens no device.
"""

from __future__ import annotations

import sys

from rig._core import Buffer, Device, Function, Image, Point, StepPoints
from rig.device import devices, host, memory_device
from rig.errors import Cancelled, Error, FormatError, Invalid, Lost, OutOfMemory, Refused
from rig.version import __version__

TYPE_CHECKING = False  # checkers take it as true; importing `typing` for it would double what `import rig` costs
if TYPE_CHECKING:
    from typing import Any

    from rig import model, program
    from rig.claim import Claim
    from rig.drivers.file import file_device
    from rig.kinds import Access, Kind
    from rig.model import Model, open
    from rig.submission import Submission

__all__ = [
    "Access", "Buffer", "Cancelled", "Claim", "Device", "Error", "FormatError", "Function", "Image", "Invalid", "Kind",
    "Lost", "Model", "OutOfMemory", "Point", "Refused", "StepPoints", "Submission", "__version__", "devices",
    "file_device", "host", "memory_device", "model", "open", "program",
]  # fmt: skip

# What is imported when it is first named, so that a process pays for what it uses.
_LATER = {
    "Access": "rig.kinds",
    "Kind": "rig.kinds",
    "Claim": "rig.claim",
    "Submission": "rig.submission",
    "file_device": "rig.drivers.file",
    "Model": "rig.model",
    "open": "rig.model",
    "model": "",
    "program": "",
}


def __getattr__(name: str) -> Any:
    home = _LATER.get(name)
    if home is None:
        raise AttributeError(f"module 'rig' has no attribute {name!r}")
    __import__(home or f"rig.{name}")  # importlib would have to be imported first
    value = getattr(sys.modules[home], name) if home else sys.modules[f"rig.{name}"]
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
