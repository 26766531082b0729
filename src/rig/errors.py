"""The errors of rig: three kinds of failure, and what is kept about each.

A caller broke a rule (`Invalid`), a device said no (`Refused`, `OutOfMemory`), or a device is gone (`Lost`).
"""

from __future__ import annotations

__all__ = ["Cancelled", "Error", "FormatError", "Invalid", "Lost", "OutOfMemory", "Refused"]


class Error(Exception):
    """The base of every error that rig raises on purpose."""


class Invalid(Error, ValueError):
    """The caller broke a rule; nothing was changed unless the message says so."""


class FormatError(Invalid):
    """Bytes that are no description, or a file that is no artifact.

    `where` is the place: a path such as ``steps[3].parts[1].params`` or a byte position such as ``byte 17``.
    """

    def __init__(self, message: str, where: str = "") -> None:
        super().__init__(f"{where}: {message}" if where else message)
        self.where = where


class Refused(Error, RuntimeError):
    """A device cannot do what was asked; the message starts with the device's name or names the step."""


class OutOfMemory(Error, MemoryError):
    """Memory could not be made.

    `device` is the device's name and `nbytes` the number of bytes that were asked for.
    """

    def __init__(self, message: str, device: str = "", nbytes: int = 0) -> None:
        super().__init__(message)
        self.device = device
        self.nbytes = nbytes


class Lost(Error, RuntimeError):
    """A device is gone for good, or memory waits for work that it will never finish.

    `device` is the lost device's name and `step` the step of the program that met it, or None outside a run.
    """

    def __init__(self, message: str, device: str = "", step: int | None = None) -> None:
        super().__init__(message)
        self.device = device
        self.step = step


class Cancelled(Error):
    """The work was cancelled by its caller."""
