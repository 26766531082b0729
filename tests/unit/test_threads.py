"""Threads: one program run from many, loads at once, and other Python that goes on meanwhile."""

from __future__ import annotations

import threading
import time

import pytest

import rig
from tests.unit import kernels as k


@pytest.mark.spec("P-run-serial")
@pytest.mark.case("C17")
@k.on_each
def test_many_threads_run_one_program(kind: str) -> None:
    with k.opened(kind) as device:
        step = k.submit(0, k.launch("add", k.writes(0), k.reads(1), k.reads(1)), slots=[k.given(0), k.given(1)])
        program = k.load([device], step, inputs=[(0, 8), (0, 8)])

        def work(number: int) -> None:
            out, x = k.buffer(device, 0), k.buffer(device, number)
            bound = program.bound(program.frame([out, x]))
            for i in range(200):
                out.write(bytes(8))
                if i % 2:
                    program.run(program.frame([out, x]))
                else:
                    bound.run()
                assert k.values(out) == [2 * number]

        for one in [k.Background(work, number) for number in range(1, 9)]:
            one.result()


@pytest.mark.spec("P-run-serial")
@pytest.mark.case("C17")
def test_runs_of_one_program_do_not_overlap_and_of_two_do() -> None:
    words = k.Words()
    alone = k.load([rig.host()], k.submit(0, k.launch("alone", words.at(0), words.at(1), words.at(2))))
    for one in [k.Background(lambda: [alone.run(alone.frame([])) for _ in range(5)]) for _ in range(4)]:
        one.result()
    assert words[1] == 1 and words[2] == 20
    meet = k.Words()
    sides = [
        k.load([rig.host()], k.submit(0, k.launch("meet", meet.at(a), meet.at(b), meet.at(c))))
        for a, b, c in ((0, 1, 2), (1, 0, 3))
    ]
    for one in [k.Background(side.run, side.frame([])) for side in sides]:
        one.result()
    assert meet[2] == meet[3] == 1


@pytest.mark.case("C17")
def test_loads_at_once_and_drops_between() -> None:
    step = k.submit(0, k.launch("addk", k.writes(0), k.reads(0), 5), slots=[k.given(0)])
    description = k.program([rig.host()], step, inputs=[(0, 8)], memory=[k.alloc(0, 1 << 16, two=True)])
    before = rig.host().memory_in_use

    def work() -> None:
        for _ in range(20):
            loaded = rig.program.load(description, [rig.host()])
            x = k.buffer(rig.host(), 1)
            k.run(loaded, [x])
            assert k.values(x) == [6]

    for one in [k.Background(work) for _ in range(4)]:
        one.result()
    assert rig.host().memory_in_use == before


def rate(seconds: float, stop: threading.Event) -> float:
    """Count in Python until `stop` is set or the time is over; give the counts a second."""
    count, began = 0, time.perf_counter()
    while not stop.is_set() and time.perf_counter() - began < seconds:
        count += 1
    return count / (time.perf_counter() - began)


@pytest.mark.spec("P-run-gil")
@pytest.mark.case("C17")
@pytest.mark.parametrize("shape", ["one kernel", "a loop", "a wait"])
def test_python_goes_on_during_a_long_run(shape: str) -> None:
    with k.memory_devices(1, delay=0.5) as (device,):
        if shape == "one kernel":
            program = k.load([rig.host()], k.submit(0, k.launch("sleep_us", 500_000)))
        elif shape == "a loop":
            program = k.load([rig.host()], k.loop(500, k.submit(0, k.launch("sleep_us", 1000))))
        else:
            program = k.load([device], k.submit(0, k.launch("nothing")))
        for _ in range(5):  # other load may come between
            alone = rate(0.1, threading.Event())
            done = threading.Event()
            counter = k.Background(rate, 10, done)
            for point in program.run(program.frame([])):
                point.wait()
            done.set()
            if counter.result() >= alone / 2:
                return
        raise AssertionError("other Python does not go on during the run")


@pytest.mark.spec("P-run-gil")
def test_short_runs_beside_a_busy_thread_stay_short() -> None:
    program = k.load([rig.host()], k.submit(0, k.launch("nothing")))
    bound = program.bound(program.frame([]))
    for _ in range(20):
        bound.run()
    stop = threading.Event()
    busy = k.Background(rate, 60, stop)
    times = []
    for _ in range(300):
        began = time.perf_counter()
        bound.run()
        times.append(time.perf_counter() - began)
    stop.set()
    busy.result()
    assert sorted(times)[150] < 0.001  # giving the lock up would cost the switch interval, 5 ms
