"""Steps are ordered by the memory they name, and by nothing else.

Steps that may overlap are shown to by kernels that wait for each other: where they are serialised, the first of them
gives up after 20 s and says so.
"""

from __future__ import annotations

from typing import Any

import pytest
from kernels import (
    INTS,
    Background,
    To,
    Words,
    alloc,
    as_bytes,
    buffer,
    copy,
    fill,
    given,
    launch,
    load,
    memory,
    memory_devices,
    move,
    reads,
    run,
    submit,
    unordered,
    values,
    wait_all,
    writes,
)

import rig
from rig.errors import Invalid
from rig.program import description as d

MET = 1
PAUSE = 0.03  # long enough for work that does not wait to be seen


def meeting(flags: Words, mine: int) -> d.Launch:
    """A kernel that waits for the other's start: word 2 + mine tells whether it came."""
    return launch("meet", flags.at(mine), flags.at(1 - mine), flags.at(2 + mine))


@pytest.mark.spec("P-order-step")
def test_steps_on_two_devices_that_share_no_memory_overlap() -> None:
    flags = Words()
    with memory_devices(2) as devices:
        steps = [
            submit(i, meeting(flags, i), launch("bump", writes(0)), slots=(memory(i, 8),), fixed=[memory(2 + i, 64)])
            for i in range(2)
        ]
        run(load(devices, *steps, memory=[alloc(0, 8), alloc(1, 8), alloc(0, 64), alloc(1, 64)]))
    assert (flags[2], flags[3]) == (MET, MET)


@pytest.mark.spec("P-order-step", "P-order-host")
def test_step_on_host_does_not_wait_for_device_it_shares_nothing_with() -> None:
    flags = Words()
    with memory_devices(1) as (device,):
        run(load([rig.host(), device], submit(1, meeting(flags, 1)), submit(0, meeting(flags, 0))))
    assert (flags[2], flags[3]) == (MET, MET)


@pytest.mark.spec("P-order-step", "P-part-ref")
def test_readers_on_two_devices_overlap() -> None:
    flags = Words()
    with memory_devices(2) as devices:
        out = [buffer(device, count=1) for device in devices]
        steps = [
            submit(
                i,
                meeting(flags, i),
                launch("copy_words", writes(0), reads(1)),
                slots=(given(i), memory(0, 8)),
                fixed=[(memory(1, 8), d.Access.READ)],
            )
            for i in range(2)
        ]
        inputs = [(0, 8), (1, 8)]
        run(load(devices, *steps, memory=[alloc(0, 8, as_bytes(5)), alloc(0, 8)], inputs=inputs), out)
        assert [values(one) for one in out] == [[5], [5]]
    assert (flags[2], flags[3]) == (MET, MET)


@pytest.mark.spec("P-part-ref", "P-order-step")
def test_unordered_uses_overlap() -> None:
    """Unordered work waits for nothing and is waited for by nothing, though it writes."""
    flags = Words()
    with memory_devices(2) as devices:
        steps = [submit(i, meeting(flags, i), launch("bump", unordered(0)), slots=(memory(0, 8),)) for i in range(2)]
        out = buffer(rig.host(), count=1)
        ends = run(load([*devices, rig.host()], *steps, memory=[alloc(0, 8)]), [])
        assert len(ends) == 2
        assert values(out) == [0]
    assert (flags[2], flags[3]) == (MET, MET)


# Ways to use memory 0, of one word: as a step on a device, early (held back by a gate) or late.


