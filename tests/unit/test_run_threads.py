"""Runs beside other threads, signals and lost devices, and what a run costs in memory."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kernels import (
    Background,
    Words,
    alloc,
    as_bytes,
    buffer,
    fill,
    given,
    launch,
    load,
    loop,
    memory,
    memory_devices,
    on_host_code,
    opened,
    reads,
    run,
    submit,
    values,
    wait_all,
    writes,
)

import rig
from rig.errors import Invalid, Lost
from rig.program import description as d

MET = 1
PAUSE = 0.03


@pytest.mark.spec("P-run-serial")
@on_host_code
def test_runs_of_one_program_are_serialised(kind: str) -> None:
    """Many threads run it: never two at once, each counted, each with its own ints and result."""
    flags = Words()
    with opened(kind) as device:
        step = submit(0, launch("alone", flags.at(0), flags.at(1), flags.at(2)), launch("store", writes(0), d.Int(0)),
                      launch("bump", writes(1)), slots=(given(0), memory(0, 8)))  # fmt: skip
        loaded = load([device], step, loop(3, step), memory=[alloc(0, 8)], inputs=[(0, 8)], ints=1)

        def work(number: int) -> list[int]:
            out, seen = buffer(device, 0), []
            for turn in range(4):
                run(loaded, [out], [100 * number + turn])
                seen += values(out)
            return seen

        calls = [Background(work, i) for i in range(6)]
        for i, call in enumerate(calls):
            assert call.result() == [100 * i + turn for turn in range(4)]
    assert (flags[0], flags[1], flags[2]) == (0, 1, 6 * 4 * 4)


@pytest.mark.spec("P-run-serial")
def test_run_waits_for_the_previous_one_before_its_first_step() -> None:
    flags = Words()
    gate = submit(0, launch("bump", flags.at(2)), launch("gate", flags.at(0), flags.at(1)))
    loaded = load([rig.host()], gate)
    calls = [Background(run, loaded) for _ in range(3)]
    assert flags.wait(0)
    calls[0]._thread.join(PAUSE)
    assert not any(call.done for call in calls)
    assert flags[2] == 1
    flags[1] = 1
    for call in calls:
        call.result()
    assert flags[2] == 3


@pytest.mark.spec("P-run-serial", "P-run-gil")
def test_different_programs_run_at_once() -> None:
    """Two programs on the host whose kernels wait for each other."""
    flags = Words()
    programs = [
        load([rig.host()], submit(0, launch("meet", flags.at(i), flags.at(1 - i), flags.at(2 + i)))) for i in range(2)
    ]
    calls = [Background(run, one) for one in programs]
    for call in calls:
        call.result()
    assert (flags[2], flags[3]) == (MET, MET)


FUNCTION = ctypes.CFUNCTYPE(None, ctypes.POINTER(ctypes.c_uint64), ctypes.c_uint64, ctypes.c_uint64)


@contextmanager
def python_kernel(call: Callable[[], Any]) -> Iterator[tuple[int, list[Any]]]:
    """Give the address of host code that calls Python, and the list of what the calls gave or raised."""
    seen: list[Any] = []

    def enter(words: Any, begin: int, end: int) -> None:
        try:
            seen.append(call())
        except BaseException as error:
            seen.append(error)

    function = FUNCTION(enter)
    yield ctypes.cast(function, ctypes.c_void_p).value or 0, seen


@pytest.mark.spec("P-run-reentrant")
@pytest.mark.parametrize("how", ["run", "bound"])
@pytest.mark.parametrize("warm", [False, True])
def test_run_from_a_callback_inside_the_run(how: str, warm: bool) -> None:
    """A kernel that calls back into Python: a run of its own program is refused, one of another runs."""
    out = buffer(rig.host(), 0)
    other = load([rig.host()], submit(0, launch("bump", writes(0)), slots=(given(0),)), inputs=[(0, 8)])
    again: list[Any] = []

    def inside() -> None:
        run(other, [out])
        again[0]()

    with python_kernel(inside) as (address, seen):
        loaded = load([rig.host()], loop(d.Int(0), submit(0, launch("call", address))), ints=1)
        if warm:  # known to be short, so that it keeps the interpreter's lock
            loaded = load([rig.host()], submit(0, launch("call", d.Int(0))), ints=1)
            nothing = FUNCTION(lambda words, begin, end: None)
            for _ in range(20):
                run(loaded, ints=[ctypes.cast(nothing, ctypes.c_void_p).value or 0])
        frame = loaded.frame([], [address if warm else 1])
        bound = loaded.bound(frame)
        again.append((lambda: loaded.run(frame)) if how == "run" else bound.run)
        loaded.run(frame)
        (error,) = seen
        assert isinstance(error, Invalid)
        assert "the program is running on this thread already" in str(error)
        assert values(out) == [1]
        loaded.run(frame)
        assert values(out) == [2]


@contextmanager
def handling(call: Callable[[], Any]) -> Iterator[list[Any]]:
    """Run `call` as the handler of SIGUSR1 and give the list of what it gave or raised."""
    seen: list[Any] = []

    def handle(number: int, frame: Any) -> None:
        try:
            seen.append(call())
        except Exception as error:
            seen.append(error)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        yield seen
    finally:
        signal.signal(signal.SIGUSR1, before)


@pytest.mark.spec("P-run-reentrant", "P-run-gil")
@pytest.mark.parametrize("busy", ["loop of the host", "wait for a device"])
def test_run_from_a_signal_handler_during_the_run(busy: str) -> None:
    """The handler runs while the run goes on, and its run of the same program is refused."""
    flags = Words()
    with memory_devices(1) as (device,):
        if busy == "wait for a device":
            steps: tuple[d.Step, ...] = (
                submit(1, launch("gate", flags.at(0), flags.at(1)), launch("bump", writes(0)), slots=(memory(0, 8),)),
                submit(0, launch("nothing", reads(0)), slots=(memory(0, 8),)),
            )
        else:
            body = submit(0, launch("store", flags.at(0), 1), launch("sleep_us", 100))
            step = submit(0, launch("copy_words", writes(0), flags.at(2)), slots=(memory(0, 8),))
            steps = (loop(10**9, body, step, flag=(memory(0, 8), 0)),)
            flags[2] = 1
        loaded = load([rig.host(), device], *steps, memory=[alloc(0, 8, as_bytes(1))])
        frame = loaded.frame([])
        with handling(lambda: loaded.run(frame)) as seen:

            def other() -> None:
                assert flags.wait(0)
                os.kill(os.getpid(), signal.SIGUSR1)
                for _ in range(4000):
                    if seen:
                        break
                    threading.Event().wait(0.005)
                flags[1] = 1
                flags[2] = 0

            helper = Background(other)
            wait_all(loaded.run(frame))
            helper.result()
        (error,) = seen
        assert isinstance(error, Invalid)
        assert "the program is running on this thread already" in str(error)


@pytest.mark.spec("P-run-gil", "P-run-step-errors")
def test_interrupted_run_raises_and_the_program_runs_again() -> None:
    flags = Words()
    with memory_devices(1) as (device,):
        steps = (
            submit(1, launch("gate", flags.at(0), flags.at(1)), launch("bump", writes(0)), slots=(memory(0, 8),)),
            submit(0, launch("copy_words", flags.at(2), reads(0)), slots=(memory(0, 8),)),
        )
        loaded = load([rig.host(), device], *steps, memory=[alloc(0, 8)])

        def other() -> None:
            assert flags.wait(0)
            os.kill(os.getpid(), signal.SIGINT)

        helper = Background(other)
        with pytest.raises(KeyboardInterrupt):
            loaded.run(loaded.frame([]))
        helper.result()
        assert flags[2] == 0
        flags[1] = 1
        run(loaded)
        assert flags[2] == 2


@pytest.mark.spec("P-run-gil")
def test_long_run_lets_other_threads_go_on() -> None:
    """The kernel waits for what only another Python thread does, in a first run, whose length is not known."""
    flags = Words()
    loaded = load([rig.host()], submit(0, launch("meet", flags.at(0), flags.at(1), flags.at(2))))

    def other() -> None:
        assert flags.wait(0)
        flags[1] = 1

    helper = Background(other)
    run(loaded)
    helper.result()
    assert flags[2] == MET


@pytest.mark.spec("P-run-gil")
@pytest.mark.parametrize("what", ["input", "other run", "copy", "host step"])
def test_short_run_never_blocks_with_the_interpreter_s_lock(what: str) -> None:
    """Runs known to be short wait for a device, or for another thread's run, which a Python thread lets go on."""
    flags = Words()
    with memory_devices(1) as (device,):
        flags[1] = 1
        shared = buffer(rig.host(), 0)
        gates = [
            submit(
                0, launch("meet", flags.at(0), flags.at(1), flags.at(k)), launch("bump", writes(0)), slots=(given(0),)
            )
            for k in (2, 3)
        ]
        host_step = submit(1, launch("nothing", reads(0)), slots=(given(0),))
        devices, inputs = [device, rig.host()], [(1, 8)]
        held = load(devices, gates[0], inputs=inputs)
        if what in ("input", "other run"):
            # A program of the host alone is surely short: it waits before its first step.
            step = submit(0, launch("nothing", reads(0)), slots=(given(0),))
            loaded = load([rig.host()], step, inputs=[(0, 8)])
        else:
            loaded = load(devices, *gates[1:], *((host_step,) if what == "host step" else ()), inputs=inputs, ints=1)
        bound = loaded.bound(loaded.frame([shared]))
        for _ in range(40):
            bound.run()
        flags.words[:4] = [0] * 4
        held.run(held.frame([shared]))
        assert flags.wait(0)
        first = Background(bound.run) if what == "other run" else None
        if first is not None:
            first._thread.join(PAUSE)  # it is inside, and waits for the device

        def other() -> None:
            threading.Event().wait(PAUSE)
            flags[1] = 1

        helper = Background(other)
        for _ in range(3):
            bound.run()
        helper.result()
        if first is not None:
            first.result()
        # The kernels say whether they were let go on, or gave up: then this thread had the lock all the while.
        assert flags[2] == MET
        assert flags[3] == (0 if what in ("input", "other run") else MET)


