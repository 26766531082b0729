"""Place a schedule's storage: which bytes of which arena each one has, so that storage shares memory over time.

Storage without initial data holds nothing before a run's first write to it and nothing after the run's last use of it,
so two of them may share bytes if their uses do not meet. A use of any part of a storage is a use of the whole. Storage
with initial data keeps it from run to run and is not placed.

An arena is one allocation of one device. Storage that a copy carries to or from another device has an arena of its own
device and lane ``copy``, so that a device's other work does not wait for such copies.

A loop's body is one stretch of time, but what crosses from trip to trip, or into or out of the loop, is needed all the
time that the loop runs.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from rig.errors import Invalid
from tolk_engine.schedule import Arg, Call, CopyCall, Loop, Schedule, Step, StorageRef, flat, loops

__all__ = ["ALIGN", "Arena", "Block", "Place", "Plan", "lifetimes", "live_bytes", "pack", "plan"]

ALIGN = 64
"""Offsets in an arena are multiples of this, and so are the sizes that are packed."""

_ROUNDS = 24  # attempts at a better order, once the plain ones miss the bound
_WORK = 4_000_000  # visits of neighbours that all attempts together may cost


@dataclass(frozen=True, slots=True)
class Arena:
    """One allocation of `nbytes` bytes on `device`, aligned to `align`; `lane` is ``main`` or ``copy``."""

    device: str
    lane: str
    nbytes: int
    align: int = ALIGN


@dataclass(frozen=True, slots=True)
class Place:
    """Bytes of arena `arena` from `offset` on."""

    arena: int
    offset: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The arenas of a schedule, and for each storage its place, or None if it is not planned or never used."""

    arenas: tuple[Arena, ...]
    places: tuple[Place | None, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """`nbytes` bytes that are needed from step `first` to step `last`, both included."""

    nbytes: int
    first: int
    last: int


def plan(schedule: Schedule) -> Plan:
    """Return where each storage of `schedule` lies.

    Raises `Invalid` if a call reads storage that has no initial data and that no earlier call wrote.
    """
    lives = lifetimes(schedule)
    _check_written(schedule)
    crossing = _crossing(schedule)
    groups: dict[tuple[str, str], list[int]] = {}
    for i, storage in enumerate(schedule.storages):
        if lives[i] is not None and storage.init is None:
            groups.setdefault((storage.device, "copy" if i in crossing else "main"), []).append(i)
    arenas: list[Arena] = []
    places: list[Place | None] = [None] * len(schedule.storages)
    for (device, lane), members in groups.items():
        align = max(ALIGN, *(schedule.storages[i].align for i in members))
        blocks = []
        for i in members:
            first, last = lives[i] or (0, 0)
            storage = schedule.storages[i]
            blocks.append(Block(_up(storage.phase + storage.nbytes, align), first, last))
        offsets, nbytes = pack(blocks)
        for i, offset in zip(members, offsets, strict=True):
            places[i] = Place(len(arenas), offset + schedule.storages[i].phase)
        arenas.append(Arena(device, lane, max(nbytes, align), align))
    return Plan(tuple(arenas), tuple(places))


def lifetimes(schedule: Schedule) -> tuple[tuple[int, int] | None, ...]:
    """Return for each storage the numbers of the first and the last call between which it is needed, None if unused.

    Calls are numbered in order, a loop's body once. What a trip of a loop may find from before it, from an earlier trip
    or leave behind is needed from the loop's first call to its last.
    """
    out: list[tuple[int, int] | None] = [None] * len(schedule.storages)
    for number, call in enumerate(schedule.flat()):
        for arg in _args(call):
            if isinstance(arg.node, StorageRef):
                first, _ = out[arg.node.index] or (number, number)
                out[arg.node.index] = (first, number)
    _widen(schedule.calls, 0, out)
    return tuple(out)


def _widen(steps: Sequence[Step], start: int, lives: list[tuple[int, int] | None]) -> int:
    """Let what crosses the border of a loop or of a trip live through the loop; returns the number after `steps`."""
    at = start
    for step in steps:
        if not isinstance(step, Loop):
            at += 1
            continue
        end = _widen(step.calls, at, lives)
        flag = {step.flag.node.index} if step.flag and isinstance(step.flag.node, StorageRef) else set()
        own = _of_one_trip(step)
        for index, life in enumerate(lives):
            inside = life is not None and life[0] < end and life[1] >= at
            if index in flag or (inside and not (index in own and life and at <= life[0] and life[1] < end)):
                first, last = life or (at, at)
                lives[index] = (min(first, at), max(last, end - 1, at))
        at = end
    return at


def _of_one_trip(loop: Loop) -> set[int]:
    """Return the storages that each trip of a loop writes whole before it uses them otherwise."""
    seen: set[int] = set()
    own: set[int] = set()
    for call in flat(loop.calls):
        reads, writes = _used(call)
        # What a call only partly writes counts as read too.
        own |= {i for i in writes if i not in seen and i not in reads}
        seen.update(reads, writes)
    inner = {i for one in loops(loop.calls) for i in _written(one)}
    return own - inner


def _written(loop: Loop) -> set[int]:
    """Return the storages that a loop writes: it may have no trip, so that they are not written for sure."""
    return set().union(*(_used(call)[1] for call in flat(loop.calls)))


def live_bytes(blocks: Sequence[Block]) -> int:
    """Return the most bytes that are needed at one step: no packing is smaller."""
    steps: dict[int, int] = {}
    for b in blocks:
        steps[b.first] = steps.get(b.first, 0) + b.nbytes
        steps[b.last + 1] = steps.get(b.last + 1, 0) - b.nbytes
    now = most = 0
    for step in sorted(steps):
        now += steps[step]
        most = max(most, now)
    return most


def pack(blocks: Sequence[Block]) -> tuple[tuple[int, ...], int]:
    """Return an offset for each of `blocks` and how many bytes they span; blocks that meet in time share no byte.

    Offsets are sums of sizes. Several orders are tried, and the smallest span is kept; it is within a few percent of
    `live_bytes` for what models need. The result depends on `blocks` alone.
    """
    bound = live_bytes(blocks)
    meets = _meets(blocks)
    best: tuple[list[int], int] = ([], -1)
    everyone = range(len(blocks))
    span = [b.last - b.first + 1 for b in blocks]
    orders = (
        sorted(everyone, key=lambda i: (blocks[i].first, -blocks[i].nbytes)),
        sorted(everyone, key=lambda i: (-blocks[i].nbytes, blocks[i].first)),
        sorted(everyone, key=lambda i: (-blocks[i].nbytes * span[i], blocks[i].first)),
        sorted(everyone, key=lambda i: (-span[i], -blocks[i].nbytes)),
    )
    tries = max(3, _WORK // (sum(map(len, meets)) + len(blocks) + 1))
    for order, tightest in [(order, tightest) for tightest in (True, False) for order in orders][:tries]:
        best = _better(best, _place(blocks, meets, order, tightest))
        if best[1] == bound:
            return tuple(best[0]), best[1]
    order = list(orders[1])
    for _ in range(min(_ROUNDS, tries - 2 * len(orders))):
        offsets, total = _place(blocks, meets, order, True)
        best = _better(best, (offsets, total))
        if best[1] == bound:
            break
        # Whatever ends at the top came too late: let it choose first.
        top = [i for i in order if offsets[i] + blocks[i].nbytes == total]
        order = top + [i for i in order if i not in top]
    return tuple(best[0]), max(best[1], 0)


def _better(a: tuple[list[int], int], b: tuple[list[int], int]) -> tuple[list[int], int]:
    return b if a[1] < 0 or b[1] < a[1] else a


def _place(
    blocks: Sequence[Block], meets: Sequence[Sequence[int]], order: Sequence[int], tightest: bool
) -> tuple[list[int], int]:
    """Place blocks in `order`, each into the tightest gap that holds it, or into the lowest."""
    offsets = [-1] * len(blocks)
    total = 0
    for i in order:
        need = blocks[i].nbytes
        taken = sorted((offsets[j], offsets[j] + blocks[j].nbytes) for j in meets[i] if offsets[j] >= 0)
        at = -1
        room = 0
        end = 0
        for start, stop in taken:
            gap = start - end
            if gap >= need and (at < 0 or gap < room):
                at, room = end, gap
                if not tightest:
                    break
            end = max(end, stop)
        offsets[i] = end if at < 0 else at
        total = max(total, offsets[i] + need)
    return offsets, total


def _meets(blocks: Sequence[Block]) -> list[list[int]]:
    """Return for each block the others that are needed at one of its steps."""
    out: list[list[int]] = [[] for _ in blocks]
    active: list[tuple[int, int]] = []  # (last step, block), sorted
    for i in sorted(range(len(blocks)), key=lambda i: blocks[i].first):
        del active[: bisect.bisect_left(active, (blocks[i].first, -1))]
        for _, j in active:
            out[i].append(j)
            out[j].append(i)
        bisect.insort(active, (blocks[i].last, i))
    return out


def _check_written(schedule: Schedule) -> None:
    written: set[int] = set()
    for number, call in enumerate(schedule.flat()):
        reads, writes = _used(call)
        for index in reads:
            # What a call only partly writes counts as read too; that needs no earlier write.
            if index not in written and index not in writes and schedule.storages[index].init is None:
                raise Invalid(f"call {number} reads storage {index}, which has no initial data and was not written")
        written |= writes


def _crossing(schedule: Schedule) -> frozenset[int]:
    out = set()
    for call in schedule.flat():
        if isinstance(call, CopyCall) and schedule.node(call.src.node).device != schedule.node(call.dst.node).device:
            out |= {arg.node.index for arg in _args(call) if isinstance(arg.node, StorageRef)}
    return frozenset(out)


def _args(call: Call | CopyCall) -> tuple[Arg, ...]:
    return (call.dst, call.src) if isinstance(call, CopyCall) else call.args


def _used(call: Call | CopyCall) -> tuple[list[int], set[int]]:
    """Return the storages that `call` reads and those that it writes."""
    if isinstance(call, CopyCall):
        reads, writes = [call.src], [call.dst]
    else:
        reads, writes = [call.args[i] for i in call.reads], [call.args[i] for i in call.writes]
    return (
        [arg.node.index for arg in reads if isinstance(arg.node, StorageRef)],
        {arg.node.index for arg in writes if isinstance(arg.node, StorageRef)},
    )


def _up(n: int, align: int) -> int:
    return -(-n // align) * align
