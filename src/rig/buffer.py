"""Buffers: bytes in a region of a device's memory."""

from __future__ import annotations

from rig._core import Buffer

__all__ = ["Buffer"]
