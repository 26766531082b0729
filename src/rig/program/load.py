"""Loading: from a description to a program that runs, on the devices of one machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from rig import _core
from rig._core import Buffer, Image
from rig.errors import OutOfMemory, Refused
from rig.program.check import check
from rig.program.description import Address, Alloc, Copies, Entry, Fixed, Program, Rail
from rig.program.holes import fill
from rig.program.run import Loaded

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import TypeVar

    from rig._core import Device
    from rig.program.description import Value
    from rig.program.facts import Rails

    _T = TypeVar("_T")

__all__ = ["InPlace", "Initial", "load", "make"]


class Initial(Protocol):
    """First bytes of memory that come from elsewhere than the description, such as a weight in a file."""

    @property
    def nbytes(self) -> int: ...

    def read_into(self, view: memoryview) -> None:
        """Fill `view`, of exactly `nbytes` bytes; called once per copy."""


class InPlace(Initial, Protocol):
    """First bytes that may be used where they lie."""

    def in_place(self) -> memoryview | None:
        """Return the bytes, which stay as they are while the view is there, or None if they have to be read."""


def load(
    p: Program,
    devices: Sequence[Device],
    *,
    rails: Rails | None = None,
    initial: Mapping[int, Initial] | None = None,
) -> Loaded:
    """Load `p` on `devices`, all of one machine: device i of `p` is ``devices[i]``.

    It checks `p`, loads the images in order, makes the memory, writes its first bytes with their holes filled, and
    prepares one submission for each Submit step, one per copy where the step names memory of two copies. What it made
    is given back if it raises. `initial` gives the first bytes of memory whose init in `p` is empty, by its index; what
    is `InPlace` is used where it lies for memory of the host that nothing writes. It may be called from any thread.

    Raises Invalid if `p` breaks a rule (see `check`) or a hole's value meets set bits; Refused, naming the device or
    the step, for what a device refuses: an image, a function that is missing, memory that it does not borrow, a part
    that it does not run; OutOfMemory if memory cannot be made; Lost if a device is lost.
    """

    def build(memory: list[list[Buffer]], images: list[Image], ints: list[Buffer]) -> _core.Program:
        return _core.build_program(p, list(devices), memory, images, ints, False)

    return Loaded(make(p, devices, rails, initial, build), p, tuple(devices))


def make(
    p: Program,
    devices: Sequence[Device],
    rails: Rails | None,
    initial: Mapping[int, Initial] | None,
    build: Callable[[list[list[Buffer]], list[Image], list[Buffer]], _T],
) -> _T:
    """Make all that `load` makes for `p`, and return what `build` makes of the memory, the images and the ints.

    It is given back if anything raises, `build` too. Raises as `load` does.
    """
    _core.refuse_in_callback("a load")
    check(p, devices, rails)
    for i, m in enumerate(p.memory):
        if isinstance(m, Rail):
            raise Refused(f"memory[{i}]: this version of rig makes no rails, rail {m.rail} cannot be borrowed")
    images: list[Image] = []
    memory: list[list[Buffer]] = []
    try:
        for device in devices:
            if device.lost:
                Buffer.create(device, 0)  # raises Lost, with the reason
        _load_images(p, devices, images)
        lent = _lend(p, devices, initial or {})
        _make_memory(p, devices, memory, lent)
        _write_inits(p, devices, memory, images, initial or {}, lent)
        # Of no words too: a slot may name them.
        memory.append([Buffer.create(_core.host(), 8 * p.ints) for _ in range(2)])
        return build(memory[:-1], images, memory[-1])
    except BaseException:
        # The exception keeps this frame: what was made must not live as long as it.
        for copies in memory:
            for buffer in copies:
                buffer.free()
        memory.clear()
        images.clear()
        raise


def _load_images(p: Program, devices: Sequence[Device], images: list[Image]) -> None:
    for i, image in enumerate(p.images):
        place = f"images[{i}].binary"

        def leaf(value: Value, place: str = place) -> int:
            return images[value.image].resolve(value.name).entry if isinstance(value, Entry) else _number(value, place)

        images.append(Image.load(devices[image.device], fill(image.binary, leaf, place)))


def _number(value: Value, place: str) -> int:
    if isinstance(value, Fixed):
        return value.value
    raise Refused(f"{place}: no device of this version has what {value!r} names: handles and rails")


def _lend(p: Program, devices: Sequence[Device], initial: Mapping[int, Initial]) -> dict[int, Buffer]:
    """Name the initial bytes that are used where they lie, by memory."""
    offers = {i: source for i, source in initial.items() if hasattr(source, "in_place")}
    if not offers:
        return {}
    from rig.program.uses import written

    kept = written(p)
    lent: dict[int, Buffer] = {}
    for i, source in offers.items():
        m = p.memory[i]
        fits = isinstance(m, Alloc) and m.copies == Copies.ONE and m.nbytes == source.nbytes and i not in kept
        if not fits or devices[m.device].kind != "host":  # type: ignore[union-attr]
            continue
        view: memoryview | None = source.in_place()
        if view is not None:
            buffer = Buffer.of(view)
            if buffer.aligned(devices[m.device].alignment):  # type: ignore[union-attr]
                lent[i] = buffer
    return lent


def _make_memory(p: Program, devices: Sequence[Device], memory: list[list[Buffer]], lent: Mapping[int, Buffer]) -> None:
    allocs = [m for m in p.memory if isinstance(m, Alloc)]
    memory.extend([lent[i]] if i in lent else [] for i in range(len(allocs)))
    # The host's memory is made in one piece: fifty weights of a megabyte would each be mapped, without huge pages.
    at_host = [
        i for i, m in enumerate(allocs) if devices[m.device].kind == "host" and i not in lent for _ in range(m.copies)
    ]
    if at_host:
        pieces = _core.create_many(_core.host(), [allocs[i].nbytes for i in at_host])
        for i, piece in zip(at_host, pieces, strict=True):
            memory[i].append(piece)
    for i, m in enumerate(allocs):
        try:
            while len(memory[i]) < m.copies:
                memory[i].append(Buffer.create(devices[m.device], m.nbytes, kind=m.kind))
        except OutOfMemory as error:
            raise OutOfMemory(f"{error}, for memory[{i}]", error.device, error.nbytes) from None


def _write_inits(
    p: Program,
    devices: Sequence[Device],
    memory: list[list[Buffer]],
    images: list[Image],
    initial: Mapping[int, Initial],
    lent: Mapping[int, Buffer],
) -> None:
    for i, m in enumerate(p.memory):
        assert isinstance(m, Alloc)
        if i in lent:
            continue
        place = f"memory[{i}].init"
        for copy, buffer in enumerate(memory[i]):
            if i in initial:
                _read_into(buffer, initial[i])
                continue

            def leaf(value: Value, copy: int = copy, place: str = place) -> int:
                if isinstance(value, Entry):
                    return images[value.image].resolve(value.name).entry
                if isinstance(value, Address):
                    copies = memory[value.memory]
                    seen = copies[copy if len(copies) == Copies.TWO else 0].borrow(devices[value.on])
                    return seen.address
                return _number(value, place)

            data = fill(m.init, leaf, place)
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
