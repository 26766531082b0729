"""Loading: from a description to a program that runs, on the devices of one machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from rig import _core
from rig._core import Buffer, Image
from rig.errors import Refused
from rig.program.check import check
from rig.program.description import Address, Alloc, Copies, Entry, Fixed, Program, Rail
from rig.program.holes import fill
from rig.program.run import Loaded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rig._core import Device
    from rig.program.description import Value

__all__ = ["Initial", "load"]


class Initial(Protocol):
    """First bytes of memory that come from elsewhere than the description, such as a weight in a file."""

    @property
    def nbytes(self) -> int: ...

    def read_into(self, view: memoryview) -> None:
        """Fill `view`, of exactly `nbytes` bytes; called once per copy."""


def load(
    p: Program,
    devices: Sequence[Device],
    *,
    rails: Callable[[int], object | None] | None = None,
    initial: Mapping[int, Initial] | None = None,
) -> Loaded:
    """Load `p` on `devices`, all of one machine: device i of `p` is ``devices[i]``.

    It checks `p`, loads the images in order, makes the memory, writes its first bytes with their holes filled, and
    prepares one submission for each Submit step, one per copy where the step names memory of two copies. What it made is
    given back if it raises. `initial` gives the first bytes of memory whose init in `p` is empty, by its index. It may be
    called from any thread.

    Raises Invalid if `p` breaks a rule (see `check`) or a hole's value meets set bits; Refused, naming the device or the
    step, for what a device refuses: an image, a function that is missing, memory that it does not borrow, a part that it
    does not run; OutOfMemory if memory cannot be made; Lost if a device is lost.
    """
    _core.refuse_in_callback("a load")
    check(p, devices, rails)
    for i, m in enumerate(p.memory):
        if isinstance(m, Rail):
            raise Refused(f"memory[{i}]: this version of rig makes no rails, rail {m.rail} cannot be borrowed")
    images = _load_images(p, devices)
    memory = _make_memory(p, devices)
    _write_inits(p, devices, memory, images, initial or {})
    ints = [Buffer.create(_core.host(), 8 * p.ints) for _ in range(2)] if p.ints else []
    native = _core.build_program(p, list(devices), memory, images, ints, False)
    return Loaded(native, p, tuple(devices))


def _load_images(p: Program, devices: Sequence[Device]) -> list[Image]:
    images: list[Image] = []

    def leaf(value: Value) -> int:
        if isinstance(value, Entry):
            return images[value.image].resolve(value.name).entry
        return _number(value)

    for i, image in enumerate(p.images):
        images.append(Image.load(devices[image.device], fill(image.binary, leaf, f"images[{i}].binary")))
    return images


def _number(value: Value) -> int:
    if isinstance(value, Fixed):
        return value.value
    raise Refused(f"no device of this version has what {value!r} names: handles and rails")


def _make_memory(p: Program, devices: Sequence[Device]) -> list[list[Buffer]]:
    allocs = [m for m in p.memory if isinstance(m, Alloc)]
    # The host's memory is made in one piece: fifty weights of a megabyte would each be mapped, without huge pages.
    sizes = [m.nbytes for m in allocs if devices[m.device].kind == "host" for _ in range(m.copies)]
    pieces = iter(_core.create_many(_core.host(), sizes) if sizes else ())
    return [
        [
            next(pieces) if devices[m.device].kind == "host" else Buffer.create(devices[m.device], m.nbytes, kind=m.kind)
            for _ in range(m.copies)
        ]
        for m in allocs
    ]


def _write_inits(
    p: Program, devices: Sequence[Device], memory: list[list[Buffer]], images: list[Image], initial: Mapping[int, Initial]
) -> None:
    for i, m in enumerate(p.memory):
        assert isinstance(m, Alloc)
        for copy, buffer in enumerate(memory[i]):
            if i in initial:
                _read_into(buffer, initial[i])
                continue

            def leaf(value: Value, copy: int = copy) -> int:
                if isinstance(value, Entry):
                    return images[value.image].resolve(value.name).entry
                if isinstance(value, Address):
                    copies = memory[value.memory]
                    seen = copies[copy if len(copies) == Copies.TWO else 0].borrow(devices[value.on])
                    return seen.address
                return _number(value)

            data = fill(m.init, leaf, f"memory[{i}].init")
            if len(data):
                buffer.view(0, len(data)).write(data)


def _read_into(buffer: Buffer, source: Initial) -> None:
    target = buffer.view(0, source.nbytes)
    if target.device.borrows:
        with memoryview(target) as view:
            source.read_into(view)
        return
    whole = bytearray(source.nbytes)
    source.read_into(memoryview(whole))
    target.write(whole)
