"""Words for how memory is made and used."""

from __future__ import annotations

import enum

__all__ = ["Access", "Kind"]


class Kind(enum.IntEnum):
    """Where memory of a device lives (`rig.Buffer.create`).

    On devices whose memory the host addresses all are the same.
    """

    DEVICE = 0
    """The device's own memory."""
    PINNED = 1
    """Host memory that the host and the device both address, coherent."""
    MAPPED = 2
    """Device memory that the host reaches through a window, else as PINNED."""


class Access(enum.IntEnum):
    """How memory may be used."""

    READ = 0
    READ_WRITE = 1
