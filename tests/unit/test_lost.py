"""Lost devices: what raises, what goes on, and what is ordinary memory again."""

from __future__ import annotations

import time

import pytest

import rig
from rig import Buffer, Lost
from tests.unit import kernels as k


def add_on(device: rig.Device, amount: int = 1) -> rig.program.Loaded:
    """Load x += amount."""
    step = k.submit(0, k.launch("addk", k.writes(0), k.reads(0), amount), slots=[k.given(0)])
    return k.load([device], step, inputs=[(0, 8)])


def lose(device: rig.Device) -> None:
    """Submit until the device fails."""
    program = k.load([device], k.submit(0, k.launch("nothing")))
    while not device.lost:
        try:
            program.run(program.frame([]))[0].wait(20)
        except Lost:
            return


@pytest.mark.spec("R-lost", "P-run-lost")
def test_a_device_that_failed_is_lost_for_every_use() -> None:
    with k.memory_devices(1, fail_at=3) as (device,):
        program, x = add_on(device), k.buffer(device, 5)
        points = [program.run(program.frame([x]))[0] for _ in range(2)]
        k.wait_all(points)
        assert k.values(x) == [7]
        (third,) = program.run(program.frame([x]))
        reason = f"{device.name}: the device is lost: it failed at submission 3, as it was made to"
        with pytest.raises(Lost, match=reason) as caught:
            third.wait(20)
        assert (caught.value.device, caught.value.step) == (device.name, None)
        assert isinstance(caught.value, RuntimeError) and not isinstance(caught.value, OSError)
        with pytest.raises(Lost, match=reason) as caught:
            program.run(program.frame([x]))
        assert caught.value.device == device.name
        other = Buffer.create(rig.host(), 8)
        for use in (
            lambda: Buffer.create(device, 8),
            lambda: rig.Image.load(device, k.binary()),
            x.read,
            lambda: x.write(bytes(8)),
            lambda: memoryview(x),
            lambda: x.submit_copy(other),
            lambda: other.submit_copy(x),
            lambda: other.borrow(device),
            lambda: program.bound(program.frame([x])).run(),
        ):
            with pytest.raises(Lost, match=reason):
                use()
        with pytest.raises(Lost, match=f"{device.name}: the device is lost"):
            add_on(device)
        assert all(point.reached for point in points)
        assert device.lost and device not in rig.devices()


@pytest.mark.spec("R-lost", "P-run-lost")
def test_a_run_that_meets_the_loss_names_its_step() -> None:
    with k.memory_devices(2, fail_at=1) as (a, b):
        x = k.buffer(rig.host(), 5)
        lost = k.submit(1, k.launch("addk", k.writes(0), k.reads(0), 1), slots=[k.given(0)])
        host = k.submit(0, k.launch("addk", k.writes(0), k.reads(0), 10), slots=[k.given(0)])
        program = k.load([rig.host(), a], host, lost, host, inputs=[(0, 8)])
        with pytest.raises(Lost, match=r"steps\[2\].*" + a.name) as caught:
            program.run(program.frame([x]))
        assert (caught.value.device, caught.value.step) == (a.name, 2)
        assert not b.lost


@pytest.mark.spec("R-lost")
def test_other_devices_go_on_and_reached_memory_is_ordinary() -> None:
    with k.memory_devices(1, fail_at=2) as (a,), k.memory_devices(1) as (b,):
        reached, unreached = k.buffer(rig.host(), 1), k.buffer(rig.host(), 1)
        on_a, on_b = add_on(a), add_on(b)
        at_a = reached.borrow(a), unreached.borrow(a)
        on_a.run(on_a.frame([at_a[0]]))[0].wait(20)
        with pytest.raises(Lost):
            on_a.run(on_a.frame([at_a[1]]))[0].wait(20)
        assert k.values(reached) == [2]
        k.run(on_b, [reached.borrow(b)])
        assert k.values(reached) == [3]
        reached.write(k.as_bytes(9))
        with pytest.raises(Lost, match=a.name):
            unreached.read()
        with pytest.raises(Lost, match=a.name):
            unreached.write(bytes(8))
        with pytest.raises(Lost, match=a.name):
            on_b.run(on_b.frame([unreached.borrow(b)]))
        host = add_on(rig.host())
        with pytest.raises(Lost, match=a.name):
            host.run(host.frame([unreached]))
        host.run(host.frame([reached]))
        assert k.values(reached) == [10]
        assert not b.lost
        unreached.free()  # and its memory returns


