"""A file of 256 MiB that the system has in memory, copied to the host and to a memory device, against read(2)."""

from __future__ import annotations

import ctypes
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

import rig
from benchmarks.build import reference
from benchmarks.measure import Result, pairs, per_call

NBYTES = 256 << 20
BLOCK = 1 << 20
EXTRA = 64 << 20
"""The most memory, in bytes, that a copy may take besides its ends."""


def _touched(device: rig.Device) -> rig.Buffer:
    made = rig.Buffer.create(device, NBYTES)
    made.write(np.ones(NBYTES, np.uint8))
    return made


def _status(key: str) -> int:
    with Path("/proc/self/status").open() as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith(key))


def _extra(copy: Callable[[], object]) -> int:
    """Return how many bytes more than before the process has at once during a copy."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = _status("VmRSS")
    copy()
    return max(0, _status("VmHWM") - before)


def _theirs(path: Path) -> tuple[Callable[[], float], Callable[[], None]]:
    read = reference("readblocks").readblocks
    read.restype = ctypes.c_double
    read.argtypes = (ctypes.c_int, ctypes.c_void_p, ctypes.c_long, ctypes.c_long)
    target, file = _touched(rig.host()), path.open("rb", buffering=0)

    def sample() -> float:
        spent = float(read(file.fileno(), target.address, NBYTES, BLOCK))
        if spent < 0:
            raise OSError(f"cannot read {path}")
        return NBYTES / spent

    return sample, file.close


def _measure(work: str, what: str, device: rig.Device) -> Result:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "data")
        data = np.random.default_rng(0).bytes(1 << 20) * (NBYTES >> 20)
        path.write_bytes(data)
        theirs, close = _theirs(path)
        with rig.file_device(path) as file:
            source, target = rig.Buffer.file(file), _touched(device)

            def copy() -> None:
                source.submit_copy(target).wait()

            extra = _extra(copy)
            if extra >= EXTRA:
                raise AssertionError(f"a copy takes {extra} bytes besides its ends, allowed is less than {EXTRA}")
            if target.read() != data:
                raise AssertionError("the copy is not what the file holds")
            spent = per_call(copy, 1)
            value, against = pairs(lambda: NBYTES / spent(), theirs)
        close()
    return Result(work, what, "GB/s", value, against, 0.9, 15, side={"extra_MiB": extra / (1 << 20)}, at_least=True)


def measure_host() -> Result:
    """Measure the copy to the host's memory."""
    return _measure("file_host", "a file of 256 MiB to the host", rig.host())


def measure_memory() -> Result:
    """Measure the copy to a memory device."""
    with rig.memory_device("file_memory") as device:
        return _measure("file_memory", "a file of 256 MiB to a memory device", device)