def using(way: str, device: int, flags: Words, gated: bool) -> tuple[Any, ...]:
    """Steps on `device` that read word 0 of memory 0 into input 1, or write 41 there; `way` says how they name it."""
    parts = (launch("gate", flags.at(0), flags.at(1)),) if gated else (launch("bump", flags.at(2)),)
    shared, out, forty_one = memory(0, 8), given(1), given(0)
    if way == "read by a ref":
        return (submit(device, *parts, launch("copy_words", writes(0), reads(1)), slots=(out, shared)),)
    if way == "read by fixed":
        work = launch("copy_words", writes(0), d.Address(0, device))
        return (submit(device, *parts, work, slots=(out,), fixed=[(shared, d.Access.READ)]),)
    if way == "read by a copy":
        return (submit(device, *parts, copy(0, 1, 8), slots=(shared, out)),)
    if way == "write by a ref":
        return (submit(device, *parts, launch("copy_words", writes(0), reads(1)), slots=(shared, forty_one)),)
    if way == "write by fixed":
        return (submit(device, *parts, launch("store", d.Address(0, device), 41), fixed=[shared]),)
    if way == "write by a copy":
        return (submit(device, *parts, copy(1, 0, 8), slots=(shared, forty_one)),)
    raise AssertionError(way)


READS = ["read by a ref", "read by fixed", "read by a copy"]
WRITES = ["write by a ref", "write by fixed", "write by a copy"]
ORDERED = [(a, b) for a in READS + WRITES for b in READS + WRITES if a in WRITES or b in WRITES]


@pytest.mark.spec("P-order-step", "P-order-names")
@pytest.mark.parametrize(("first", "second"), ORDERED)
@pytest.mark.parametrize("late", [1, 2], ids=["device", "host"])
def test_step_follows_earlier_step_whose_memory_it_names(first: str, second: str, late: int) -> None:
    """While the first step is held back, the second does not start; then both have done what their order says."""
    flags = Words()
    with memory_devices(2) as (one, two):
        devices = [one, two, rig.host()]
        steps = (*using(first, 0, flags, True), *using(second, late, flags, False))
        source, out = buffer(rig.host(), 41), buffer(rig.host(), count=1)
        loaded = load(
            devices,
            *steps,
            memory=[alloc(0, 8, as_bytes(7))],
            inputs=[(2, 8), (2, 8), (2, 8)],
        )
        call = Background(run, loaded, [source, out, buffer(rig.host(), 0)])
        assert flags.wait(0)
        call._thread.join(PAUSE)
        assert flags[2] == 0
        flags[1] = 1
        call.result()
        assert flags[2] == 1
        if first in READS:
            assert values(out) == [7]
        elif second in READS:
            assert values(out) == [41]


@pytest.mark.spec("P-order-names", "P-move-copy")
@pytest.mark.parametrize("way", [*READS, *WRITES])
@pytest.mark.parametrize("maker", ["device", "host"])
def test_move_names_memory_of_its_two_slots(way: str, maker: str) -> None:
    """A move, by another device or by the host, follows work on its source's and its destination's memory."""
    flags = Words()
    with memory_devices(1) as (device,), memory_devices(1, copies=maker == "device") as (other,):
        devices = [device, other, rig.host()]
        source, out, moved = buffer(rig.host(), 41), buffer(rig.host(), count=1), buffer(other, 99)
        step = move(memory(0, 8), given(2), 8) if way in WRITES else move(given(2), memory(0, 8), 8)
        loaded = load(
            devices,
            *using(way, 0, flags, True),
            step,
            move(memory(0, 8), given(3), 8),
            memory=[alloc(2, 8, as_bytes(7))],
            inputs=[(2, 8), (2, 8), (1, 8), (1, 8)],
        )
        last = buffer(other, count=1)
        call = Background(run, loaded, [source, out, moved, last])
        assert flags.wait(0)
        call._thread.join(PAUSE)
        flags[1] = 1
        call.result()
        assert values(last) == ([41] if way in WRITES else [99])
        assert values(moved) == ([41] if way in WRITES else [99])
        if way in READS:
            assert values(out) == [7]


