"""Storage shares memory over time, and never at one time."""

from __future__ import annotations

import random
from dataclasses import replace

import handmade as made
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rig.errors import Invalid
from tolk_engine.plan import ALIGN, Block, Plan, lifetimes, live_bytes, pack, plan
from tolk_engine.schedule import Arg, Call, CopyCall, Schedule, SlotRef, Storage, StorageRef


@st.composite
def schedules(draw: st.DrawFn) -> Schedule:
    """Draw a straight-line schedule in which every read finds something, through views and copies too."""
    devices = draw(st.sampled_from([["A"], ["A", "B"]]))
    count = draw(st.integers(1, 10))
    storages = [
        Storage(
            draw(st.integers(1, 6)) * 48,
            draw(st.sampled_from(devices)),
            draw(st.sampled_from([1, 4, 64, 128])),
            draw(st.sampled_from([0, 0, 0, 1])),
            None,
        )
        for _ in range(count)
    ]
    storages = [
        replace(s, init=bytes([i]) * s.nbytes) if draw(st.integers(0, 4)) == 0 else replace(s, phase=s.phase % s.align)
        for i, s in enumerate(storages)
    ]
    slots = [made.slot("x", devices[0]), made.slot("y", devices[0])]
    ready = [i for i, s in enumerate(storages) if s.init is not None]
    calls: list[Call | CopyCall] = []
    for _ in range(draw(st.integers(1, 14))):
        reads: list[Arg] = [Arg(SlotRef(0), 0, 64)]
        for i in draw(st.lists(st.sampled_from(ready), max_size=3)) if ready else []:
            offset = draw(st.integers(0, 2)) * 16
            reads.append(Arg(StorageRef(i), offset, storages[i].nbytes - offset))
        target = draw(st.integers(0, count - 1))
        if len(reads) > 1 and reads[-1].node != StorageRef(target) and draw(st.booleans()):
            calls.append(CopyCall(Arg(StorageRef(target), 0, 16), replace(reads[-1], offset=0), 16))
        else:
            device = draw(st.sampled_from(devices))
            args = (Arg(StorageRef(target), 0, storages[target].nbytes), *reads)
            calls.append(Call(0, args, tuple(range(1, len(args))), (0,), device))
        if target not in ready:
            ready.append(target)
    reads = [Arg(StorageRef(i), 0, 16) for i in ready[-3:]]
    calls.append(Call(0, (Arg(SlotRef(1), 0, 64), *reads), tuple(range(1, len(reads) + 1)), (0,), devices[0]))
    return made.schedule(slots, storages, calls)


def execute(s: Schedule, planned: Plan | None) -> int:
    """Run `s` in a little model of memory: a call writes a number made from all that it reads, byte for byte."""
    memory: dict[tuple[object, int], int] = {}

    def where(arg: Arg) -> list[tuple[object, int]]:
        """Name each byte of the whole node: a use of a part counts as a use of all."""
        node = s.node(arg.node)
        place = planned.places[arg.node.index] if planned and isinstance(arg.node, StorageRef) else None
        base: object = arg.node if place is None else place.arena
        return [(base, i + (place.offset if place else 0)) for i in range(node.nbytes)]

    for i, storage in enumerate(s.storages):
        if storage.init is not None:
            for at, byte in zip(where(Arg(StorageRef(i))), storage.init, strict=True):
                memory[at] = byte
    for number, call in enumerate(s.calls):
        reads = [call.src] if isinstance(call, CopyCall) else [call.args[i] for i in call.reads]
        writes = [call.dst] if isinstance(call, CopyCall) else [call.args[i] for i in call.writes]
        value = hash((number, *(memory.get(at) for arg in reads for at in where(arg))))
        for arg in writes:
            for at in where(arg):
                memory[at] = value
    return memory[where(Arg(SlotRef(1)))[0]]


@given(s=schedules())
def test_a_planned_run_computes_what_an_unplanned_one_does(s: Schedule) -> None:
    assert execute(s, plan(s)) == execute(s, None)


@given(s=schedules())
def test_storage_that_lives_at_one_time_shares_no_byte(s: Schedule) -> None:
    planned = plan(s)
    lives = lifetimes(s)
    placed = [(i, p, lives[i]) for i, p in enumerate(planned.places) if p is not None]
    for i, p, life in placed:
        storage = s.storages[i]
        assert life is not None and storage.init is None
        arena = planned.arenas[p.arena]
        assert arena.device == storage.device
        assert p.offset + storage.nbytes <= arena.nbytes
        assert p.offset % storage.align == storage.phase and (p.offset - storage.phase) % ALIGN == 0
        for j, q, other in placed:
            if i == j or p.arena != q.arena or other is None or other[0] > life[1] or life[0] > other[1]:
                continue
            assert p.offset + storage.nbytes <= q.offset or q.offset + s.storages[j].nbytes <= p.offset
    for i, storage in enumerate(s.storages):
        assert (planned.places[i] is not None) is (lives[i] is not None and storage.init is None)


