"""Describe a compiled schedule as a program: memory, images, inputs and steps.

Slot i of the schedule is input i of the program, variable i is word i of its ints. A pointer to a slot is a ref to it;
a pointer to storage is a hole for the address of the memory it lies in, which the step fixes whole. Consecutive kernels
and copies of one device are one submission.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from rig.program import description as d
from tolk_engine.schedule import Arg, Call, CopyCall, Loop, Slot, SlotRef, Step, StorageRef, Var, loops
from tolk_engine.target import DeviceRecord

if TYPE_CHECKING:
    from tolk_engine.compile import Code, Compiled

__all__ = ["SMALL", "Assembly", "LinkDevice", "assemble", "blocks"]

SMALL = 4096
"""Initial data of at most so many bytes stays inside the program; constants that small share one memory."""

_MASK = (1 << 64) - 1


class LinkDevice(DeviceRecord, Protocol):
    """What placing work needs to know of a device."""

    @property
    def borrows(self) -> bool:
        """Tell whether its work reaches memory that the host addresses, and the host its memory."""
        ...

    @property
    def copies(self) -> bool:
        """Tell whether copies are work of it."""
        ...


@dataclass(frozen=True, slots=True)
class Assembly:
    """A program and what is needed to load and run it.

    `devices` are those it is loaded on, in order. Its inputs are the schedule's slots, then the storages `bound`, then
    the plan's arenas `per_run`. `weights` are (memory, storage) pairs whose memory has no initial data in `program`.
    `launches` are the numbers of the kernels that run, in order, each with its device's number. `planned` are the
    storages that share memory over time, as (storage, memory, offset).
    """

    program: d.Program
    devices: tuple[Any, ...]
    bound: tuple[int, ...]
    per_run: tuple[int, ...]
    weights: tuple[tuple[int, int], ...]
    launches: tuple[tuple[int, int], ...]
    planned: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class _Place:
    """Bytes of memory `index`, or of input `index`, from `offset` on."""

    in_memory: bool
    index: int
    offset: int


@dataclass(frozen=True, slots=True)
class _End:
    """One end of a copy: bytes `start` to `start + length` of a memory, or a whole input, and an offset in them."""

    place: _Place
    start: int
    length: int
    offset: tuple[d.Term, ...]


_Key: TypeAlias = tuple[bool, int, int, int]


def blocks(ops: int, mem: int, iterations: int) -> int:
    """Return into how many blocks a host splits a launch, from its operations and bytes of memory."""
    wanted = ops >> 16 if ops > mem else max(ops >> 18, min(mem >> 18, 8))
    return max(1, min(wanted, iterations))


def smallest(slot: Slot, variables: Sequence[Var]) -> int:
    """Return the bytes of a slot's smallest shape, which every run's buffer holds."""
    from rig.model.arrays import nbytes
    from rig.model.extents import shape_bounds

    if not any(isinstance(n, str) for n in slot.shape):
        return slot.nbytes
    ranges = {v.name: (v.min, v.max) for v in variables}
    return nbytes(slot.dtype, [low for low, _ in shape_bounds(slot.shape, ranges)])


def assemble(
    compiled: Compiled,
    devices: Mapping[str, LinkDevice] | None = None,
    *,
    bound: Collection[int] = (),
    per_run: bool = False,
    separate: bool = False,
    weights: bool = False,
) -> Assembly:
    """Return `compiled` as a program.

    With `devices`, by the schedule's names, host code runs on its device's host (on the device itself where the host
    does not reach its memory), and copies where they can be made; without, each device of the schedule is one of the
    program that runs its own work. The storages `bound` are inputs, and with `per_run` the arenas are. With `separate`
    each kernel and copy is a submission of its own. With `weights` the initial data of more than `SMALL` bytes is left
    out, one memory for each.
    """
    if devices is None:
        builder = _Builder(compiled, _alone(compiled), [])
    else:
        builder = _Builder(compiled, *_together(compiled, devices))
    builder.place_slots()
    builder.place_bound(sorted(bound))
    builder.place_arenas(per_run)
    builder.place_constants(weights)
    builder.add_steps(compiled.schedule.calls, separate)
    return builder.finish()


def _names(compiled: Compiled) -> list[str]:
    """Return the schedule's devices in the order in which they are first named."""
    schedule = compiled.schedule
    names = [s.device for s in schedule.slots] + [s.device for s in schedule.storages]
    names += [call.device for call in schedule.flat() if isinstance(call, Call)]
    return list(dict.fromkeys(names))


