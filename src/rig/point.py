"""Points of completion: values on devices' timelines."""

from __future__ import annotations

from rig._core import Point, StepPoints

__all__ = ["Point", "StepPoints"]
