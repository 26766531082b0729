"""Memory in two copies: run n uses copy n mod 2, and may write it while run n - 1 still reads the other."""

from __future__ import annotations

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
    memory,
    memory_devices,
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
from rig.program import description as d

MET = 1
PAUSE = 0.03


@pytest.mark.spec("P-copies-alternate", "P-copies-init")
@on_each
def test_runs_take_turns(kind: str) -> None:
    """Each copy starts as its init says and keeps what the run before the last left there."""
    with opened(kind) as device:
        out = buffer(device, count=2)
        step = submit(
            0,
            launch("addk", writes(0), writes(0), 1, n=2),
            launch("copy_words", writes(1), reads(0), n=2),
            slots=(memory(0, 16, 8), given(0)),
        )
        loaded = load([device], step, memory=[alloc(0, 32, as_bytes(5, 100, 200), two=True)], inputs=[(0, 16)])
        seen = []
        for _ in range(5):
            run(loaded, [out])
            seen.append(tuple(values(out)))
    assert seen == [(101, 201), (101, 201), (102, 202), (102, 202), (103, 203)]


@pytest.mark.spec("P-copies-alternate")
def test_memory_of_one_copy_is_every_run_s() -> None:
    with memory_devices(1) as (device,):
        out = buffer(device, count=2)
        step = submit(
            0,
            launch("bump", writes(0)),
            launch("bump", writes(1)),
            launch("copy_words", writes(2), reads(0)),
            launch("copy_words", writes(2, 8), reads(1)),
            slots=(memory(0, 8), memory(1, 8), given(0)),
        )
        loaded = load([device], step, memory=[alloc(0, 8), alloc(0, 8, two=True)], inputs=[(0, 16)])
        seen = []
        for _ in range(4):
            run(loaded, [out])
            seen.append(tuple(values(out)))
    assert seen == [(1, 1), (2, 1), (3, 2), (4, 2)]


def writer_and_reader(device_flags: tuple[d.Value, ...]) -> tuple[d.Submit, d.Submit]:
    """Device 0 writes memory 0, device 1 reads it; each first meets whatever the run's ints say."""
    write = submit(
        0, launch("meet", *device_flags[:3]), launch("copy_words", writes(0), reads(1)), slots=(memory(0, 8), given(0))
    )
    read = submit(
        1, launch("meet", *device_flags[3:]), launch("copy_words", writes(1), reads(0)), slots=(memory(0, 8), given(1))
    )
    return write, read


@pytest.mark.spec("P-copies-overlap", "P-run-ints")
def test_run_writes_its_copy_while_the_last_one_reads_the_other() -> None:
    """Run 1's writer and run 0's reader wait for each other: with one copy that could not be."""
    # Word 7 is always set: who is to meet nobody meets it. Words 0 and 1: run 1's writer and run 0's reader.
    flags = Words(16)
    flags[7] = 1
    with memory_devices(2) as devices:
        steps = writer_and_reader(tuple(d.Int(i) for i in range(6)))
        loaded = load(
            [*devices, rig.host()],
            *steps,
            memory=[alloc(0, 8, two=True)],
            inputs=[(2, 8), (2, 8)],
            ints=6,
        )
        sources = [buffer(rig.host(), n) for n in (10, 11)]
        outs = [buffer(rig.host(), count=1) for _ in range(2)]
        nobody = [flags.at(8), flags.at(7), flags.at(9)]
        first = [*nobody, flags.at(1), flags.at(0), flags.at(3)]
        second = [flags.at(0), flags.at(1), flags.at(2), *nobody]
        ends = loaded.run(loaded.frame([sources[0], outs[0]], first))
        ends += loaded.run(loaded.frame([sources[1], outs[1]], second))
        wait_all(ends)
        assert (flags[2], flags[3]) == (MET, MET)
        assert [values(out) for out in outs] == [[10], [11]]


