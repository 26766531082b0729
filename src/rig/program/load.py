"""Loading: from a description to a program that runs, on the devices of one machine."""

from __future__ import annotations

from rig import _core
from rig._core import Buffer, Image
from rig.errors import OutOfMemory, Refused
from rig.program.check import check
from rig.program.packed import Packed, described
from rig.program.run import Loaded

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence
    from typing import TypeVar

    from rig._core import Device
    from rig.program.description import Alloc, Data, Program
    from rig.program.facts import Rails
    from rig.program.initial import Initial

    _T = TypeVar("_T")

__all__ = ["load", "make"]


def load(
    p: Program | Packed,
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

    if isinstance(p, Packed) and not p.fits(devices):
        p = described(p)  # whose check says what is wrong, if anything is
    program = p
    state: list[tuple[Buffer, bytes]] = []

    def build(memory: list[list[Buffer]], images: list[Image], ints: list[Buffer]) -> _core.Program:
        if isinstance(program, Packed):
            native = program.native.build(list(devices), memory, images, ints)
        else:
            native = _core.build_program(program, list(devices), memory, images, ints, False)
        for i, copies in enumerate(memory):
            nbytes = initial[i].nbytes if initial and i in initial else len(program.memory[i].init.bytes)  # type: ignore[union-attr]
            if nbytes and native.memory_written(i):
                state.extend((buffer, bytes(buffer.view(0, nbytes).read())) for buffer in copies)
        if program.ints:
            state.extend((buffer, bytes(8 * program.ints)) for buffer in ints)
        return native

    return Loaded(make(program, devices, rails, initial, build), program, tuple(devices), state)


def make(
    p: Program | Packed,
    devices: Sequence[Device],
    rails: Rails | None,
    initial: Mapping[int, Initial] | None,
    build: Callable[[list[list[Buffer]], list[Image], list[Buffer]], _T],
) -> _T:
    """Make all that `load` makes for `p`, and return what `build` makes of the memory, the images and the ints.

    It is given back if anything raises, `build` too. Raises as `load` does.
    """
    _core.refuse_in_callback("a load")
    if not isinstance(p, Packed):
        check(p, devices, rails)
    allocs = _allocs(p)
    images: list[Image] = []
    memory: list[list[Buffer]] = []
    try:
        for device in devices:
            if device.lost:
                Buffer.create(device, 0)  # raises Lost, with the reason
        _load_images(p, devices, images)
        lent = _lend(p, allocs, devices, initial or {})
        _make_memory(allocs, devices, memory, lent)
        _write_inits(allocs, devices, memory, images, initial or {}, lent)
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


def _allocs(p: Program | Packed) -> Sequence[Alloc]:
    """Return the program's memory, or rows with its fields; Refused for what is borrowed of a rail."""
    for i, m in enumerate(p.memory):
        if not hasattr(m, "init"):
            raise Refused(f"memory[{i}]: this version of rig makes no rails, rail {m.rail} cannot be borrowed")
    return p.memory  # type: ignore[return-value]


def _load_images(p: Program | Packed, devices: Sequence[Device], images: list[Image]) -> None:
    for i, image in enumerate(p.images):
        binary = _filled(image.binary, f"images[{i}].binary", images)
        images.append(Image.load(devices[image.device], binary))


def _filled(
    data: Data, place: str, images: Sequence[Image], address: Callable[[int, int], int] | None = None
) -> bytes | bytearray | memoryview:
    """Return `data`'s bytes with each hole filled; `address` gives the address of a memory as a device sees it."""
    if not data.holes:
        return data.bytes
    from rig.program.holes import filled

    return filled(data, place, images, address)


def _lend(
    p: Program | Packed, allocs: Sequence[Alloc], devices: Sequence[Device], initial: Mapping[int, Initial]
) -> dict[int, Buffer]:
    """Name the initial bytes that are used where they lie, by memory."""
    offers = {i: source for i, source in initial.items() if hasattr(source, "in_place")}
    if not offers:
        return {}
    changed = _written(p)
    lent: dict[int, Buffer] = {}
    for i, source in offers.items():
        m = allocs[i]
        if m.copies != 1 or m.nbytes != source.nbytes or i in changed or devices[m.device].kind != "host":
            continue
        view: memoryview | None = source.in_place()
        if view is not None:
            buffer = Buffer.of(view)
            if buffer.aligned(devices[m.device].alignment):
                lent[i] = buffer
    return lent


def _written(p: Program | Packed) -> Collection[int]:
    if isinstance(p, Packed):
        return frozenset(p.native.written())
    from rig.program.uses import written

    return written(p)


def _make_memory(
    allocs: Sequence[Alloc], devices: Sequence[Device], memory: list[list[Buffer]], lent: Mapping[int, Buffer]
) -> None:
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
    allocs: Sequence[Alloc],
    devices: Sequence[Device],
    memory: list[list[Buffer]],
    images: list[Image],
    initial: Mapping[int, Initial],
    lent: Mapping[int, Buffer],
) -> None:
    for i, m in enumerate(allocs):
        if i in lent:
            continue
        for copy, buffer in enumerate(memory[i]):
            if i in initial:
                _read_into(buffer, initial[i])
                continue

            def address(memory_index: int, on: int, copy: int = copy) -> int:
                copies = memory[memory_index]
                return copies[copy if len(copies) == 2 else 0].borrow(devices[on]).address

            data = _filled(m.init, f"memory[{i}].init", images, address)
            if len(data):
                buffer.view(0, len(data)).write(data)


def _read_into(buffer: Buffer, source: Initial) -> None:
    target = buffer.view(0, source.nbytes)
    if target._addressed:
        with memoryview(target) as view:
            source.read_into(view)
        return
    whole = bytearray(source.nbytes)
    source.read_into(memoryview(whole))
    target.write(whole)