@pytest.mark.spec("P-order-step", "P-order-names")
def test_words_of_the_ints_order_steps_too() -> None:
    flags = Words()
    with memory_devices(2) as devices:
        out = buffer(rig.host(), count=2)
        steps = (
            submit(0, launch("gated_store", flags.at(0), flags.at(1), writes(0, 8), 5), slots=(INTS,)),
            submit(
                1, launch("bump", flags.at(2)), launch("copy_words", writes(0), reads(1), n=2), slots=(given(0), INTS)
            ),
        )
        loaded = load([*devices, rig.host()], *steps, inputs=[(2, 16)], ints=2)
        call = Background(run, loaded, [out], [3, 4])
        assert flags.wait(0)
        call._thread.join(PAUSE)
        assert flags[2] == 0
        flags[1] = 1
        call.result()
        assert values(out) == [3, 5]


@pytest.mark.spec("P-order-step")
def test_inputs_that_are_views_of_one_memory_order_steps() -> None:
    """Two inputs over the same bytes: the second step follows the first."""
    flags = Words()
    with memory_devices(2) as devices:
        whole = buffer(rig.host(), 0, 0)
        steps = (
            submit(0, launch("gated_store", flags.at(0), flags.at(1), writes(0), 5), slots=(given(0),)),
            submit(1, launch("addk", writes(0), writes(0), 10), slots=(given(1),)),
        )
        loaded = load([*devices, rig.host()], *steps, inputs=[(2, 8), (2, 8)])
        call = Background(run, loaded, [whole.view(8, 8), whole.view(8, 8)])
        assert flags.wait(0)
        call._thread.join(PAUSE)
        flags[1] = 1
        call.result()
        assert values(whole) == [0, 15]


@pytest.mark.spec("P-order-step")
def test_device_s_work_is_in_order() -> None:
    """Steps of one device follow each other though they share nothing."""
    with memory_devices(1) as (device,):
        order = Words(16)
        steps = [
            submit(0, launch("sleep_us", (5 - i) * 1000), launch("append", order.at(), i), fixed=[memory(i, 8)])
            for i in range(5)
        ]
        run(load([device], *steps, memory=[alloc(0, 8)] * 5))
    assert list(order.words)[:6] == [5, 0, 1, 2, 3, 4]


@pytest.mark.spec("P-order-step", "P-run-waits")
def test_programs_are_ordered_by_memory_too() -> None:
    """A run of another program follows this one's by the input both name, not by the program."""
    flags = Words()
    with memory_devices(2) as (one, two):
        shared, out = buffer(rig.host(), 1), buffer(rig.host(), count=1)
        first = load(
            [one, rig.host()],
            submit(0, launch("gated_store", flags.at(0), flags.at(1), writes(0), 6), slots=(given(0),)),
            inputs=[(1, 8)],
        )
        second = load(
            [two, rig.host()],
            submit(0, launch("copy_words", writes(0), reads(1)), slots=(given(0), given(1))),
            inputs=[(1, 8), (1, 8)],
        )
        ends = first.run(first.frame([shared]))
        ends += second.run(second.frame([out, shared]))
        assert not ends[1].wait(PAUSE)
        flags[1] = 1
        wait_all(ends)
        assert values(out) == [6]


@pytest.mark.spec("P-order-host")
def test_host_step_is_done_when_its_submit_returns() -> None:
    """The host's work is done before the next step is submitted, and before run returns."""
    flags = Words()
    with memory_devices(1) as (device,):
        out = buffer(rig.host(), count=1)
        steps = (
            submit(
                0,
                launch("spin_us", 2000),
                launch("store", flags.at(0), 3),
                launch("store", writes(0), 3),
                slots=(given(0),),
            ),
            submit(1, launch("copy_words", flags.at(1), flags.at(0))),
        )
        loaded = load([rig.host(), device], *steps, inputs=[(0, 8)])
        ends = loaded.run(loaded.frame([out]))
        assert flags[0] == 3
        assert ends[0].device == "host"
        assert ends[0].reached
        wait_all(ends)
        assert flags[1] == 3


