"""Load a compiled schedule on devices and run it on the buffers of its slots."""

from __future__ import annotations

import enum
import threading
import weakref
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from rig.errors import Invalid
from tolk_engine import settings
from tolk_engine.access import Start, label
from tolk_engine.assemble import Assembly, assemble
from tolk_engine.compile import Compiled
from tolk_engine.schedule import Call, Slot, SlotRef, StorageRef, Var

if TYPE_CHECKING:
    from rig import Buffer, Device
    from rig.program.run import Loaded

__all__ = ["Linked", "Storage", "link", "run", "slots"]

_MANY_CALLS = 10  # from here on a run of debug 1 says how many calls it makes


class Storage(enum.Enum):
    """Where storage lives that no buffer is bound to and that has no initial data."""

    LINKED = "linked"
    """Made at link, shared by the runs, and held as long as the linked schedule is reachable."""
    PER_RUN = "per run"
    """Made by each run before its first call and returned after its last, so that nothing is held between runs."""


class Linked:
    """A schedule that is loaded on devices. It holds its memory, code and bound buffers while it is reachable."""

    __slots__ = ("__weakref__", "_assembly", "_bound", "_compiled", "_loaded", "_lock", "_starts", "devices")

    def __init__(
        self, compiled: Compiled, devices: dict[str, Device], assembly: Assembly, loaded: Loaded, bound: list[Buffer]
    ) -> None:
        self.devices = devices
        self._compiled = compiled
        self._assembly = assembly
        self._loaded = loaded
        self._bound = bound
        self._lock = threading.Lock()
        count = len(compiled.schedule.slots)
        self._starts = [compiled.accesses.starts.get(SlotRef(i)) for i in range(count)]


def link(
    compiled: Compiled,
    devices: Mapping[str, Device],
    bound: Mapping[StorageRef, Buffer] | None = None,
    storage: Storage = Storage.LINKED,
) -> Linked:
    """Load `compiled` on `devices`, which maps each device name of the schedule to a device of one machine.

    `bound` binds storages to buffers of their devices, whose memory is held while the result is reachable; other
    storage is made as `storage` says. Host code runs on its device's host, split over its cores; consecutive kernels
    and copies of one device are one submission, or one each while ``settings.debug`` is 2 or more.

    Raises `Invalid` if `compiled` is not compiled, if a device is not mapped, of another machine or of another kind
    than the code's, if storage needs a greater alignment than its device gives, or if a bound buffer binds no storage,
    is of another device, too small, dead, held exclusive or off its phase; `OutOfMemory` if storage cannot be made;
    `Refused` with the reason if the program does not load, such as code for another processor.
    """
    from rig.program.load import load

    if not isinstance(compiled, Compiled):
        raise Invalid(f"link takes a compiled schedule, not {type(compiled).__name__}")
    if not isinstance(storage, Storage):
        raise Invalid(f"storage is {storage!r}; allowed are {Storage.LINKED} and {Storage.PER_RUN}")
    bound = bound or {}
    _check_devices(compiled, devices)
    _check_bound(compiled, devices, bound)
    _check_alignment(compiled, devices, bound)
    with ExitStack() as claims:
        _hold(compiled, bound, claims)
        made = assemble(
            compiled,
            devices,
            bound=[ref.index for ref in bound],
            per_run=storage is Storage.PER_RUN,
            separate=settings.debug >= 2,
        )
        loaded = load(made.program, made.devices)
        buffers = [bound[StorageRef(i)] for i in made.bound]
        linked = Linked(compiled, dict(devices), made, loaded, buffers)
        weakref.finalize(linked, claims.pop_all().close)
    return linked


def run(linked: Linked, slots: Sequence[Buffer | None], vars: Mapping[str, int] | None = None) -> None:
    """Run `linked` once with ``slots[i]`` bound to its slot i.

    It returns once every call is submitted: a read of a result waits for the work that wrote it. It keeps none of the
    buffers. Runs of one schedule from several threads go one after the other.

    `vars` are the schedule's variables by name; one that is not among them has its default.

    Raises `Invalid` before any work if a slot's buffer is missing, of another device, too small, dead, or off the phase
    that a kernel needs, or if `vars` names a variable that the schedule does not have, leaves one out that has no
    default, or gives one a value that is no whole number of its range; `OutOfMemory` if storage of a
    schedule linked `PER_RUN` cannot be made, no call having run; otherwise as `rig.program.Loaded.run`.
    """
    if not isinstance(linked, Linked):
        raise Invalid(f"run takes a linked schedule, not {type(linked).__name__}")
    numbers = _numbers(linked._compiled.schedule.variables, vars or {})
    given = _checked(linked, slots, numbers)
    words = [*numbers.values(), *_computed(linked._compiled.schedule.words, numbers)]
    calls = sum(1 for _ in linked._compiled.schedule.flat())
    if settings.debug >= 1 and calls >= _MANY_CALLS:
        print(f"jit execs {calls} calls")
    with linked._lock:
        arenas = _make_arenas(linked)
        try:
            linked._loaded.run(linked._loaded.frame([*given, *linked._bound, *arenas], words))
        finally:
            for arena in arenas:
                arena.free()
    if settings.debug >= 2:
        _print_kernels(linked)


