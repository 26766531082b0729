"""Points: reached, waited for with and without a bound, by many threads, and lost."""

from __future__ import annotations

import threading
import time

import pytest

import rig
from rig import Invalid, Lost
from tests.unit import kernels as k


def gated(device: rig.Device, words: k.Words) -> rig.Point:
    """Submit work that says so in word 0 and waits for word 1."""
    program = k.load([device], k.submit(0, k.launch("gate", words.at(0), words.at(1))))
    (point,) = program.run(program.frame([]))
    return point


@pytest.mark.spec("R-point")
def test_a_hosts_point_is_reached_from_the_start() -> None:
    program = k.load([rig.host()], k.submit(0, k.launch("nothing")))
    (point,) = program.run(program.frame([]))
    assert point.reached
    assert point.wait() and point.wait(0)
    assert point.device == "host" and point.value >= 1
    assert repr(point) == f"<rig.Point host {point.value}>"


@pytest.mark.spec("R-point")
def test_points_count_a_devices_submissions() -> None:
    with k.memory_devices(2) as (a, b):
        on_a, on_b = (k.load([device], k.submit(0, k.launch("nothing"))) for device in (a, b))
        points = [program.run(program.frame([]))[0] for program in (on_a, on_a, on_b, on_a)]
        assert [(p.device, p.value) for p in points] == [(a.name, 1), (a.name, 2), (b.name, 1), (a.name, 3)]
        assert a.submitted == 3 and b.submitted == 1
        assert len(set(points)) == 4
        assert points[0] != points[1] and points[0] != points[2] and points[0] != 1
        (step,) = list(on_a.step_points())
        assert step.reached


@pytest.mark.spec("R-point")
def test_wait_with_a_bound_says_whether_it_was_reached() -> None:
    words = k.Words()
    with k.memory_devices(1) as (device,):
        point = gated(device, words)
        assert not point.reached
        assert not point.wait(0) and not point.wait(-1)
        began = time.monotonic()
        assert not point.wait(0.05)
        assert 0.05 <= time.monotonic() - began < 10
        words[1] = 1
        assert point.wait(1e300)
        assert point.reached and point.wait(0)


@pytest.mark.spec("R-point")
def test_wait_refuses_what_is_no_time() -> None:
    (point,) = (k.load([rig.host()], k.submit(0, k.launch("nothing")))).run(rig.program.Frame([]))
    with pytest.raises(Invalid, match="timeout is nan"):
        point.wait(float("nan"))


@pytest.mark.spec("R-point")
def test_many_threads_wait_for_one_point_and_others_go_on() -> None:
    words = k.Words()
    with k.memory_devices(1) as (device,):
        point = gated(device, words)
        waiters = [k.Background(point.wait, timeout) for timeout in (None, 60.0) * 6]
        assert words.wait(0)
        time.sleep(0.05)  # this thread runs while they wait
        assert not any(waiter.done for waiter in waiters)
        words[1] = 1
        assert all(waiter.result() for waiter in waiters)


@pytest.mark.spec("R-point")
def test_waits_end_in_the_order_of_the_work() -> None:
    with k.memory_devices(1, delay=0.01) as (device,):
        program = k.load([device], k.submit(0, k.launch("nothing")))
        points = [program.run(program.frame([]))[0] for _ in range(8)]
        assert points[3].wait(20)
        assert all(point.reached for point in points[:4])
        k.wait_all(points)


@pytest.mark.spec("R-point", "R-lost")
def test_a_lost_devices_points_raise_and_wake_every_waiter() -> None:
    with k.memory_devices(1, delay=0.1, fail_at=2) as (device,):
        program = k.load([device], k.submit(0, k.launch("nothing")))
        points = [program.run(program.frame([]))[0] for _ in range(4)]
        waiters = [k.Background(point.wait, timeout) for point in points[1:] for timeout in (None, 60.0)]
        for waiter in waiters:
            with pytest.raises(Lost, match="it failed at submission 2, as it was made to") as caught:
                waiter.result(20)
            assert caught.value.device == device.name and caught.value.step is None
        assert points[0].reached and points[0].wait()  # what was reached stays so
        for point in points[1:]:
            with pytest.raises(Lost, match=f"{device.name}: the device is lost"):
                _ = point.reached
            with pytest.raises(Lost):
                point.wait(0)


@pytest.mark.spec("R-point")
def test_a_point_outlives_its_device_and_program() -> None:
    with k.memory_devices(1) as (device,):
        program = k.load([device], k.submit(0, k.launch("nothing")))
        (point,) = program.run(program.frame([]))
        assert point.wait(20)
    del device, program
    assert point.reached
    assert point.wait()


@pytest.mark.spec("R-point")
def test_step_points_are_indexed_like_a_list() -> None:
    program = k.load([rig.host()], *(k.submit(0, k.launch("nothing")) for _ in range(3)))
    points = program.step_points()
    assert len(points) == 3 and all(point.reached for point in points)
    program.run(program.frame([], step_points=points))
    assert points[2].value == points[0].value + 2 == points[-1].value
    for index in (3, -4):
        with pytest.raises(IndexError, match=f"step point {index if index > 0 else -1} of 3"):
            _ = points[index]


@pytest.mark.spec("R-point")
def test_waiting_does_not_keep_the_interpreter() -> None:
    words = k.Words()
    with k.memory_devices(1) as (device,):
        point = gated(device, words)
        opener = threading.Timer(0.05, words.__setitem__, (1, 1))
        opener.start()
        assert point.wait(20)  # Python that opens the gate runs meanwhile
        opener.join()
