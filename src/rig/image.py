"""Images: compiled code loaded on a device, and its functions."""

from __future__ import annotations

from rig._core import Function, Image

__all__ = ["Function", "Image"]