def slots(linked: Linked) -> list[Buffer | None]:
    """Return for each slot a new buffer that `run` accepts, its bytes unspecified; None for a slot that no call uses.

    Raises `OutOfMemory` if a buffer cannot be made.
    """
    from rig import Buffer

    out: list[Buffer | None] = []
    used = linked._compiled.accesses.used
    for i, slot in enumerate(linked._compiled.schedule.slots):
        if SlotRef(i) not in used:
            out.append(None)
            continue
        start = linked._starts[i] or Start(1)
        device = linked.devices[slot.device]
        whole = Buffer.create(device, slot.nbytes + start.phase)
        out.append(whole.view(start.phase, slot.nbytes))
    return out


def _check_devices(compiled: Compiled, devices: Mapping[str, Device]) -> None:
    schedule = compiled.schedule
    names = [slot.device for slot in schedule.slots] + [storage.device for storage in schedule.storages]
    names += [call.device for call in schedule.flat() if isinstance(call, Call)]
    first = ""
    for name in dict.fromkeys(names):
        if name not in devices:
            raise Invalid(f"the schedule's device {name!r} is not mapped; mapped are {sorted(devices)}")
        first = first or name
        a, b = devices[first].host, devices[name].host
        if a != b:
            raise Invalid(f"devices {first!r} and {name!r} are of several machines: {a.name} and {b.name}")
    for i, call in enumerate(schedule.flat()):
        if isinstance(call, Call) and compiled.target.on_host and not devices[call.device].runs_on_host:
            device = devices[call.device]
            raise Invalid(
                f"call {i} ({compiled.kernels[call.kernel].name}) is host code for {compiled.target.requires}, but its "
                f"device {call.device!r} is {device.name}, of kind {device.kind!r}"
            )


def _check_bound(compiled: Compiled, devices: Mapping[str, Device], bound: Mapping[StorageRef, Buffer]) -> None:
    storages = compiled.schedule.storages
    for ref, buffer in bound.items():
        if not isinstance(ref, StorageRef) or not 0 <= ref.index < len(storages):
            raise Invalid(f"bound binds {ref!r}, which is no storage; the schedule has {len(storages)}")
        storage = storages[ref.index]
        name = label(compiled.schedule, ref)
        _check_buffer(name, buffer, devices[storage.device], storage.nbytes, compiled.accesses.starts.get(ref))
        if ref in compiled.accesses.used and not buffer.live:
            raise Invalid(f"{name} is bound to memory that is dead")


def _fits(buffer: Buffer, device: Device, nbytes: int, start: Start | None) -> bool:
    """Tell whether `_check_buffer` has nothing to say, at less cost."""
    placed = start is None or (buffer.live and buffer.aligned(start.align, start.phase))
    return placed and buffer.nbytes >= nbytes and buffer.device == device


def _check_buffer(name: str, buffer: Buffer, device: Device, nbytes: int, start: Start | None) -> None:
    if buffer.device != device:
        raise Invalid(f"{name} is on {device.name}, but its buffer is on {buffer.device.name}")
    if buffer.nbytes < nbytes:
        raise Invalid(f"{name} needs {nbytes} bytes, but its buffer has {buffer.nbytes}")
    if start is not None and not buffer.live:
        raise Invalid(f"{name} is bound to memory that is dead")
    if start is not None and not buffer.aligned(start.align, start.phase):
        found = buffer.address % start.align
        wanted = f"{start.phase} bytes past a multiple of {start.align}"
        raise Invalid(f"{name} must start {wanted}, but its buffer starts {found} past one")


