"""A program's memory: made at load as described, given back when the program is unreachable and its work is done."""

from __future__ import annotations

import pytest
from kernels import (
    Words,
    alloc,
    as_bytes,
    buffer,
    given,
    in_use,
    launch,
    load,
    loop,
    memory,
    memory_devices,
    move,
    on_each,
    opened,
    program,
    reads,
    run,
    submit,
    values,
    wait_all,
    writes,
)

import rig
from rig.program import description as d
from rig.program import load as load_program

KIB = 1024


@pytest.mark.spec("P-mem-alloc")
def test_memory_is_made_on_its_device_in_its_copies() -> None:
    with memory_devices(2) as (one, two):
        host = in_use(rig.host())
        sizes = [
            alloc(0, 4 * KIB),
            alloc(0, 8 * KIB, two=True),
            alloc(1, 64 * KIB, kind=d.Kind.PINNED),
            alloc(1, 0),
            alloc(2, 256 * KIB, two=True, kind=d.Kind.MAPPED),
        ]
        loaded = load([one, two, rig.host()], memory=sizes)
        assert one.memory_in_use == 20 * KIB
        assert two.memory_in_use == 64 * KIB
        assert 512 * KIB <= rig.host().memory_in_use - host <= 576 * KIB
        del loaded
        assert (one.memory_in_use, two.memory_in_use, rig.host().memory_in_use) == (0, 0, host)


@pytest.mark.spec("P-mem-alloc", "P-copies-init")
@on_each
def test_init_is_the_first_bytes(kind: str) -> None:
    """What an init leaves out is zero; a view of decoded bytes is written as bytes are."""
    with opened(kind) as device:
        data = memoryview(as_bytes(1, 2, 3))
        out = buffer(device, 9, 9, 9, 9, 9, 9)
        step = submit(0, launch("copy_words", writes(0), reads(1), n=6), slots=(given(0), memory(0, 48)))
        loaded = load([device], step, memory=[alloc(0, 48, d.Data(data), two=True)], inputs=[(0, 48)])
        for _ in range(2):
            run(loaded, [out])
            assert values(out) == [1, 2, 3, 0, 0, 0]
            out.write(as_bytes(*[9] * 6))


class Counted:
    """First bytes from elsewhere, which count how often they are asked for."""

    def __init__(self, *words: int) -> None:
        self.bytes = as_bytes(*words)
        self.calls = 0

    @property
    def nbytes(self) -> int:
        return len(self.bytes)

    def read_into(self, view: memoryview) -> None:
        self.calls += 1
        assert view.nbytes == self.nbytes
        view[:] = self.bytes


@pytest.mark.spec("P-mem-alloc")
@pytest.mark.parametrize("borrows", [True, False])
def test_first_bytes_from_elsewhere(borrows: bool) -> None:
    """Asked for once per copy, also where the host does not address the memory."""
    with memory_devices(1, borrows=borrows) as (device,):
        out = buffer(device, count=4)
        step = submit(0, launch("copy_words", writes(0), reads(1), n=4), slots=(given(0), memory(0, 32)))
        described = program([device], step, memory=[alloc(0, 32, two=True)], inputs=[(0, 32)])
        weight = Counted(5, 6, 7)
        loaded = load_program(described, [device], initial={0: weight})
        for _ in range(2):
            run(loaded, [out])
            assert values(out) == [5, 6, 7, 0]
        assert weight.calls == 2


@pytest.mark.spec("P-mem-return", "P-run-keeps")
def test_memory_returns_once_unreachable_and_done() -> None:
    """While the work of the last run lasts the memory stays, on the device and on the host, and then it goes."""
    flags = Words()
    with memory_devices(2) as (one, two):
        host = in_use(rig.host())
        steps = (
            submit(0, launch("gate", flags.at(0), flags.at(1)), fixed=[memory(0, 64 * KIB)]),
            submit(0, launch("store", writes(0), 8), slots=(memory(1, 8),)),
            submit(1, launch("copy_words", writes(0), reads(1)), slots=(memory(2, 8), memory(1, 8))),
            submit(1, launch("copy_words", flags.at(3), reads(0)), slots=(memory(2, 8),)),
        )
        sizes = [alloc(0, 64 * KIB, two=True), alloc(2, 128 * KIB), alloc(1, 32 * KIB)]
        loaded = load([one, two, rig.host()], *steps, memory=sizes, ints=100)
        ends = loaded.run(loaded.frame([]))
        assert flags.wait(0)
        del loaded
        assert in_use(one) == 128 * KIB
        assert two.memory_in_use == 32 * KIB
        assert rig.host().memory_in_use - host >= 128 * KIB
        flags[1] = 1
        wait_all(ends)
        assert flags[3] == 8
        for device in (one, two):
            device.close()  # its thread lets go of the work before it ends
        assert (one.memory_in_use, two.memory_in_use, rig.host().memory_in_use) == (0, 0, host)


@pytest.mark.spec("P-mem-return")
def test_frames_points_and_bound_frames() -> None:
    """Points and step points keep no memory of the program; a bound frame keeps the program."""
    with memory_devices(1) as (device,):
        loaded = load(
            [device],
            submit(0, launch("bump", writes(0)), slots=(given(0),)),
            memory=[alloc(0, 64 * KIB)],
            inputs=[(0, 8)],
        )
        points = loaded.step_points()
        frame = loaded.frame([buffer(device, 0)], step_points=points)
        ends = loaded.run(frame)
        wait_all(ends)
        bound = loaded.bound(frame)
        del loaded
        assert device.memory_in_use == 64 * KIB + 8
        bound.run()
        assert values(frame.inputs[0]) == [2]
        del bound
        assert device.memory_in_use == 8
        assert points[0].reached
        assert ends[0].reached


@pytest.mark.spec("P-mem-return")
def test_thousand_loads_leave_nothing() -> None:
    with memory_devices(1) as (device,):
        host = in_use(rig.host())
        described = program(
            [device, rig.host()],
            submit(0, launch("nothing"), fixed=[memory(0, 4 * KIB), memory(1, 4 * KIB)]),
            memory=[alloc(0, 4 * KIB, two=True), alloc(1, 4 * KIB)],
            ints=4,
        )
        for _ in range(50):
            loaded = load_program(described, [device, rig.host()])
            loaded.run(loaded.frame([]))
        del loaded
        device.close()
        assert (device.memory_in_use, rig.host().memory_in_use) == (0, host)


@pytest.mark.spec("P-mem-hostborrow", "P-move-borrow")
@pytest.mark.parametrize("what", ["memory", "ints"])
def test_host_memory_that_a_move_names_can_be_borrowed(what: str) -> None:
    """A device makes moves to and from host memory of any size itself: the run returns before they are done."""
    flags = Words()
    with memory_devices(1) as (device,):
        out = buffer(device, count=1)
        slot = memory(0, 8) if what == "memory" else d.IntsSlot()
        steps = (
            submit(0, launch("gate", flags.at(0), flags.at(1))),
            move(slot, memory(1, 8), 8),
            submit(0, launch("addk", writes(0), writes(0), 1), slots=(memory(1, 8),)),
            move(memory(1, 8), slot, 8),
            loop(2, move(slot, given(0), 8)),
        )
        sizes = [alloc(1, 8, as_bytes(41)), alloc(0, 8)]
        loaded = load([device, rig.host()], *steps, memory=sizes, inputs=[(0, 8)], ints=1)
        ends = loaded.run(loaded.frame([out], [41]))
        assert [end.device for end in ends] == [device.name]
        assert not ends[0].reached
        flags[1] = 1
        wait_all(ends)
        assert values(out) == [42]