@pytest.mark.spec("R-lost")
def test_work_in_flight_that_waits_for_the_lost_device_fails_and_so_does_what_follows() -> None:
    with k.memory_devices(1, delay=0.2, fail_at=1) as (a,), k.memory_devices(3) as (b, c, free):
        x, on_b, on_c = k.buffer(a, 1), k.buffer(b, 7), k.buffer(c, 7)
        first = x.submit_copy(on_b)  # a's, which fails
        on_c_after = on_b.submit_copy(on_c)  # b's, waits for a
        back = k.buffer(rig.host(), 7)
        last = on_c.submit_copy(back)  # c's, waits for b
        assert [p.device for p in (first, on_c_after, last)] == [a.name, b.name, c.name]
        for point in (last, on_c_after, first):
            with pytest.raises(Lost, match=a.name):
                point.wait(20)
        with pytest.raises(Lost, match=f"{c.name}: submission 1 was not done: {b.name}: submission 1 was not done"):
            _ = last.reached
        for buffer in (back, on_c, on_b):
            with pytest.raises(Lost, match=a.name):
                buffer.read()
        assert not (b.lost or c.lost or free.lost)
        clean = [k.buffer(device, 3) for device in (b, c)]
        clean[0].submit_copy(clean[1]).wait(20)
        assert k.values(clean[1]) == [3]
        program = add_on(free)
        k.run(program, [clean[1].borrow(free)])
        assert k.values(clean[1]) == [4]


@pytest.mark.spec("R-lost")
def test_an_explicit_wait_for_a_lost_point_fails_too() -> None:
    with k.memory_devices(1, delay=0.1, fail_at=1) as (a,), k.memory_devices(1) as (b,):
        on_a, on_b = (k.load([device], k.submit(0, k.launch("nothing"))) for device in (a, b))
        (lost,) = on_a.run(on_a.frame([]))
        (waiting,) = on_b.run(on_b.frame([]), waits=[lost])
        with pytest.raises(Lost, match=f"{b.name}: submission 1 was not done: {a.name}: the device is lost"):
            waiting.wait(20)
        with pytest.raises(Lost, match=a.name):
            on_b.run(on_b.frame([]), waits=[lost])
        host = k.load([rig.host()], k.submit(0, k.launch("nothing")))
        with pytest.raises(Lost, match=a.name):
            host.run(host.frame([]), waits=[lost])


@pytest.mark.spec("R-lost")
@pytest.mark.spec("R-close")
def test_close_loses_a_device_after_its_work() -> None:
    with k.memory_devices(2) as (a, b):
        x, y = k.buffer(rig.host(), 1), k.buffer(a, 1)
        program = add_on(a)
        (point,) = program.run(program.frame([x.borrow(a)]))
        a.close()
        assert point.reached
        assert k.values(x) == [2]
        for use in (y.read, lambda: program.run(program.frame([y])), lambda: y.submit_copy(k.buffer(b, 0))):
            with pytest.raises(Lost, match=f"{a.name}: the device is lost: it was closed"):
                use()
        k.run(add_on(b), [x.borrow(b)])
        assert k.values(x) == [3]
        y.free()
        assert a.memory_in_use == 0


@pytest.mark.spec("R-lost")
def test_close_during_a_wait_wakes_it_and_close_waits_for_the_work() -> None:
    words = k.Words()
    device = rig.memory_device("closed")
    program = k.load([device], k.submit(0, k.launch("gate", words.at(0), words.at(1))))
    (point,) = program.run(program.frame([]))
    waiter, closer = k.Background(point.wait), k.Background(device.close)
    time.sleep(0.02)
    assert not waiter.done and not closer.done
    words[1] = 1
    assert waiter.result()
    closer.result()


@pytest.mark.spec("R-lost")
def test_submitters_and_a_close_at_once() -> None:
    for _ in range(5):
        device = rig.memory_device("closed")
        x = k.buffer(device, 0)

        def submit(device: rig.Device = device, x: Buffer = x) -> int:
            program = add_on(device)
            for done in range(10**9):
                try:
                    (point,) = program.run(program.frame([x]))
                    point.wait(20)
                except Lost as error:
                    assert "it was closed" in str(error)
                    return done
            raise AssertionError("never closed")

        submitters = [k.Background(submit) for _ in range(3)]
        time.sleep(0.01)
        device.close()
        for one in submitters:
            one.result()


@pytest.mark.spec("R-lost")
def test_a_lost_devices_memory_and_programs_go_without_trouble() -> None:
    for fail in (True, False):
        device = rig.memory_device("gone", fail_at=2 if fail else None)
        program, x = add_on(device), k.buffer(device, 1)
        program.run(program.frame([x]))
        if fail:
            lose(device)
        else:
            device.close()
        del x, program
        assert device.lost
        assert device.memory_in_use == 0
        device.close()