@pytest.mark.spec("P-order-host", "P-order-step")
def test_host_step_waits_for_device_s_write() -> None:
    with memory_devices(1) as (device,):
        out = buffer(rig.host(), count=1)
        steps = (
            submit(1, launch("slow_addk", writes(0), writes(0), 5, 20), slots=(memory(0, 8),)),
            submit(0, launch("addk", writes(0), reads(1), 1), slots=(given(0), memory(0, 8))),
            submit(1, launch("slow_addk", writes(0), writes(0), 10, 20), slots=(given(0),)),
            submit(0, launch("addk", writes(0), writes(0), 100), slots=(given(0),)),
        )
        loaded = load([rig.host(), device], *steps, memory=[alloc(1, 8)], inputs=[(0, 8)])
        loaded.run(loaded.frame([out]))
        assert values(out) == [116]


@pytest.mark.spec("P-order-wholly", "P-order-address", "P-order-init", "P-order-init-address", "P-load-atomic")
def test_memory_reached_by_address_must_be_named_whole() -> None:
    """Whole: a view from byte 0 that covers all. Nothing is made for a program that breaks this."""
    with memory_devices(1) as (device,):
        work = launch("store", d.Address(0, 0), 1)
        table = d.Data(bytes(8), (d.Hole(0, d.Width.W64, (d.Term(d.Address(0, 0), 1),)),))
        run(load([device], submit(0, work, fixed=[memory(0, 64)]), memory=[alloc(0, 64)]))
        good = submit(0, work, fixed=[memory(0, 64), memory(1, 8)])
        run(load([device], good, memory=[alloc(0, 64), alloc(0, 8, table)]))
        for fixed in ([], [memory(0, 63)], [memory(0, 63, 1)], [memory(0, 32), memory(0, 32, 32)]):
            with pytest.raises(
                Invalid,
                match=r"^steps\[0\]\.parts\[0\]\.params.*memory 0, whose Address stands here, is not fixed whole",
            ):
                load([device], submit(0, work, fixed=fixed), memory=[alloc(0, 64)])
        with pytest.raises(Invalid, match=r"^steps\[1\].*names memory 1, whose init holds .* of memory 0"):
            load(
                [device],
                submit(0, work, fixed=[memory(0, 64)]),
                submit(0, launch("nothing"), fixed=[memory(1, 8)]),
                memory=[alloc(0, 64), alloc(0, 8, table)],
            )
        assert device.memory_in_use == 0


@pytest.mark.spec("P-order-step", "P-part-fill")
def test_fills_are_in_order_with_the_other_parts() -> None:
    order = Words(8)
    for kind in ("host", "memory"):
        order.words[:] = [0] * 8
        with memory_devices(1) as (device,):
            devices = [rig.host() if kind == "host" else device]
            parts = (
                launch("sleep_us", 3000),
                launch("append", order.at(), 1),
                fill(d.Entry(0, "append"), order.at(), 2),
                launch("append", order.at(), 3),
            )
            run(load(devices, submit(0, *parts)))
        assert list(order.words)[:4] == [3, 1, 2, 3]


@pytest.mark.spec("P-part-ref", "P-run-writes")
def test_unordered_memory_is_kept_until_the_work_is_done() -> None:
    flags = Words()
    with memory_devices(1) as (device,):
        target = rig.Buffer.create(device, 1 << 20)
        before = device.memory_in_use
        step = submit(
            0,
            launch("gate", flags.at(0), flags.at(1)),
            launch("store", To(0, d.Use.UNORDERED), 9),
            launch("copy_words", flags.at(2), To(0, d.Use.UNORDERED)),
            slots=(given(0),),
        )
        loaded = load([device], step, inputs=[(0, 8)])
        ends = loaded.run(loaded.frame([target]))
        del target
        assert flags.wait(0)
        assert device.memory_in_use == before
        flags[1] = 1
        wait_all(ends)
        assert flags[2] == 9
        assert device.memory_in_use == before - (1 << 20)