@pytest.mark.spec("P-run-lost")
def test_lost_device_raises_in_runs_and_at_its_points() -> None:
    """At the submission at which it fails, for ever; other devices and the host go on."""
    with memory_devices(1, fail_at=3) as (device,), memory_devices(1) as (other,):
        loaded = load([device], submit(0, launch("nothing")))
        good = [run(loaded) for _ in range(2)]
        ends = loaded.run(loaded.frame([]))
        for _ in range(2):
            with pytest.raises(Lost, match=rf"^{device.name}: the device is lost: it failed at submission 3") as caught:
                ends[0].wait(30)
            assert caught.value.device == device.name
            assert isinstance(caught.value, RuntimeError)
            assert not isinstance(caught.value, OSError)
        with pytest.raises(Lost):
            _ = ends[0].reached
        with pytest.raises(Lost, match=rf"^{device.name}: the device is lost"):
            loaded.run(loaded.frame([]))
        with pytest.raises(Lost):
            loaded.bound(loaded.frame([])).run()
        assert all(end.reached for points in good for end in points)
        assert device.lost
        run(load([other], submit(0, launch("nothing"))))
        run(load([rig.host()], submit(0, launch("nothing"))))


@pytest.mark.spec("P-run-lost", "P-run-hostdone")
def test_step_that_waits_for_a_lost_device_says_which_step() -> None:
    with memory_devices(1, fail_at=1) as (device,):
        steps = (
            submit(1, launch("nothing")),
            submit(0, launch("bump", writes(0)), slots=(memory(0, 8),)),
            loop(1, submit(1, launch("nothing", reads(0)), slots=(memory(0, 8),))),
        )
        loaded = load([device, rig.host()], *steps, memory=[alloc(1, 8)])
        with pytest.raises(Lost) as caught:
            loaded.run(loaded.frame([]))
        assert str(caught.value).startswith(f"steps[2].body[0]: {device.name}: the device is lost")
        assert (caught.value.device, caught.value.step) == (device.name, 2)


