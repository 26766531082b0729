"""Leaves: addresses as the device's work sees them, entries of images, and handles, which no device here has."""

from __future__ import annotations

import gc

import pytest
from kernels import (
    Hollow,
    Words,
    alloc,
    binary,
    buffer,
    fill,
    given,
    hole,
    launch,
    load,
    loop,
    memory,
    memory_devices,
    on_each,
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
from rig.errors import Invalid, Refused
from rig.program import description as d


@pytest.mark.spec("P-leaf-address", "P-value-leaf", "P-copies-alternate")
@on_each
def test_address_is_that_of_the_copy_the_run_uses(kind: str) -> None:
    with opened(kind) as device:
        out = buffer(device, count=2)
        step = submit(
            0,
            launch("addk", d.Address(0, 0), d.Address(0, 0), 1, n=2),
            launch("copy_words", writes(0), d.Address(0, 0)),
            launch("dump", writes(0, 8), 1, d.Address(0, 0)),
            slots=(given(0),),
            fixed=[memory(0, 16)],
        )
        loaded = load([device], step, memory=[alloc(0, 16, two=True)], inputs=[(0, 16)])
        seen = []
        for _ in range(4):
            run(loaded, [out])
            seen.append(tuple(values(out)))
    counts, addresses = zip(*seen, strict=True)
    assert counts == (1, 1, 2, 2)
    assert addresses[0] == addresses[2] != addresses[1] == addresses[3]
    assert all(address % 64 == 0 for address in addresses)


@pytest.mark.spec("P-leaf-address", "P-part-borrow")
@pytest.mark.parametrize("owner", [0, 1, 2])
def test_address_is_what_the_step_s_device_sees(owner: int) -> None:
    """Memory of one device, reached through its address by work of each device."""
    with memory_devices(2) as (one, two):
        devices = [rig.host(), one, two]
        out = buffer(rig.host(), count=3)
        steps = [
            submit(
                i,
                launch("addk", d.Address(0, i), d.Address(0, i), 10 + i),
                launch("copy_words", writes(0, 8 * i), d.Address(0, i)),
                slots=(given(0),),
                fixed=[memory(0, 8)],
            )
            for i in range(3)
        ]
        run(load(devices, *steps, memory=[alloc(owner, 8)], inputs=[(0, 24)]), [out])
        assert values(out) == [10, 21, 33]


@pytest.mark.spec("P-leaf-address", "P-load-refused")
def test_address_on_device_that_does_not_borrow_is_refused() -> None:
    with memory_devices(1, borrows=False) as (device,):
        step = submit(1, launch("copy_words", d.Address(1, 1), d.Address(0, 1)), fixed=[memory(0, 64), memory(1, 64)])
        with pytest.raises(Refused) as caught:
            load([rig.host(), device], step, memory=[alloc(0, 64), alloc(1, 64)])
        assert str(caught.value).startswith("steps[0]: ")
        assert f"{device.name}: it borrows no memory of other devices, here of host" in str(caught.value)
        assert device.memory_in_use == 0


@pytest.mark.spec("P-leaf-entry", "P-part-fill", "P-value-leaf")
@on_host_code
def test_entry_is_what_code_calls_a_function_by(kind: str) -> None:
    with opened(kind) as device:
        out = buffer(device, 5, 7, count=3)
        step = submit(
            0,
            launch("call", d.Entry(0, "add"), writes(0, 16), reads(0), reads(0, 8)),
            fill(d.Entry(0, "bump"), writes(0)),
            slots=(given(0),),
        )
        run(load([device], step, inputs=[(0, 24)]), [out])
        assert values(out) == [6, 7, 12]


@pytest.mark.spec("P-leaf-entry", "P-mem-alloc", "P-hole-load")
@on_each
def test_entries_stand_in_inits(kind: str) -> None:
    """A table of functions in memory, which work calls through."""
    table = d.Data(
        bytes(16),
        (
            d.Hole(0, d.Width.W64, (d.Term(d.Entry(0, "bump"), 1),)),
            d.Hole(8, d.Width.W64, (d.Term(d.Entry(0, "store"), 1),)),
        ),
    )
    with opened(kind) as device:
        out = buffer(device, count=2)
        step = submit(
            0,
            launch("copy_words", writes(0), reads(1)),
            launch("dump", writes(0, 8), 1, d.Entry(0, "store")),
            slots=(given(0), memory(0, 8, 8)),
        )
        run(load([device], step, memory=[alloc(0, 64, table)], inputs=[(0, 16)]), [out])
        first, second = values(out)
        assert first == second != 0


@pytest.mark.spec("P-leaf-entry", "P-mem-return")
def test_image_lives_until_the_work_of_its_runs_is_done() -> None:
    """The program is dropped while its code runs: the code is still there, and goes afterwards."""
    flags = Words()
    with memory_devices(1) as (device,):
        out = buffer(device, count=1)
        loaded = load(
            [device],
            submit(0, launch("gate", flags.at(0), flags.at(1))),
            submit(0, launch("store", writes(0), 77), slots=(given(0),)),
            images=[d.Image(0, d.Data(binary()))],
            memory=[alloc(0, 1 << 20)],
            inputs=[(0, 8)],
        )
        libraries = _libraries()
        ends = loaded.run(loaded.frame([out]))
        assert flags.wait(0)
        del loaded
        gc.collect()
        assert _libraries() == libraries
        flags[1] = 1
        wait_all(ends)
        assert values(out) == [77]
        device.close()  # the device's thread lets go of the work before it ends
        assert _libraries() < libraries


def _libraries() -> int:
    """Count the mappings of images that are loaded."""
    with open("/proc/self/maps") as maps:
        return sum("rig-image" in line and "r-x" in line for line in maps)


@pytest.mark.spec("P-leaf-handle", "P-load-refused", "P-load-atomic")
@on_each
def test_handle_is_refused(kind: str) -> None:
    """No device here names memory by an object: at its place in an init, in parameters, in geometry and in trips."""
    with opened(kind) as device:
        before = device.memory_in_use
        whole = memory(0, 64)
        init = d.Data(bytes(64), (d.Hole(8, d.Width.W64, (d.Term(d.Handle(0), 1),)),))
        fixed_step = submit(0, launch("nothing", Hollow((hole(d.Handle(0)),))), fixed=[whole])
        geometry = submit(0, launch("nothing", n=d.Handle(0)), fixed=[whole])
        for place, given_steps, data in (
            ("memory[0].init", (submit(0, launch("nothing"), fixed=[whole]),), init),
            ("steps[0].parts[0]", (fixed_step,), b""),
            ("steps[1].parts[0]", (submit(0), geometry), b""),
            ("steps[0].trips", (loop(d.Handle(0), flag=(whole, 0)),), b""),
        ):
            with pytest.raises(Refused) as caught:
                load([device], *given_steps, memory=[alloc(0, 64, data)])
            assert str(caught.value).startswith(place), caught.value
            assert "handles" in str(caught.value)
            assert device.memory_in_use == before
        with pytest.raises(Refused, match=rf"^{device.name}: its memory has no handle"):
            _ = buffer(device, 1).handle


@pytest.mark.spec("P-leaf-ready", "P-rail-missing")
def test_ready_of_a_rail_that_is_not_given() -> None:
    with pytest.raises(Invalid, match=r"^steps\[0\]\.parts\[0\]\.fill.*rail 3 has no end on this machine"):
        load([rig.host()], submit(0, fill(d.Ready(3), 0, 1)))