def _check_alignment(compiled: Compiled, devices: Mapping[str, Device], bound: Mapping[StorageRef, Buffer]) -> None:
    for i, storage in enumerate(compiled.schedule.storages):
        ref = StorageRef(i)
        device = devices[storage.device]
        if ref in bound or ref not in compiled.accesses.used or not device.runs_on_host:
            continue
        if storage.align > device.alignment:
            raise Invalid(
                f"{label(compiled.schedule, ref)} needs alignment {storage.align}, but memory of {device.name} starts "
                f"on multiples of {device.alignment}"
            )


def _hold(compiled: Compiled, bound: Mapping[StorageRef, Buffer], claims: ExitStack) -> None:
    """Hold the memory of the bound buffers that calls access. Raises `Invalid` for memory that is held exclusive."""
    from rig.claim import Claim

    for ref, buffer in bound.items():
        if ref not in compiled.accesses.used:
            continue
        try:
            claims.enter_context(Claim.hold(buffer))
        except Invalid as e:
            raise Invalid(f"{label(compiled.schedule, ref)}: {e}") from None


def _numbers(variables: Sequence[Var], given: Mapping[str, int]) -> dict[str, int]:
    """Return the value of each variable, in order."""
    known = ", ".join(f"{v.name!r} ({v.min} to {v.max})" for v in variables) or "none"
    for name in given:
        if name not in {v.name for v in variables}:
            raise Invalid(f"there is no variable {name!r}: the schedule has {known}")
    numbers = {}
    for v in variables:
        value = given.get(v.name, v.default)
        if value is None:
            raise Invalid(f"variable {v.name!r} ({v.min} to {v.max}) has no value")
        if isinstance(value, bool) or not isinstance(value, int):
            raise Invalid(f"variable {v.name!r} is {value!r}, expected a whole number from {v.min} to {v.max}")
        if not v.min <= value <= v.max:
            raise Invalid(f"variable {v.name!r} is {value}, allowed are {v.min} to {v.max}")
        numbers[v.name] = value
    return numbers


def _computed(words: Sequence[str], numbers: Mapping[str, int]) -> list[int]:
    """Return the values of the words that are computed from the variables."""
    if not words:
        return []
    from rig.model.extents import value_of

    return [value_of(word, numbers) for word in words]


def _needed(slot: Slot, numbers: Mapping[str, int]) -> int:
    """Return the bytes that a slot's buffer must hold in a run."""
    if not any(isinstance(n, str) for n in slot.shape):
        return slot.nbytes
    from rig.model.arrays import nbytes
    from rig.model.extents import shape_of

    return nbytes(slot.dtype, shape_of(slot.shape, numbers))


def _checked(linked: Linked, given: Sequence[Buffer | None], numbers: Mapping[str, int]) -> list[Any]:
    schedule = linked._compiled.schedule
    if len(given) != len(schedule.slots):
        raise Invalid(f"the schedule has {len(schedule.slots)} slots, {len(given)} buffers were given")
    out = list(given)
    for i, (slot, buffer, start) in enumerate(zip(schedule.slots, given, linked._starts, strict=True)):
        device = linked.devices[slot.device]
        if buffer is None:
            if SlotRef(i) in linked._compiled.accesses.used:
                raise Invalid(f"{label(schedule, SlotRef(i))} has no buffer")
            out[i] = _unused(linked, slot.device, slot.nbytes)
        elif not _fits(buffer, device, need := _needed(slot, numbers), start):
            _check_buffer(label(schedule, SlotRef(i)), buffer, device, need, start)
    return out


def _unused(linked: Linked, device: str, nbytes: int) -> Buffer:
    """Return a buffer for an input of the program that nothing reads or writes."""
    from rig import Buffer

    return Buffer.create(linked.devices[device], nbytes)


def _make_arenas(linked: Linked) -> list[Buffer]:
    """Return new memory for what is made per run; gives back what it made if a device has no room."""
    if not linked._assembly.per_run:
        return []
    from rig import Buffer

    made: list[Buffer] = []
    try:
        for i in linked._assembly.per_run:
            arena = linked._compiled.plan.arenas[i]
            made.append(Buffer.create(linked.devices[arena.device], arena.nbytes))
    except BaseException:
        for buffer in made:
            buffer.free()
        raise
    return made


def _print_kernels(linked: Linked) -> None:
    for number, (kernel, device) in enumerate(linked._assembly.launches):
        code = linked._compiled.kernels[kernel]
        name = linked._assembly.devices[device].name
        print(f"*** {name:10} {number:5} {code.name:40} {len(code.arg_order) + code.n_values:2} args")