@pytest.mark.spec("P-run-lost")
def test_what_waited_for_a_lost_device_is_lost_and_nothing_else() -> None:
    """Work of another device over its memory is not done and says so; over other memory that device goes on."""
    flags = Words()
    with memory_devices(1, fail_at=2) as (failing,), memory_devices(1) as (other,):
        shared, out, fresh = buffer(rig.host(), 1), buffer(rig.host(), 0), buffer(rig.host(), 8)
        first = load(
            [failing, rig.host()],
            submit(0, launch("gate", flags.at(0), flags.at(1))),
            submit(0, launch("store", writes(0), 2), slots=(given(0),)),
            inputs=[(1, 8)],
        )
        second = load(
            [other, rig.host()],
            submit(0, launch("copy_words", writes(0), reads(1)), slots=(given(0), given(1))),
            inputs=[(1, 8), (1, 8)],
        )
        first.run(first.frame([shared]))
        ends = second.run(second.frame([out, shared]))
        flags[1] = 1
        with pytest.raises(Lost, match=rf"^{other.name}: submission 1 was not done: .*{failing.name}"):
            ends[0].wait(30)
        with pytest.raises(Lost):
            out.read()
        with pytest.raises(Lost):
            shared.read()
        assert failing.lost
        assert not other.lost
        third = load([other, rig.host()], submit(0, launch("bump", writes(0)), slots=(given(0),)), inputs=[(1, 8)])
        run(third, [fresh])
        assert values(fresh) == [9]
        with pytest.raises(Lost):
            run(third, [shared])


