"""Loops: trips, flags, nesting, and what moves with the trip."""

from __future__ import annotations

from typing import Any

import pytest
from kernels import (
    INTS,
    Background,
    Hollow,
    Words,
    alloc,
    as_bytes,
    buffer,
    copy,
    given,
    hole,
    launch,
    load,
    loop,
    memory,
    memory_devices,
    move,
    moving,
    on_each,
    opened,
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


@pytest.mark.spec("P-loop-trips")
@on_each
def test_body_runs_trips_times(kind: str) -> None:
    with opened(kind) as device:
        out = buffer(device, count=1)
        body = submit(0, launch("bump", writes(0)), slots=(given(0),))
        for trips, want in ((3, 3), (1, 1), (0, 0), (-1, 0), (-(2**63), 0)):
            for value, ints in ((trips, []), (d.Int(0), [trips])):
                out.write(bytes(8))
                run(load([device], loop(value, body), inputs=[(0, 8)], ints=1), [out], ints)
                assert values(out) == [want], trips


@pytest.mark.spec("P-loop-trips")
@on_each
def test_trip_is_stored_from_0_and_stays(kind: str) -> None:
    """The word holds each trip's index, the last one afterwards, and what it held where there is no trip."""
    with opened(kind) as device:
        out = buffer(device, count=8)
        append = submit(0, launch("append", writes(0), d.Int(1)), slots=(given(0),))
        loaded = load([device], loop(d.Int(0), append, trip=1), append, inputs=[(0, 64)], ints=2)
        run(loaded, [out], [3, 50])
        assert values(out)[:5] == [4, 0, 1, 2, 2]
        out.write(bytes(64))
        run(loaded, [out], [0, 50])
        assert values(out)[:2] == [1, 50]


@pytest.mark.spec("P-loop-trips")
def test_trips_are_read_once_at_the_loop() -> None:
    """Work of the body that changes the word of the trips does not change how often the body runs."""
    out = buffer(rig.host(), count=1)
    body = submit(0, launch("bump", writes(0)), launch("store", writes(1), 1), slots=(given(0), INTS))
    run(load([rig.host()], loop(d.Int(0), body), inputs=[(0, 8)], ints=1), [out], [4])
    assert values(out) == [4]


@pytest.mark.spec("P-loop-nested", "P-loop-trips")
@on_each
def test_loops_nest(kind: str) -> None:
    """An inner loop whose trips are the outer one's trip; loops after each other; every word as it should be."""
    with opened(kind) as device:
        out = buffer(device, count=16)
        word = Hollow((hole((d.Int(0), 100), (d.Int(1), 10), d.Int(2)),))
        append = submit(0, launch("append", writes(0), word), slots=(given(0),))
        loaded = load(
            [device],
            loop(3, loop(d.Int(0), append, loop(2, append, trip=2), trip=1), trip=0),
            loop(2, append, trip=2),
            inputs=[(0, 128)],
            ints=3,
        )
        run(loaded, [out], [0, 0, 7])
        seen = values(out)
        want = []
        last = 7
        for i in range(3):
            for j in range(i):
                want.append(100 * i + 10 * j + last)
                for last in range(2):
                    want.append(100 * i + 10 * j + last)
        want += [210, 211]
        assert seen[0] == len(want)
        assert seen[1 : 1 + len(want)] == want


@pytest.mark.spec("P-loop-nested")
def test_sixty_four_loops_deep() -> None:
    out = buffer(rig.host(), count=1)
    step: Any = submit(0, launch("bump", writes(0)), slots=(given(0),))
    for depth in range(64):
        step = loop(2 if depth % 16 == 0 else 1, step)
    run(load([rig.host()], step, inputs=[(0, 8)]), [out])
    assert values(out) == [16]


@pytest.mark.spec("P-loop-nested", "P-loop-trips")
def test_trip_is_stored_once_earlier_work_that_uses_the_ints_is_done() -> None:
    """A device reads the ints late: each trip's work sees its own trip, though the host is ahead."""
    with memory_devices(1) as (device,):
        out = buffer(rig.host(), count=8)
        body = submit(
            0,
            launch("sleep_us", 3000),
            launch("call", d.Entry(0, "append"), writes(0), 0),
            launch("muladd", writes(0, 56), reads(1), 10),
            slots=(given(0), INTS),
        )
        loaded = load([device, rig.host()], loop(4, body, trip=0), inputs=[(1, 64)], ints=1)
        run(loaded, [out])
        assert values(out)[7] == 123


SLOTS = {"own": memory(0, 8, 8), "host's": memory(1, 16), "input": given(2), "ints": INTS}


@pytest.mark.spec("P-loop-flag")
@pytest.mark.parametrize(("what", "borrows"), [*((what, True) for what in SLOTS), ("own", False)])
@pytest.mark.parametrize("start", [1, 0])
def test_flag_is_read_before_each_trip_once_it_is_written(what: str, borrows: bool, start: int) -> None:
    """The work that writes the flag is late; the loop stops right when it is 0, and does not start on 0."""
    with memory_devices(1, borrows=borrows) as (device,):
        slot = SLOTS[what]
        # Word 0 of the ints is the trip's: their flag is in word 1.
        at = 13 if what == "ints" else 5
        word = start << 40
        body = submit(
            0,
            launch("sleep_us", 2000),
            launch("countdown", writes(0, at), writes(1)),
            launch("bump", writes(2)),
            slots=(slot, given(0), given(1)),
        )
        loaded = load(
            [device, rig.host()],
            loop(1000, body, trip=0, flag=(slot, at)),
            memory=[alloc(0, 16, as_bytes(0, word)), alloc(1, 16, as_bytes(word))],
            inputs=[(0, 8), (0, 8), (1, 8)],
            ints=2,
        )
        one, two = buffer(device, 6), buffer(device, 0)
        run(loaded, [one, two, buffer(rig.host(), word)], [0, word])
        assert (values(one), values(two)) == (([0], [6]) if start else ([6], [0]))


@pytest.mark.spec("P-loop-flag", "P-loop-trips")
def test_flag_ends_before_trips_and_trips_before_flag() -> None:
    out = buffer(rig.host(), 5, 0)
    flag = memory(0, 8)
    body = submit(0, launch("countdown", writes(0), writes(1)), launch("bump", writes(1, 8)), slots=(flag, given(0)))
    for trips, want in ((3, 3), (100, 5)):
        out.write(as_bytes(5, 0))
        loaded = load(
            [rig.host()], loop(trips, body, flag=(flag, 0)), memory=[alloc(0, 8, as_bytes(1))], inputs=[(0, 16)]
        )
        run(loaded, [out])
        assert values(out)[1] == want


@pytest.mark.spec("P-loop-flag")
def test_loop_waits_for_the_flag_s_writer_on_another_device() -> None:
    """One device writes the flag behind a gate, another does the body: no trip starts before the gate opens."""
    flags = Words()
    with memory_devices(2) as devices:
        write = submit(0, launch("gated_store", flags.at(0), flags.at(1), writes(0), 1), slots=(memory(0, 8),))
        body = submit(1, launch("bump", flags.at(2)))
        loaded = load(devices, write, loop(2, body, flag=(memory(0, 8), 0)), memory=[alloc(0, 8)])
        call = Background(run, loaded)
        assert flags.wait(0)
        call._thread.join(PAUSE)
        assert flags[2] == 0
        flags[1] = 1
        call.result()
        assert flags[2] == 2


@pytest.mark.spec("P-loop-flag-range", "P-run-step-errors")
@on_each
def test_flag_past_its_slot(kind: str) -> None:
    """Refused by load where it knows the slot, at the run where only the run knows it."""
    with opened(kind) as device:
        body = submit(0, launch("bump", writes(0)), slots=(given(0),))
        for slot, at, why in (
            (memory(0, 8, 8), 8, "the flag is byte 8 of its slot; the slot has 8 bytes"),
            (memory(0, 16), -1, "the flag is byte -1 of its slot"),
            (INTS, 8, "the flag is byte 8 of its slot; the slot has 8 bytes"),
            (given(0), -1, "the flag is byte -1 of its slot; 0 and more is allowed"),
        ):
            with pytest.raises(Invalid, match=rf"^steps\[0\]\.flag: {why}"):
                load([device], loop(1, body, flag=(slot, at)), memory=[alloc(0, 16)], inputs=[(0, 8)], ints=1)
        out = buffer(device, 0, 1)
        loaded = load([device], body, loop(2, body, flag=(given(0), 8)), inputs=[(0, 8)])
        with pytest.raises(Invalid, match=r"^steps\[1\]: the flag at byte 8 is past its buffer of 8 bytes"):
            loaded.run(loaded.frame([out.view(0, 8)]))
        assert values(out) == [1, 1]
        run(loaded, [out])
        assert values(out) == [4, 1]


@pytest.mark.spec("P-loop-trips", "P-part-ref", "P-part-copy-offset", "P-hole-run")
@on_each
def test_everything_moves_with_the_trip(kind: str) -> None:
    """Refs, copies, moves, scalar parameters and geometry of a body follow the trip, on every run anew."""
    with opened(kind) as device:
        rows, out = buffer(device, *range(100, 132)), buffer(device, count=24)
        trip = d.Int(0)
        body = (
            submit(
                0,
                copy(0, 1, 32, src_offset=((trip, 64),)),
                launch("addk", moving(2, d.Use.WRITE, (trip, 48)), reads(1), trip, n=trip),
                slots=(given(0), memory(0, 32), given(1)),
            ),
            move(memory(0, 32), given(1), 8, src_offset=((trip, 8),), dst_offset=((trip, 48), 40)),
        )
        loaded = load([device], loop(4, *body, trip=0), memory=[alloc(0, 32)], inputs=[(0, 256), (0, 192)], ints=1)
        want = []
        for row in range(4):
            line = [100 + 8 * row + i for i in range(4)]
            want += [*([value + row for value in line[:row]] + [0] * 5)[:5], line[row]]
        for _ in range(2):
            out.write(bytes(192))
            run(loaded, [rows, out])
            assert values(out) == want


@pytest.mark.spec("P-loop-trips")
def test_loop_over_two_devices_keeps_order() -> None:
    """One adds, the other doubles, in turns."""
    with memory_devices(2) as devices:
        out = buffer(devices[0], count=1)
        shared = memory(0, 8)
        body = (
            submit(0, launch("sleep_us", 300), launch("addk", writes(0), writes(0), 3), slots=(shared,)),
            submit(1, launch("add", writes(0), writes(0), writes(0)), slots=(shared,)),
        )
        loaded = load(
            devices,
            loop(5, *body),
            submit(0, launch("copy_words", writes(0), reads(1)), slots=(given(0), shared)),
            memory=[alloc(0, 8, as_bytes(1))],
            inputs=[(0, 8)],
        )
        run(loaded, [out])
        value = 1
        for _ in range(5):
            value = (value + 3) * 2
        assert values(out) == [value]


@pytest.mark.spec("P-loop-trips")
def test_empty_body_and_long_loop() -> None:
    """A million trips around nothing, and one that the host runs ahead of a device's queue."""
    out = buffer(rig.host(), count=1)
    run(
        load(
            [rig.host()],
            loop(1_000_000, trip=0),
            submit(0, launch("store", writes(0), d.Int(0)), slots=(given(0),)),
            inputs=[(0, 8)],
            ints=1,
        ),
        [out],
    )
    assert values(out) == [999_999]
    with memory_devices(1) as (device,):
        loaded = load([device], loop(5000, submit(0, launch("bump", writes(0)), slots=(given(0),))), inputs=[(0, 8)])
        count = buffer(device, 0)
        wait_all(loaded.run(loaded.frame([count])))
        assert values(count) == [5000]
