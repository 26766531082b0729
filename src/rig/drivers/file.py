"""Files as devices: memory that is larger than memory, and outlives the process."""

from __future__ import annotations

import os
import stat

from rig import _core
from rig.device import opened
from rig.errors import Invalid, Refused

TYPE_CHECKING = False
if TYPE_CHECKING:
    from rig._core import Device

__all__ = ["file_device"]

_FLAGS = {"r": os.O_RDONLY, "r+": os.O_RDWR, "w+": os.O_RDWR | os.O_CREAT | os.O_TRUNC}


def file_device(
    path: str | bytes | os.PathLike[str] | os.PathLike[bytes], mode: str = "r", *, nbytes: int = 0
) -> Device:
    """Open a regular file as a device of kind "file": memory that is read and written in order, and no other work.

    `rig.Buffer.file(device, offset, nbytes)` names bytes of the file; its size is the one that the file has when it is
    opened. Bytes move to and from other devices by `submit_copy` and by the moves of programs: a thread of the device
    reads them straight into memory that the host addresses, or writes them from there, in pieces; its points are on
    the file's timeline. To and from memory that the host does not address they pass through a fixed piece of host
    memory. Nothing is mapped, so no access of a file that changes ends the process.

    - `mode` "r" is read-only memory. "r+" reads and writes a file that exists. "w+" makes a file of `nbytes` bytes, all
      of them zero, or empties the one there is first; only there `nbytes` is allowed.
    - Where it is written, `Buffer.create(device, n)` makes memory, zero at first, behind the end of the file, which
      grows by whole pages; they return to the system when the memory is freed, and when the device is closed.
    - What is written is in the file when its point is reached, as other processes see it. It is not flushed to disk.

    A file that became shorter gives no bytes: `read` and `write` of what is missing are Refused; a copy of it is work
    that was not done, so its point and the memory that it would have written raise Lost. A file that a copy could not
    write raises Lost wherever its memory is used later, until it is opened anew.

    Raises Invalid for another mode or size, Refused for what is no regular file, and OSError as the system gives it:
    a file that is missing, a folder, no permission, no room.

    >>> import os, tempfile
    >>> import rig
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with rig.file_device(os.path.join(folder, "numbers"), "w+", nbytes=8) as file:
    ...         rig.Buffer.file(file, 2, 3).write(b"abc")
    ...         bytes(rig.Buffer.file(file).read())
    b'\\x00\\x00abc\\x00\\x00\\x00'
    """
    if mode not in _FLAGS:
        raise Invalid(f"mode is {mode!r}, allowed are 'r', 'r+' and 'w+'")
    if type(nbytes) is not int or not 0 <= nbytes < 2**62:
        raise Invalid(f"nbytes is {nbytes!r}, allowed is a number of bytes from 0 to 2**62 - 1")
    if nbytes and mode != "w+":
        raise Invalid(f"nbytes is {nbytes} in mode {mode!r}, the size of a file that exists is its own")
    path = os.fspath(path)
    name = os.fsencode(path).decode("utf-8", "replace")
    # Opening a pipe would otherwise wait for its other end.
    fd = os.open(path, _FLAGS[mode] | os.O_CLOEXEC | os.O_NONBLOCK, 0o666)
    try:
        found = os.fstat(fd)
        if stat.S_ISDIR(found.st_mode):
            import errno

            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if not stat.S_ISREG(found.st_mode):
            raise Refused(f"{name}: it is no regular file")
        if mode == "w+":
            try:
                os.ftruncate(fd, nbytes)
            except OSError as error:
                raise OSError(error.errno, error.strerror, path) from None
    except BaseException:
        os.close(fd)
        raise
    return opened(_core.file_device(name, fd, nbytes if mode == "w+" else found.st_size, mode != "r"))
