"""Memory that cannot be made: the error, what it says, and that memory returns."""

from __future__ import annotations

import gc
import time

import pytest

import rig
from rig import Buffer, Invalid, OutOfMemory
from tests.unit import kernels as k


@pytest.mark.spec("R-oom")
def test_the_error_says_which_device_and_how_much() -> None:
    with k.memory_devices(1, nbytes=1000) as (device,):
        kept = Buffer.create(device, 900)
        with pytest.raises(OutOfMemory) as caught:
            Buffer.create(device, 101)
        error = caught.value
        assert (error.device, error.nbytes) == (device.name, 101)
        assert isinstance(error, MemoryError) and isinstance(error, rig.Error)
        assert str(error) == f"{device.name}: out of memory: 101 bytes asked for, the device has 1000"
        assert device.memory_in_use == 900
        more = Buffer.create(device, 100)
        del kept, more
        assert device.memory_in_use == 0
        assert Buffer.create(device, 1000).live


@pytest.mark.spec("R-oom")
@k.on_each
def test_a_budget_limits_what_is_in_use(kind: str) -> None:
    with k.opened(kind) as device:
        assert device.budget is None
        held = device.memory_in_use
        try:
            device.set_budget(held + 1000)
            assert device.budget == held + 1000
            first = Buffer.create(device, 600)
            with pytest.raises(OutOfMemory, match=f"{device.name}: out of memory: 401 bytes asked for") as caught:
                Buffer.create(device, 401)
            assert (caught.value.device, caught.value.nbytes) == (device.name, 401)
            assert f"{held + 600} of {held + 1000} in use" in str(caught.value)
            second = Buffer.create(device, 400)
            device.set_budget(held + 10)  # what is in use stays
            assert first.live and second.live
            with pytest.raises(OutOfMemory):
                Buffer.create(device, 1)
            first.free()
            second.free()
            Buffer.create(device, 10)
            device.set_budget(0)
            with pytest.raises(OutOfMemory):
                Buffer.create(device, 1)
        finally:
            device.set_budget(None)
        Buffer.create(device, 4000)
        with pytest.raises(TypeError):
            device.set_budget(-1)


@pytest.mark.spec("R-oom")
def test_memory_that_is_unreachable_comes_back_before_the_error() -> None:
    with k.memory_devices(1, nbytes=1000) as (device,):
        source = Buffer.create(rig.host(), 1000)
        for _ in range(20):
            there = Buffer.create(device, 1000)
            point = source.submit_copy(there)
            del there
            assert point.wait(20)
            time.sleep(0.002)  # the queue lets go of it a moment after the point


@pytest.mark.spec("R-oom")
def test_more_than_the_machine_has() -> None:
    before = rig.host().memory_in_use
    for nbytes in (2**60, 2**63 - 1):
        with pytest.raises(OutOfMemory, match="host: out of memory: the system gives no") as caught:
            Buffer.create(rig.host(), nbytes)
        assert (caught.value.device, caught.value.nbytes) == ("host", nbytes)
    with k.memory_devices(1) as (device,), pytest.raises(OutOfMemory, match=f"{device.name}: out of memory"):
        Buffer.create(device, 2**60)
    assert rig.host().memory_in_use == before
    with pytest.raises((TypeError, Invalid)):
        Buffer.create(rig.host(), 2**64)


@pytest.mark.spec("R-oom")
def test_a_load_that_does_not_fit_gives_all_back_and_fits_later() -> None:
    with k.memory_devices(1, nbytes=1000) as (device,):
        step = k.submit(0, k.launch("addk", k.writes(0), k.reads(0), 1), slots=[k.memory(1, 8)])
        program = k.program([device], step, memory=[k.alloc(0, 600), k.alloc(0, 300, two=True)])
        for _ in range(3):
            with pytest.raises(OutOfMemory) as caught:
                rig.program.load(program, [device])
            assert (caught.value.device, caught.value.nbytes) == (device.name, 300)
            del caught
            gc.collect()
            assert device.memory_in_use == 0
        fits = k.program([device], step, memory=[k.alloc(0, 400), k.alloc(0, 300, two=True)])
        loaded = rig.program.load(fits, [device])
        assert device.memory_in_use == 1000
        k.run(loaded)
        del loaded
        gc.collect()
        end = time.monotonic() + 20
        while device.memory_in_use and time.monotonic() < end:
            time.sleep(0.001)
        assert device.memory_in_use == 0


@pytest.mark.spec("R-oom")
def test_an_error_leaves_what_runs_alone() -> None:
    with k.memory_devices(1, nbytes=100) as (device,):
        x = k.buffer(device, 5)
        step = k.submit(0, k.launch("addk", k.writes(0), k.reads(0), 1), slots=[k.given(0)])
        loaded = k.load([device], step, inputs=[(0, 8)])
        for _ in range(5):
            with pytest.raises(OutOfMemory):
                Buffer.create(device, 1000)
            k.run(loaded, [x])
        assert k.values(x) == [10]
        assert not device.lost