@pytest.mark.spec("P-run-lost")
def test_closed_device_finishes_its_work_and_is_lost() -> None:
    with memory_devices(1) as (device,):
        out = buffer(rig.host(), 0)
        loaded = load(
            [device, rig.host()],
            submit(0, launch("slow_addk", writes(0), writes(0), 4, 20), slots=(given(0),)),
            inputs=[(1, 8)],
        )
        ends = loaded.run(loaded.frame([out]))
        device.close()
        assert ends[0].reached
        assert values(out) == [4]
        with pytest.raises(Lost, match=rf"^{device.name}: the device is lost: it was closed"):
            loaded.run(loaded.frame([out]))


COUNTER = r"""
#include <stdlib.h>
#include <stdatomic.h>
extern void *__libc_malloc(size_t); extern void __libc_free(void *); extern void *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void *, size_t); extern void *__libc_memalign(size_t, size_t);
_Atomic long made, freed;
void *malloc(size_t n) { made++; return __libc_malloc(n); }
void *calloc(size_t n, size_t m) { made++; return __libc_calloc(n, m); }
void *realloc(void *p, size_t n) { made++; if (p) freed++; return __libc_realloc(p, n); }
void *aligned_alloc(size_t a, size_t n) { made++; return __libc_memalign(a, n); }
void free(void *p) { if (p) freed++; __libc_free(p); }
"""
COUNTED = """
import ctypes, sys
sys.path.insert(0, sys.argv[2])
from kernels import *
counter = ctypes.CDLL(sys.argv[1])
made, freed = (ctypes.c_long.in_dll(counter, name) for name in ("made", "freed"))

def counted(call, times=300):
    # The least of some rounds: vectors may still grow to their size in the first.
    rounds = []
    for _ in range(5):
        before = made.value, freed.value
        for _ in range(times):
            call()
        rounds.append(((made.value - before[0]) / times, (freed.value - before[1]) / times))
    return min(rounds)

for kind in ("host", "memory"):
    with opened(kind) as device, memory_devices(1) as (other,):
        devices = [device, other]
        steps = (
            submit(0, launch("addk", writes(0), reads(1), d.Int(0), n=d.Int(1)), slots=(given(0), memory(0, 8))),
            loop(3, submit(0, copy(0, 1, 8, src_offset=((d.Int(2), 8),)), slots=(given(1), memory(0, 8))), trip=2),
            submit(1, launch("addk", writes(0), reads(1), 1), slots=(memory(0, 8), given(0))),
        )
        loaded = load(devices, *steps, memory=[alloc(0, 8, two=True)], inputs=[(0, 8), (0, 24)], ints=3)
        inputs = [buffer(device, 1), buffer(device, 1, 2, 3)]
        points = loaded.step_points()
        bound = loaded.bound(loaded.frame(inputs, [5, 1]))
        plain, reported = loaded.frame(inputs, [5, 1]), loaded.frame(inputs, [5, 1], points)
        print(kind, *counted(bound.run), *counted(lambda: loaded.run(plain)), *counted(lambda: loaded.run(reported)))
"""


@pytest.mark.spec("P-run-noalloc")
def test_steady_run_allocates_nothing(tmp_path: Path) -> None:
    """A bound run allocates nothing at all, points reported to a frame cost nothing more, and nothing accumulates."""
    library = tmp_path / "count.so"
    command = ["gcc", "-O1", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    subprocess.run(command, input=COUNTER, text=True, check=True, timeout=60)
    environment = {**os.environ, "LD_PRELOAD": str(library)}
    argv = [sys.executable, "-c", COUNTED, str(library), str(Path(__file__).parent)]
    result = subprocess.run(argv, capture_output=True, text=True, timeout=110, env=environment)
    assert result.returncode == 0, result.stderr
    for line in result.stdout.splitlines():
        figures = map(float, line.split()[1:])
        bound_made, bound_freed, made, freed, reported_made, reported_freed = figures
        assert (bound_made, bound_freed) == (0, 0), line
        assert made == freed == reported_made == reported_freed, line
    assert len(result.stdout.splitlines()) == 2


@pytest.mark.spec("P-order-host", "P-part-fill", "P-run-reentrant")
def test_load_from_within_a_run() -> None:
    """A callback of a run may load and run other programs: no lock of rig is held there."""

    def inside() -> list[int]:
        out = buffer(rig.host(), 0)
        run(load([rig.host()], submit(0, launch("store", writes(0), 3), slots=(given(0),)), inputs=[(0, 8)]), [out])
        return values(out)

    with python_kernel(inside) as (address, seen):
        run(load([rig.host()], submit(0, fill(d.Entry(0, "call"), address))))
    assert seen == [[3]]