def _alone(compiled: Compiled) -> dict[str, tuple[int, int]]:
    return {name: (i, i) for i, name in enumerate(_names(compiled) or ["CPU"])}


def _together(
    compiled: Compiled, devices: Mapping[str, LinkDevice]
) -> tuple[dict[str, tuple[int, int]], list[LinkDevice]]:
    """Return for each name the numbers of its device and of the device that runs its kernels, and the devices."""
    found: list[Any] = []

    def number(device: Any) -> int:
        if device not in found:
            found.append(device)
        return found.index(device)

    own = {name: number(devices[name]) for name in _names(compiled)}
    runs = {call.device for call in compiled.schedule.flat() if isinstance(call, Call)}
    names = {}
    for name, i in own.items():
        # Host code runs on its device's host, if that reaches the device's memory; else on the device's own thread.
        hosted = name in runs and devices[name].runs_on_host and devices[name].borrows
        names[name] = (i, number(devices[name].host) if hosted else i)
    return names, found


class _Builder:
    """Collects memory and steps; one submission is open at a time."""

    def __init__(self, compiled: Compiled, names: dict[str, tuple[int, int]], devices: list[LinkDevice]) -> None:
        self._compiled = compiled
        self._schedule = compiled.schedule
        self._names = names
        self._devices = devices
        self._inputs: list[d.Input] = []
        self._memory: list[d.Memory] = []
        self._images: dict[tuple[int, int], int] = {}  # by device and library
        self._steps: list[d.Step] = []
        self._places: dict[SlotRef | StorageRef, _Place] = {}
        self._bound: tuple[int, ...] = ()
        self._per_run: tuple[int, ...] = ()
        self._weights: list[tuple[int, int]] = []
        self._launches: list[tuple[int, int]] = []
        words = [v.name for v in self._schedule.variables] + list(self._schedule.words)
        words += [loop.name for loop in loops(self._schedule.calls)]
        self._words = {name: i for i, name in enumerate(words)}
        self._clear(-1)

    # Memory.

    def place_slots(self) -> None:
        for i, slot in enumerate(self._schedule.slots):
            self._places[SlotRef(i)] = _Place(False, i, 0)
            least = smallest(slot, self._schedule.variables)
            self._inputs.append(d.Input(self._names[slot.device][0], least))

    def place_bound(self, bound: Sequence[int]) -> None:
        self._bound = tuple(bound)
        for i in bound:
            self._places[StorageRef(i)] = self._input(
                self._schedule.storages[i].device, self._schedule.storages[i].nbytes
            )

    def place_arenas(self, per_run: bool) -> None:
        plan = self._compiled.plan
        wanted = {p.arena for i, p in enumerate(plan.places) if p is not None and i not in self._bound}
        homes: dict[int, _Place] = {}
        for i in sorted(wanted):
            arena = plan.arenas[i]
            if per_run:
                homes[i] = self._input(arena.device, arena.nbytes)
            else:
                homes[i] = self._alloc(d.Alloc(self._names[arena.device][0], arena.nbytes))
        self._per_run = tuple(sorted(wanted)) if per_run else ()
        for i, place in enumerate(plan.places):
            if place is not None and i not in self._bound:
                home = homes[place.arena]
                self._places[StorageRef(i)] = _Place(home.in_memory, home.index, place.offset)

    def place_constants(self, weights: bool) -> None:
        found = self._compiled.accesses
        pools: dict[str, list[int]] = {}
        large = []
        for i, storage in enumerate(self._schedule.storages):
            if storage.init is None or i in self._bound or StorageRef(i) not in found.used:
                continue
            if storage.nbytes <= SMALL and StorageRef(i) not in found.written:
                pools.setdefault(storage.device, []).append(i)
            else:
                large.append(i)
        for device, members in pools.items():
            self._place_pool(device, members)
        for i in large:
            self._place_large(i, weights)

    def _place_pool(self, device: str, members: Sequence[int]) -> None:
        """Place constants that no call writes into one memory."""
        data = bytearray()
        offsets = []
        for i in members:
            storage = self._schedule.storages[i]
            align = max(storage.align, 64)
            data += bytes(-len(data) % align + storage.phase)
            offsets.append(len(data))
            data += bytes(storage.init or b"")
        home = self._alloc(d.Alloc(self._names[device][0], max(len(data), 1), d.Data(bytes(data))))
        for i, offset in zip(members, offsets, strict=True):
            self._places[StorageRef(i)] = _Place(True, home.index, offset)

    def _place_large(self, i: int, weights: bool) -> None:
        """Give a constant or state a memory of its own."""
        storage = self._schedule.storages[i]
        device = self._names[storage.device][0]
        init: bytes | memoryview = storage.init or b""
        if storage.phase:
            init = bytes(storage.phase) + bytes(init)
        elif weights and storage.nbytes > SMALL:
            self._weights.append((len(self._memory), i))
            init = b""
        home = self._alloc(d.Alloc(device, max(storage.phase + storage.nbytes, 1), d.Data(init)))
        self._places[StorageRef(i)] = _Place(True, home.index, storage.phase)

    def _input(self, device: str, nbytes: int) -> _Place:
        self._inputs.append(d.Input(self._names[device][0], nbytes))
        return _Place(False, len(self._inputs) - 1, 0)

    def _alloc(self, memory: d.Alloc) -> _Place:
        self._memory.append(memory)
        return _Place(True, len(self._memory) - 1, 0)

    # Steps.

    def add_steps(self, steps: Sequence[Step], separate: bool) -> None:
        """Add steps in order, and close the last submission; with `separate` each call is a submission of its own."""
        for step in steps:
            if isinstance(step, Loop):
                self._add_loop(step, separate)
            elif isinstance(step, CopyCall):
                self.add_copy(step)
            else:
                self.add_call(step)
            if separate:
                self.end_submit()
        self.end_submit()

    def _add_loop(self, loop: Loop, separate: bool) -> None:
        self.end_submit()
        outside, self._steps = self._steps, []
        self.add_steps(loop.calls, separate)
        body, self._steps = self._steps, outside
        trips = d.Fixed(loop.trips) if isinstance(loop.trips, int) else d.Int(self._words[loop.trips])
        flag: tuple[d.Slot, int] | None = None
        if loop.flag is not None:
            place = self._places[loop.flag.node]
            at = place.offset + loop.flag.offset
            flag = (_program_slot(place, at, 1), 0 if place.in_memory else at)
        self._steps.append(d.Loop(trips, tuple(body), self._words[loop.name], flag))

    def _clear(self, device: int) -> None:
        self._device = device
        self._parts: list[d.Part] = []
        self._slots: dict[_Key, tuple[int, d.Slot]] = {}
        self._fixed: dict[int, d.Access] = {}

    def end_submit(self) -> None:
        """Close the open submission."""
        if self._parts:
            fixed = tuple((d.View(m, 0, self._nbytes(m)), access) for m, access in sorted(self._fixed.items()))
            slots = tuple(slot for _, slot in self._slots.values())
            self._steps.append(d.Submit(self._device, tuple(self._parts), slots, fixed))
        self._clear(-1)

    def _open(self, device: int) -> None:
        if self._device != device:
            self.end_submit()
            self._device = device

    def _nbytes(self, memory: int) -> int:
        found = self._memory[memory]
        assert isinstance(found, d.Alloc)  # nothing else is made here
        return found.nbytes

    def add_call(self, call: Call) -> None:
        """Add a kernel's launch to the submission of the device that runs it."""
        code = self._compiled.kernels[call.kernel]
        device = self._names[call.device][1]
        self._open(device)
        params = bytearray()
        refs: list[d.Ref] = []
        holes: list[d.Hole] = []
        for position in code.arg_order:
            self._pointer(call.args[position], position in call.writes, device, params, refs, holes)
        for value in call.values:
            if isinstance(value, int):
                params += (value & _MASK).to_bytes(8, "little")
                continue
            moves, add = (((value, 1),), 0) if isinstance(value, str) else (value.moves, value.add)
            holes.append(d.Hole(len(params), d.Width.W64, self._terms(moves), add))
            params += bytes(8)
        self._parts.append(self._launch(code, device, d.Data(bytes(params), tuple(holes)), tuple(refs)))
        self._launches.append((call.kernel, device))

    def _pointer(
        self, arg: Arg, writes: bool, device: int, params: bytearray, refs: list[d.Ref], holes: list[d.Hole]
    ) -> None:
        place = self._places[arg.node]
        offset = place.offset + arg.offset
        at = len(params)
        moves = self._terms(arg.moves)
        if not place.in_memory:
            params += (0 if moves else offset).to_bytes(8, "little")
            if moves:
                holes.append(d.Hole(at, d.Width.W64, moves, offset))
            refs.append(d.Ref(self._slot(place, 0, 0), at, d.Use.WRITE if writes else d.Use.READ))
            return
        params += bytes(8)
        holes.append(d.Hole(at, d.Width.W64, (d.Term(d.Address(place.index, device), 1), *moves), offset))
        if writes or place.index not in self._fixed:
            self._fixed[place.index] = d.Access.READ_WRITE if writes else d.Access.READ

    def _terms(self, moves: Sequence[tuple[str, int]]) -> tuple[d.Term, ...]:
        """Return the words that `moves` names, each with its factor."""
        return tuple(d.Term(d.Int(self._words[name]), factor) for name, factor in moves)

    def _launch(self, code: Code, device: int, params: d.Data, refs: tuple[d.Ref, ...]) -> d.Launch:
        image = self._images.setdefault((device, code.library), len(self._images))
        count = blocks(code.ops, code.mem, code.iterations)
        one = d.Fixed(1)
        groups, threads = (d.Fixed(count), one, one), (d.Fixed(code.iterations), one, one)
        return d.Launch(image, code.symbol, params, refs, groups, threads)

    def _slot(self, place: _Place, offset: int, length: int) -> int:
        """Return the number of the open submission's slot for an input, or for bytes of a memory."""
        key = (place.in_memory, place.index, offset, length)
        if key not in self._slots:
            self._slots[key] = (len(self._slots), _program_slot(place, offset, length))
        return self._slots[key][0]

    def add_copy(self, call: CopyCall) -> None:
        """Add a copy to the submission of a device that makes it, or else as a move."""
        if call.nbytes == 0:
            return
        src, dst = self._end(call.src, call.nbytes), self._end(call.dst, call.nbytes)
        device = self._copier(call)
        if device is None:
            self.end_submit()
            src_end, dst_end = (_program_slot(end.place, end.start, end.length) for end in (src, dst))
            self._steps.append(d.Move(src_end, src.offset, dst_end, dst.offset, call.nbytes))
            return
        self._open(device)
        src_slot, dst_slot = (self._slot(end.place, end.start, end.length) for end in (src, dst))
        self._parts.append(d.Copy(src_slot, src.offset, dst_slot, dst.offset, call.nbytes))

    def _end(self, arg: Arg, nbytes: int) -> _End:
        """Return one end of a copy: an input at an offset, bytes of a memory, or its whole where the end moves."""
        place = self._places[arg.node]
        offset = place.offset + arg.offset
        if place.in_memory and not arg.moves:
            return _End(place, offset, nbytes, ())
        whole = self._nbytes(place.index) if place.in_memory else 0
        return _End(place, 0, whole, _offset(offset) + self._terms(arg.moves))

    def _copier(self, call: CopyCall) -> int | None:
        """Return the number of the device that makes a copy as part of a submission, None where none does."""
        src, dst = (self._names[self._schedule.node(arg.node).device][0] for arg in (call.src, call.dst))
        if not self._devices:
            return src if src == dst else None
        for device, other in ((src, dst), (dst, src)):
            maker, reached = self._devices[device], self._devices[other]
            if maker.copies and maker.runs_on_host == reached.runs_on_host and _reaches(maker, reached):
                return device
        return None

    def finish(self) -> Assembly:
        """Return what was built."""
        arch = self._compiled.target.requires
        binaries = (*self._compiled.libraries, self._compiled.image)  # -1 is the last
        images = tuple(d.Image(device, d.Data(binaries[library])) for device, library in self._images)
        runs = {device for device, _ in self._images}
        count = max((i for pair in self._names.values() for i in pair), default=0) + 1
        arches = [arch] * count
        for i, device in enumerate(self._devices):
            if i not in runs:
                arches[i] = device.arch  # it runs no code of ours: whatever it is will do
        ints = len(self._words)
        program = d.Program(tuple(arches), tuple(self._memory), images, tuple(self._inputs), ints, tuple(self._steps))
        weights, launches = tuple(self._weights), tuple(self._launches)
        planned = tuple(
            (i, place.index, place.offset)
            for i, found in enumerate(self._compiled.plan.places)
            if found is not None and (place := self._places[StorageRef(i)]).in_memory
        )
        return Assembly(program, tuple(self._devices), self._bound, self._per_run, weights, launches, planned)


def _program_slot(place: _Place, offset: int, length: int) -> d.Slot:
    return d.MemorySlot(d.View(place.index, offset, length)) if place.in_memory else d.InputSlot(place.index)


def _offset(nbytes: int) -> tuple[d.Term, ...]:
    return (d.Term(d.Fixed(nbytes), 1),) if nbytes else ()


def _reaches(maker: LinkDevice, other: LinkDevice) -> bool:
    """Tell whether `maker`'s work reaches `other`'s memory."""
    return maker == other or (maker.borrows and other.runs_on_host and other.borrows)
