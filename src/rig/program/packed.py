"""Programs in their encoded form, decoded and checked natively: what a load takes that nobody looks into.

It saves a process the description, its decoder and its rules. What is not taken here, for whatever reason, goes the way
of the description, which says what is wrong with it, if anything is.
"""

from __future__ import annotations

from rig import _core
from rig.program.arch import runs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from rig.program import description as d
    from rig.program.description import Alloc, Program
    from rig.program.facts import DeviceLike

__all__ = ["Packed", "described"]

# The kinds of devices whose images are code of the host, which a fill can call.
_HOST_CODE = ("host", "memory")


class Packed:
    """A program's bytes that keep every rule which needs no device. Its fields are a description's, as far as they go.

    It has no steps: `native` keeps those until they are built. A second load goes the way of the description.
    """

    __slots__ = ("_data", "_description", "devices", "images", "inputs", "ints", "memory", "native")

    def __init__(self, native: _core.Packed, data: memoryview) -> None:
        self.native = native
        self._data = data
        self._description: Program | None = None
        self.devices: tuple[str, ...] = tuple(native.devices)
        # Type checkers take the rows for what they stand in for.
        self.memory: tuple[Alloc, ...] = tuple([Memory(self._blob(at), *row) for at, *row in native.memory])  # type: ignore[misc]
        self.images: tuple[d.Image, ...] = tuple([Image(self._blob(at), device) for at, device in native.images])  # type: ignore[misc]
        self.inputs: tuple[d.Input, ...] = tuple([Input(*row) for row in native.inputs])  # type: ignore[misc]
        self.ints = native.ints

    @classmethod
    def read(cls, data: memoryview) -> Packed | None:
        """Read a program's bytes, which stay as they are; None, without a reason, for what is not taken here."""
        native = _core.Packed.read(data)
        return None if native is None else cls(native, data)

    def fits(self, devices: Sequence[DeviceLike]) -> bool:
        """Tell whether it can be loaded: the rules are kept that the devices decide, and it was not loaded before."""
        return (
            not self.native.built
            and len(devices) == len(self.devices)
            and all(d.host is devices[0].host or d.host == devices[0].host for d in devices)
            and all(runs(d.arch, arch) for d, arch in zip(devices, self.devices, strict=True))
            and all(devices[i].kind in _HOST_CODE for i in self.native.host_code)
        )

    def _blob(self, at: tuple[int, int] | None) -> Data:
        return _EMPTY if at is None else Data(self._data[at[0] : at[1]])


def described(program: Program | Packed) -> Program:
    """Return the description of a program, decoded when it is first asked for."""
    if not isinstance(program, Packed):
        return program
    if program._description is None:
        from rig.program.codec import of_bytes

        program._description = of_bytes(program._data)
    return program._description


class Data:
    """Bytes without holes."""

    __slots__ = ("bytes",)

    holes = ()

    def __init__(self, data: bytes | memoryview) -> None:
        self.bytes = data


_EMPTY = Data(b"")


class Memory:
    """Memory that a load makes."""

    __slots__ = ("copies", "device", "init", "kind", "nbytes")

    def __init__(self, init: Data, device: int, nbytes: int, copies: int, kind: int) -> None:
        self.device = device
        self.nbytes = nbytes
        self.init = init
        self.copies = copies
        self.kind = kind


class Image:
    """Compiled code."""

    __slots__ = ("binary", "device")

    def __init__(self, binary: Data, device: int) -> None:
        self.device = device
        self.binary = binary


class Input:
    """A buffer that each run gives."""

    __slots__ = ("device", "nbytes")

    def __init__(self, device: int, nbytes: int) -> None:
        self.device = device
        self.nbytes = nbytes
