"""OpenCL devices: processors and accelerators that a platform of this machine brings a driver for."""

from __future__ import annotations

import _thread

from rig import _core
from rig.device import opened
from rig.errors import Invalid

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rig._core import Device

__all__ = ["devices", "missing", "open_device"]

_MEMORY = ("best", "fine", "coarse", "handles")
_open: dict[int, Device] = {}
_lock = _thread.allocate_lock()


def devices() -> tuple[Device, ...]:
    """Give the OpenCL devices of this machine, named opencl0, opencl1, ... in the order of their platforms.

    The loader, libOpenCL.so.1, and the platforms are looked up at the first call in a process; each device is opened
    once, and again after it was closed or lost. Empty where there are none: `missing` says why.

    Images are text in OpenCL C, or SPIR-V where the device takes it; what its compiler says is in the Refused. Word i
    of a launch's parameters is argument i of the kernel: an address for a pointer to global or constant memory, the
    number of bytes for a pointer to local memory, else the value in the word's low bytes. `groups` counts work-groups
    and `threads` the work-items of one; `shared` is 0.
    """
    found, _ = _core.opencl_devices()
    with _lock:
        for index in range(len(found)):
            if index not in _open or _open[index].lost:
                _open[index] = open_device(index)
        return tuple(_open[index] for index in range(len(found)))


def open_device(index: int, *, name: str | None = None, memory: str = "best", fail_at: int | None = None) -> Device:
    """Open OpenCL device `index` once more, with a queue and a timeline of its own; `name` is by default opencl<index>.

    - `memory` is how its memory is known: "fine" by an address that the host reaches too, "coarse" by an address,
      "handles" by an object (a ``cl_mem``), which a launch's pointer names from its first byte or from a multiple of
      the device's alignment; "best" is the first of these that it has. What it has not falls back to the next.
    - `fail_at` is the number of the submission, from 1, at which the device is lost, to show what programs do then.

    Devices of one platform reach each other's memory where it is known in the same way. A processor's device maps host
    memory; others do not, so that what they work on is moved.

    Raises Invalid for a value out of range, Refused for a device that there is not.
    """
    if memory not in _MEMORY:
        raise Invalid(f"memory is {memory!r}, allowed are 'best', 'fine', 'coarse' and 'handles'")
    if fail_at is not None and fail_at < 1:
        raise Invalid(f"fail_at is {fail_at}, submissions are numbered from 1")
    if not 0 <= index < 2**31:
        raise Invalid(f"index is {index}, devices are numbered from 0")
    device = _core.opencl_device(name or f"opencl{index}", index, _MEMORY.index(memory), fail_at or 0)
    return opened(device)


def missing() -> str | None:
    """Say in one line why `devices` is empty, or give None where it is not."""
    found, why = _core.opencl_devices()
    return None if found else why