@pytest.mark.parametrize("seed", range(60))
def test_packing_comes_close_to_what_is_live_at_once(seed: int) -> None:
    r = random.Random(seed)
    steps = r.choice([5, 20, 100])
    blocks = []
    for _ in range(r.choice([5, 20, 60, 150])):
        first = r.randrange(steps)
        size = r.choice([64 * r.randint(1, 1000), 64 << r.randint(0, 14)])
        blocks.append(Block(size, first, min(steps - 1, first + int(r.expovariate(1 / r.choice([2, 8, 30]))))))
    offsets, total = pack(blocks)
    for i, (a, at) in enumerate(zip(blocks, offsets, strict=True)):
        for b, other in list(zip(blocks, offsets, strict=True))[:i]:
            if a.first <= b.last and b.first <= a.last:
                assert at + a.nbytes <= other or other + b.nbytes <= at
    assert max(at + b.nbytes for at, b in zip(offsets, blocks, strict=True)) == total
    assert live_bytes(blocks) <= total <= 1.15 * live_bytes(blocks)


def test_a_chain_needs_two_places() -> None:
    planned = plan(made.chain(50))
    assert [(a.device, a.nbytes) for a in planned.arenas] == [("CPU", 2 * 64)]


def test_equal_schedules_get_equal_plans_and_nothing_is_planned_for_nothing() -> None:
    assert plan(made.chain(9)) == plan(made.chain(9))
    empty = plan(made.schedule([made.slot("x")], [made.storage()], []))
    assert (empty.arenas, empty.places) == ((), (None,))
    assert pack([]) == ((), 0)


def test_a_use_of_a_view_keeps_the_whole_storage() -> None:
    """The second storage is written while the first one's tail is still to be read."""
    tail = Arg(made.STORAGE(0), 32, 32)
    calls = [
        made.call(2, made.STORAGE(0), made.SLOT(0)),
        made.call(2, made.STORAGE(1), made.SLOT(0)),
        made.call(0, made.SLOT(1), made.STORAGE(1), tail),
    ]
    s = made.schedule([made.slot("x"), made.slot("y")], [made.storage(), made.storage()], calls)
    first, second = plan(s).places
    assert first is not None and second is not None and first.offset != second.offset


def test_storage_with_initial_data_is_not_placed() -> None:
    init = bytes(64)
    calls = [made.call(0, made.STORAGE(1), made.STORAGE(0), made.SLOT(0)), made.call(2, made.SLOT(1), made.STORAGE(1))]
    s = made.schedule([made.slot("x"), made.slot("y")], [made.storage(init=init), made.storage(init=init)], calls)
    assert plan(s).places == (None, None)


def test_what_a_copy_carries_between_devices_is_in_a_lane_of_its_own() -> None:
    calls = [
        made.call(2, made.STORAGE(0), made.SLOT(0), device="A"),
        made.call(2, made.STORAGE(1), made.STORAGE(0), device="A"),
        made.copy(made.STORAGE(2), made.STORAGE(1)),
        made.call(2, made.SLOT(1), made.STORAGE(2), device="B"),
    ]
    storages = [made.storage("A"), made.storage("A"), made.storage("B")]
    planned = plan(made.schedule([made.slot("x", "A"), made.slot("y", "B")], storages, calls))
    assert {(a.device, a.lane) for a in planned.arenas} == {("A", "main"), ("A", "copy"), ("B", "copy")}


def test_reading_what_nothing_wrote_is_refused() -> None:
    s = made.schedule([made.slot("x"), made.slot("y")], [made.storage()], [made.call(2, made.SLOT(1), made.STORAGE(0))])
    with pytest.raises(Invalid, match="call 0 reads storage 0, which has no initial data and was not written"):
        plan(s)


def test_what_a_call_writes_in_part_needs_no_earlier_write() -> None:
    args = (Arg(made.STORAGE(0), 0, 32), Arg(made.SLOT(0), 0, 64))
    partly = Call(2, args, (0, 1), (0,), "CPU")
    calls = [partly, made.call(2, made.SLOT(1), made.STORAGE(0))]
    assert plan(made.schedule([made.slot("x"), made.slot("y")], [made.storage()], calls)).places[0] is not None