@pytest.mark.spec("P-copies-overlap")
def test_with_one_copy_the_next_run_s_writer_waits_for_the_reader() -> None:
    """The converse: the writer does not start before the reader of the last run is done."""
    flags = Words(16)
    with memory_devices(2) as devices:
        write = submit(0, launch("bump", flags.at(2)), launch("store", writes(0), d.Int(0)), slots=(memory(0, 8),))
        read = submit(
            1,
            launch("gate", flags.at(0), flags.at(1)),
            launch("copy_words", writes(0), reads(1)),
            slots=(given(0), memory(0, 8)),
        )
        loaded = load([*devices, rig.host()], write, read, memory=[alloc(0, 8)], inputs=[(2, 8)], ints=1)
        outs = [buffer(rig.host(), count=1) for _ in range(2)]
        ends = loaded.run(loaded.frame([outs[0]], [10]))
        ends += loaded.run(loaded.frame([outs[1]], [11]))
        assert flags.wait(0)
        assert not ends[2].wait(PAUSE)
        assert flags[2] == 1
        flags[1] = 1
        wait_all(ends)
        assert [values(out) for out in outs] == [[10], [11]]


@pytest.mark.spec("P-run-ints", "P-copies-alternate")
def test_run_waits_for_the_run_before_the_last() -> None:
    """Run 2 writes its ints and its copy only once run 0's work on them is done; run 1 does not wait."""
    flags = Words(16)
    with memory_devices(1) as (device,):
        step = submit(
            0,
            launch("gate", flags.at(0), flags.at(1)),
            launch("append", writes(0), 0),
            launch("copy_words", writes(0, 8), reads(1)),
            slots=(given(0), INTS),
        )
        loaded = load([device, rig.host()], step, inputs=[(1, 16)], ints=1)
        outs = [buffer(rig.host(), count=3) for _ in range(3)]
        ends = loaded.run(loaded.frame([outs[0]], [70]))
        ends += loaded.run(loaded.frame([outs[1]], [71]))
        call = Background(lambda: loaded.run(loaded.frame([outs[2]], [72])))
        call._thread.join(PAUSE)
        assert not call.done
        flags[1] = 1
        ends += call.result()
        wait_all(ends)
        assert [values(one)[1] for one in outs] == [70, 71, 72]


@pytest.mark.spec("P-run-ints", "P-copies-alternate")
@pytest.mark.parametrize("which", ["ints", "memory"])
def test_waits_for_work_of_every_device_on_the_copy(which: str) -> None:
    """The work of run 0 that lasts is on one device, run 2's on another."""
    flags = Words(16)
    with memory_devices(2) as devices:
        steps = (
            submit(0, launch("gate", flags.at(0), flags.at(1)), fixed=[memory(0, 8)]),
            submit(1, launch("bump", flags.at(2)), fixed=[memory(1, 8)]),
        )
        sizes = [alloc(0, 8, two=which == "memory"), alloc(1, 8)]
        loaded = load(devices, *steps, memory=sizes, ints=1 if which == "ints" else 0)
        ends = loaded.run(loaded.frame([]))
        ends += loaded.run(loaded.frame([]))
        call = Background(lambda: loaded.run(loaded.frame([])))
        call._thread.join(PAUSE)
        assert not call.done
        wait_all([ends[1], ends[3]])
        assert flags[2] == 2
        flags[1] = 1
        wait_all([*ends, *call.result()])
        assert flags[2] == 3


@pytest.mark.spec("P-copies-alternate")
def test_program_without_copies_and_ints_does_not_wait_at_all() -> None:
    """Runs of a program that has nothing of its own in two copies are queued one after the other."""
    flags = Words(16)
    with memory_devices(1) as (device,):
        loaded = load(
            [device], submit(0, launch("gate", flags.at(0), flags.at(1)), fixed=[memory(0, 8)]), memory=[alloc(0, 8)]
        )
        ends = [end for _ in range(5) for end in loaded.run(loaded.frame([]))]
        assert not ends[0].reached
        flags[1] = 1
        wait_all(ends)
