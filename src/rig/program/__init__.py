"""Programs: memory, code and steps of one machine's devices, as plain data that loads once and runs many times.

`description` says what a program is, `codec` turns it into bytes and back, `check` holds it against its rules, `load`
makes it runnable, `run` runs it.
"""

from __future__ import annotations

from rig._core import StepPoints
from rig.program.check import check
from rig.program.codec import of_bytes, to_bytes
from rig.program.description import *  # noqa: F403
from rig.program.description import __all__ as _names
from rig.program.load import Initial, load
from rig.program.run import Bound, Frame, Loaded

__all__ = ["Bound", "Frame", "Initial", "Loaded", "StepPoints", "check", "load", "of_bytes", "to_bytes", *_names]
