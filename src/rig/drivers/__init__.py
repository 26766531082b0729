"""Devices besides the host and memory devices, one module for each kind, imported when it is asked for."""

from __future__ import annotations

__all__ = ()
