"""Devices: memory and, mostly, a processor, with one in-order timeline of work each."""

from __future__ import annotations

import atexit

from rig import _core
from rig._core import Device

__all__ = ["Device", "devices", "host", "memory_device"]

_opened: list[Device] = []


def host(*, threads: int | None = None) -> Device:
    """Give this process's host.

    Its work is done by the thread that submits it, so it is done when a submit returns. `threads` is the number of
    threads, 1 to 4096, that large launches are split over from now on in the whole process; the default is
    `RIG_THREADS`, else the cores that the affinity mask and the control group's quota allow. `RIG_ARCH` (such as
    ``x86-64-v2``) lets it run only what a weaker processor runs; it never adds to what this machine runs.

    Raises Invalid for a number of threads out of range.

    >>> import rig
    >>> rig.host().kind
    'host'
    """
    return _core.host(threads)


def memory_device(
    name: str,
    *,
    nbytes: int | None = None,
    alignment: int = 64,
    borrows: bool = True,
    copies: bool = True,
    delay: float = 0.0,
    fail_at: int | None = None,
) -> Device:
    """Open a memory device: memory and an in-order queue of its own, worked off by a native thread that runs host code.

    It is asynchronous to its caller, as an accelerator is, and shows and tests what programs do on one:

    - `nbytes` limits its memory; None does not.
    - `alignment` is what its memory starts on, a power of two up to 4096, and on no greater one.
    - `borrows=False` makes a device that maps no other memory and whose memory the host does not address.
    - `copies=False` makes a device that copies nothing itself.
    - `delay` in seconds is added to each submission.
    - `fail_at` is the number of the submission, from 1, at which the device is lost.

    Raises Invalid for a value out of range.
    """
    if not isinstance(name, str) or not name:
        from rig.errors import Invalid

        raise Invalid(f"a memory device's name is {name!r}, it takes a string that is not empty")
    device = _core.memory_device(name, nbytes, alignment, borrows, copies, delay, fail_at)
    return opened(device)


def opened(device: Device) -> Device:
    """Count a device that was opened among `devices` until it is closed or lost, and return it."""
    _opened[:] = [d for d in _opened if not d.lost]
    _opened.append(device)
    return device


def devices() -> tuple[Device, ...]:
    """Give the devices there are: the host, the OpenCL devices, and the memory devices and files that are open.

    Drivers are looked up and their devices opened here; `rig.drivers.missing` says why there are none of a kind.
    """
    from rig.drivers import opencl

    opencl.devices()
    _opened[:] = [d for d in _opened if not d.lost]
    return (host(), *_opened)


atexit.register(lambda: _core.at_exit([d for d in _opened if not d.lost]))
