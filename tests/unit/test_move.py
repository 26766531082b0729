"""Moves: bytes between any two slots, by the device that reaches both, else through staging memory."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from kernels import (
    INTS,
    Background,
    Words,
    alloc,
    as_bytes,
    buffer,
    given,
    launch,
    load,
    loop,
    memory,
    memory_devices,
    move,
    reads,
    run,
    submit,
    values,
    wait_all,
    writes,
)

import rig
from rig.errors import Invalid
from rig.program import description as d

PAUSE = 0.03
BIG = 3 * (256 << 10) + 24  # more than a piece of staging memory, not a multiple of it
OPTIONS: list[dict[str, Any]] = [{}, {"borrows": False}, {"copies": False}, {"borrows": False, "copies": False}]
on_every_device = pytest.mark.parametrize("options", OPTIONS, ids=["plain", "no borrow", "no copy", "neither"])


@pytest.mark.spec("P-move-copy", "P-move-borrow")
@on_every_device
@pytest.mark.parametrize("nbytes", [8, BIG])
def test_moves_both_ways(options: dict[str, Any], nbytes: int) -> None:
    """Input to the device's memory, there and back through host memory, from one device to the other."""
    with memory_devices(1, **options) as (one,), memory_devices(1) as (two,):
        data = bytes(range(256)) * (nbytes // 256 + 1)
        source, out = rig.Buffer.create(rig.host(), nbytes + 8), rig.Buffer.create(rig.host(), nbytes + 16)
        source.write(data[: nbytes + 8])
        out.write(bytes(nbytes + 16))
        steps = (
            move(given(0), memory(0, nbytes + 8), nbytes, 8, 8),  # host to device
            move(memory(0, nbytes + 8), memory(1, nbytes), nbytes, 8),  # device to the other
            move(memory(1, nbytes), memory(2, nbytes), nbytes),  # back to the first
            move(memory(2, nbytes), memory(3, nbytes), nbytes),  # device to host
            move(memory(3, nbytes), memory(4, nbytes), nbytes),  # host to host
            move(memory(4, nbytes), given(1), nbytes, dst_offset=8),
        )
        sizes = [alloc(0, nbytes + 8), alloc(1, nbytes), alloc(0, nbytes), alloc(2, nbytes), alloc(2, nbytes)]
        loaded = load([one, two, rig.host()], *steps, memory=sizes, inputs=[(2, nbytes + 8), (2, nbytes + 16)])
        for _ in range(2):
            run(loaded, [source, out])
            seen = bytes(out.read())
            assert seen[8:-8] == data[8 : nbytes + 8]
            assert seen[:8] == seen[-8:] == bytes(8)
            out.write(bytes(nbytes + 16))


@pytest.mark.spec("P-move-copy", "P-loop-trips")
@on_every_device
def test_moves_move_with_trips(options: dict[str, Any]) -> None:
    """Row r of one table goes to row t of another, where an int and the trip say which."""
    with memory_devices(1, **options) as (device,):
        table, out = buffer(rig.host(), *range(40)), buffer(rig.host(), count=12)
        body = (
            move(
                given(0), memory(0, 48), 16, src_offset=((d.Int(1), 32), (d.Int(0), 8), 8), dst_offset=((d.Int(1), 16),)
            ),
        )
        loaded = load(
            [device, rig.host()],
            loop(3, *body, trip=1),
            move(memory(0, 48), given(1), 48),
            memory=[alloc(0, 48)],
            inputs=[(1, 320), (1, 96)],
            ints=2,
        )
        run(loaded, [table, out], [3])
        assert values(out)[:6] == [4, 5, 8, 9, 12, 13]


@pytest.mark.spec("P-move-copy", "P-value-int")
@on_every_device
def test_moves_of_the_ints(options: dict[str, Any]) -> None:
    """The ints are a move's source and its destination."""
    with memory_devices(1, **options) as (device,):
        out = buffer(rig.host(), count=4)
        steps = (
            move(INTS, memory(0, 32), 16),
            submit(0, launch("addk", writes(0), writes(0), 10, n=2), slots=(memory(0, 32),)),
            move(memory(0, 32), INTS, 16, dst_offset=16),
            move(INTS, given(0), 32),
        )
        loaded = load([device, rig.host()], *steps, memory=[alloc(0, 32)], inputs=[(1, 32)], ints=4)
        for a, b in ((1, 2), (3, 4), (5, 6)):
            run(loaded, [out], [a, b])
            assert values(out) == [a, b, a + 10, b + 10]


@pytest.mark.spec("P-move-borrow", "P-run-hostdone")
@pytest.mark.parametrize("way", ["in", "out"])
def test_host_does_not_wait_for_a_move_by_a_device(way: str) -> None:
    """The device's queue is held back; the run that moves host memory returns at once all the same."""
    flags = Words()
    with memory_devices(1) as (device,):
        outside = buffer(rig.host(), 5)
        step = move(given(0), memory(0, 8), 8) if way == "in" else move(memory(0, 8), given(0), 8)
        loaded = load(
            [device, rig.host()],
            submit(0, launch("gate", flags.at(0), flags.at(1))),
            step,
            submit(0, launch("copy_words", flags.at(2), reads(0)), slots=(memory(0, 8),)),
            memory=[alloc(0, 8, as_bytes(7))],
            inputs=[(1, 8)],
        )
        ends = loaded.run(loaded.frame([outside]))
        assert [end.device for end in ends] == [device.name]
        assert not ends[0].wait(PAUSE)
        flags[1] = 1
        wait_all(ends)
        assert flags[2] == (5 if way == "in" else 7)
        assert values(outside) == [5 if way == "in" else 7]


@pytest.mark.spec("P-move-borrow", "P-run-hostdone", "P-run-ends")
@pytest.mark.parametrize("in_program", [True, False])
def test_move_that_the_host_makes_is_done_at_its_step(in_program: bool) -> None:
    """Where the device cannot borrow, the host waits for the work before the move, and has moved when run returns."""
    flags = Words()
    with memory_devices(1, borrows=False) as (device,):
        devices = [device, rig.host()] if in_program else [device]
        out = buffer(rig.host(), count=1)
        loaded = load(
            devices,
            submit(0, launch("gated_store", flags.at(0), flags.at(1), writes(0), 6), slots=(memory(0, 8),)),
            move(memory(0, 8), INTS, 8),
            submit(0, launch("store", flags.at(2), d.Int(0))),
            memory=[alloc(0, 8)],
            ints=1,
        )
        call = Background(lambda: loaded.run(loaded.frame([])))
        assert flags.wait(0)
        call._thread.join(PAUSE)
        assert not call.done
        assert flags[2] == 0
        flags[1] = 1
        ends = call.result()
        assert [end.device for end in ends] == ([device.name, "host"] if in_program else [device.name])
        if in_program:
            assert ends[1].reached
        wait_all(ends)
        assert flags[2] == 6
        assert values(out) == [0]


@pytest.mark.spec("P-move-copy", "P-run-ends")
def test_move_is_made_by_its_source_s_device_else_its_destination_s() -> None:
    with memory_devices(2) as (one, two), memory_devices(1, copies=False) as (three,):
        devices = [one, two, three, rig.host()]
        for source, target, makers in ((0, 1, [0]), (1, 0, [1]), (2, 1, [1]), (3, 0, [0]), (0, 3, [0]), (2, 3, [3])):
            loaded = load(devices, move(memory(0, 8), memory(1, 8), 8), memory=[alloc(source, 8), alloc(target, 8)])
            assert [end.device for end in run(loaded)] == [devices[i].name for i in makers], (source, target)


@pytest.mark.spec("P-move-overlap", "P-run-step-errors")
@on_every_device
def test_ends_that_share_bytes(options: dict[str, Any]) -> None:
    """At offsets that load knows, refused by load; at offsets that read an int, at the step."""
    with memory_devices(1, **options) as (device,):
        with pytest.raises(Invalid, match=r"^steps\[0\]: its two ends, 16 bytes at bytes 0 and 8 of memory 0, overlap"):
            load([device], move(memory(0, 32), memory(0, 24, 8), 16), memory=[alloc(0, 32)])
        with pytest.raises(Invalid, match=r"^steps\[0\]: .* of the ints, overlap"):
            load([device], move(INTS, INTS, 16, dst_offset=8), ints=3)
        with pytest.raises(Invalid, match=r"^steps\[0\]: .* of input 0, overlap"):
            load([device], move(given(0), given(0), 16, dst_offset=8), inputs=[(0, 32)])
        out = buffer(device, *range(8))
        loaded = load([device], move(given(0), given(0), 16, dst_offset=(d.Int(0),)), inputs=[(0, 64)], ints=1)
        with pytest.raises(Invalid, match=r"^steps\[0\]: a move's ends overlap"):
            loaded.run(loaded.frame([out], [8]))
        assert values(out) == list(range(8))
        run(loaded, [out], [16])
        assert values(out) == [0, 1, 0, 1, 4, 5, 6, 7]


@pytest.mark.spec("P-move-copy")
def test_move_of_nothing() -> None:
    """No bytes at the very end of both slots: allowed, and nothing is moved."""
    with memory_devices(1) as (device,):
        out = buffer(device, 3)
        run(load([device], move(given(0), memory(0, 16), 0, 8, 16), memory=[alloc(0, 16)], inputs=[(0, 8)]), [out])
        assert values(out) == [3]


@pytest.mark.spec("P-move-borrow")
def test_staging_does_not_grow_with_the_size() -> None:
    """A move of 64 MiB through staging takes far less host memory than that besides."""
    code = """
import rig
from rig.program import description as d
from rig.program import load
n = 64 << 20
device = rig.memory_device("far", borrows=False)
slots = [d.MemorySlot(d.View(i, 0, n)) for i in range(2)]
memory = (d.Alloc(0, n), d.Alloc(1, n))
steps = (d.Move(slots[0], (), slots[1], (), n), d.Move(slots[1], (), slots[0], (), n))
p = d.Program((device.arch, device.arch), memory, steps=steps)
loaded = load(p, [device, rig.host()])
def peak():  # of this program alone: getrusage would count the process that started it too
    with open("/proc/self/status") as file:
        return next(line.split()[1] for line in file if line.startswith("VmHWM"))
for i in range(2):
    loaded.run(loaded.frame([]))
    if i == 0:
        before = peak()
print(before, peak())
"""
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    first, last = (int(word) for word in out.stdout.split())
    assert last < 2 * (64 << 10) + (48 << 10)
    assert last - first < 8 << 10


@pytest.mark.spec("P-move-borrow")
def test_move_to_memory_of_a_device_without_a_window_and_back() -> None:
    """Two devices that map nothing: what goes between them passes through the host, in order with their work."""
    with memory_devices(2, borrows=False) as (one, two):
        out = buffer(one, count=1)
        steps = (
            submit(0, launch("slow_addk", writes(0), writes(0), 1, 20), slots=(memory(0, 8),)),
            move(memory(0, 8), memory(1, 8), 8),
            submit(1, launch("slow_addk", writes(0), writes(0), 10, 20), slots=(memory(1, 8),)),
            move(memory(1, 8), given(0), 8),
            submit(0, launch("addk", writes(0), writes(0), 100), slots=(given(0),)),
        )
        loaded = load([one, two], *steps, memory=[alloc(0, 8), alloc(1, 8)], inputs=[(0, 8)])
        for want in (111, 112):
            run(loaded, [out])
            assert values(out) == [want]
