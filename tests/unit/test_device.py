"""The host and memory devices: what they say of themselves, and what a memory device's options do."""

from __future__ import annotations

import os
import platform
import time
from pathlib import Path
from typing import Any

import pytest

import rig
from rig import Invalid, OutOfMemory, Refused
from tests.unit import kernels as k
from tests.unit import processes

INSTRUCTION_SETS = {"x86_64": "x86_64", "aarch64": "arm64"}

# What each level of x86-64 adds, as the system names it.
LEVELS = (
    ("x86-64-v2", ("cx16", "lahf_lm", "popcnt", "sse4_1", "sse4_2", "ssse3")),
    ("x86-64-v3", ("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave")),
    ("x86-64-v4", ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")),
)


def cpu_flags() -> set[str]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("flags"):
            return set(line.split(":")[1].split())
    return set()


def file_number(path: Path) -> int:
    text = path.read_text().strip()
    return int(text.rstrip("KM")) * {"K": 2**10, "M": 2**20}.get(text[-1], 1)


@pytest.mark.spec("R-device-host")
def test_host_says_what_this_machine_is() -> None:
    host = rig.host()
    assert (host.name, host.kind) == ("host", "host")
    assert host.instruction_set == INSTRUCTION_SETS[platform.machine()]
    assert host.runs_on_host and host.borrows and host.copies
    assert host.host == host == rig.host()
    assert hash(host) == hash(rig.host())
    assert not host.lost
    assert host.arch in repr(host)
    if platform.machine() != "x86_64":
        assert host.arch.startswith("arm64")
        return
    expected = "x86-64-v1"
    for level, needed in LEVELS:
        if not cpu_flags().issuperset(needed):
            break
        expected = level
    assert host.arch == expected


@pytest.mark.spec("R-device-host")
def test_host_cache_is_the_largest_that_the_system_states() -> None:
    sizes = [file_number(path) for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")]
    assert rig.host().cache_bytes == (max(sizes) if sizes else None)


@pytest.mark.spec("R-device-host")
def test_host_memory_starts_on_its_alignment() -> None:
    host = rig.host()
    assert host.alignment == 64
    for nbytes in (0, 1, 63, 64, 65, 4096, 65535):
        assert rig.Buffer.create(host, nbytes).aligned(64)
    for nbytes in (65536, 65537, 1 << 20, (2 << 20) + 1, 5 << 20):
        assert rig.Buffer.create(host, nbytes).aligned(4096)


@pytest.mark.spec("R-device-host")
def test_host_cores_and_threads_by_affinity_and_environment() -> None:
    assert 1 <= rig.host().cores <= len(os.sched_getaffinity(0))
    one = "os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    say = "print(rig.host().cores, rig.host().threads)"
    processes.check(one + say, "1 1\n")
    processes.check("print(rig.host().threads)", "3\n", RIG_THREADS="3")
    processes.check("print(rig.host(threads=2).threads, rig.host().threads)", "2 2\n", RIG_THREADS="3")
    for wrong in ("0", "-1", "4097", "many", "2x", ""):
        processes.check("print(rig.host().threads == rig.host().cores)", "True\n", RIG_THREADS=wrong)


@pytest.mark.spec("R-device-host")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the levels are those of x86-64")
def test_host_of_a_lower_level_can_be_tried() -> None:
    processes.check("print(rig.host().arch)", "x86-64-v1\n", RIG_ARCH="x86-64-v1")
    processes.check("print(rig.host().arch)", f"{rig.host().arch}\n", RIG_ARCH="x86-64-v9")


@pytest.mark.spec("R-device-host")
@pytest.mark.parametrize("threads", [0, 4097])
def test_host_refuses_a_number_of_threads_out_of_range(threads: int) -> None:
    before = rig.host().threads
    with pytest.raises(Invalid, match=f"threads is {threads}, allowed is 1 to 4096"):
        rig.host(threads=threads)
    assert rig.host().threads == before


@pytest.mark.spec("R-device-memory")
def test_memory_device_says_what_it_is() -> None:
    host = rig.host()
    with k.memory_devices(2) as (a, b):
        assert a.kind == "memory"
        assert a.name in repr(a)
        assert (a.arch, a.instruction_set, a.runs_on_host) == (host.arch, host.instruction_set, True)
        assert a.host == host
        assert a != b and a != host and len({a, b, host, rig.host()}) == 3
        assert set(rig.devices()) >= {host, a, b}
        assert rig.devices()[0] == host
    assert a.lost and a not in rig.devices()


@pytest.mark.spec("R-device-memory")
def test_memory_device_has_memory_of_its_own() -> None:
    with k.memory_devices(1) as (device,):
        host_before = rig.host().memory_in_use
        buffer = rig.Buffer.create(device, 1000)
        assert device.memory_in_use == 1000
        assert rig.host().memory_in_use == host_before
        assert buffer.device == device
        assert bytes(buffer.read()) == bytes(1000)
        del buffer
        assert device.memory_in_use == 0


@pytest.mark.spec("R-device-memory")
def test_memory_device_works_behind_its_callers_back() -> None:
    words = k.Words()
    with k.memory_devices(1) as (device,):
        x = k.buffer(device, 5)
        gated = k.load([device], k.submit(0, k.launch("gate", words.at(0), words.at(1))))
        add = k.load(
            [device],
            k.submit(0, k.launch("addk", k.writes(0), k.reads(0), 7), slots=[k.given(0)]),
            inputs=[(0, 8)],
        )
        (first,) = gated.run(gated.frame([]))
        (second,) = add.run(add.frame([x]))  # returns though the device is held up
        assert (first.value, second.value) == (1, 2)
        assert not first.reached and not second.reached
        assert words.wait(0)  # the first is at work, on another thread
        own = k.load([rig.host()], k.submit(0, k.launch("nothing")))
        k.run(own)  # the host goes on meanwhile
        words[1] = 1
        assert k.values(x) == [12]  # in order, and read after both
        assert first.reached and second.reached


@pytest.mark.spec("R-device-memory")
@pytest.mark.parametrize("alignment", [1, 2, 8, 64, 256, 4096])
def test_memory_starts_on_the_alignment_and_on_no_greater_one(alignment: int) -> None:
    with k.memory_devices(1, alignment=alignment) as (device,):
        assert device.alignment == alignment
        for nbytes in (0, 1, 64, 1000, 65536, 100_000, 3 << 20):
            buffer = rig.Buffer.create(device, nbytes)
            assert buffer.aligned(alignment)
            assert not buffer.aligned(2 * alignment)
            data = os.urandom(nbytes)
            buffer.write(data)
            assert bytes(buffer.read()) == data


@pytest.mark.spec("R-device-memory", "R-oom")
def test_memory_device_of_limited_memory() -> None:
    with k.memory_devices(1, nbytes=1000) as (device,):
        kept = rig.Buffer.create(device, 1000)
        with pytest.raises(OutOfMemory, match="1 bytes asked for, the device has 1000"):
            rig.Buffer.create(device, 1)
        del kept
        rig.Buffer.create(device, 1000)


@pytest.mark.spec("R-device-memory")
def test_memory_device_with_a_delay() -> None:
    with k.memory_devices(1, delay=0.1) as (device,):
        nothing = k.load([device], k.submit(0, k.launch("nothing")))
        began = time.monotonic()
        (point,) = nothing.run(nothing.frame([]))
        assert time.monotonic() - began < 0.09
        assert not point.wait(0.01)
        assert point.wait(20)
        assert time.monotonic() - began >= 0.1


@pytest.mark.spec("R-device-memory")
def test_memory_device_that_copies_nothing() -> None:
    with k.memory_devices(1, copies=False) as (device,):
        assert not device.copies
        copy = k.submit(0, k.copy(0, 1, 8), slots=[k.given(0), k.given(1)])
        with pytest.raises(Refused, match=f"{device.name} makes no copies"):
            k.load([device], copy, inputs=[(0, 8), (0, 8)])
        a, b = k.buffer(device, 3), k.buffer(device, 0)
        point = a.submit_copy(b)
        assert point.device == "host" and point.reached  # the host made it
        assert k.values(b) == [3]


@pytest.mark.spec("R-device-memory")
def test_memory_device_that_borrows_nothing() -> None:
    with k.memory_devices(2, borrows=False) as (device, other):
        assert not device.borrows
        own, there = k.buffer(device, 3), k.buffer(other, 0)
        with pytest.raises(Refused, match="the host does not address its memory"):
            memoryview(own)
        with pytest.raises(Refused, match=f"{device.name}: it borrows no memory of other devices, here of host"):
            rig.Buffer.create(rig.host(), 8).borrow(device)
        with pytest.raises(Refused, match="which the host does not address"):
            own.borrow(rig.host())
        assert k.values(own) == [3]
        assert own.submit_copy(there).device == "host"  # staged
        assert k.values(there) == [3]
        step = k.submit(0, k.launch("addk", k.writes(0), k.reads(1), 1), slots=[k.given(0), k.given(1)])
        add = k.load([device, rig.host()], step, inputs=[(0, 8), (1, 8)])
        with pytest.raises(Invalid, match="input 1 cannot be borrowed: " + device.name):
            add.run(add.frame([own, k.buffer(rig.host(), 1)]))


@pytest.mark.spec("R-device-memory")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alignment": 0}, "alignment is 0, allowed is a power of two up to 4096"),
        ({"alignment": 24}, "alignment is 24, allowed is a power of two up to 4096"),
        ({"alignment": 8192}, "alignment is 8192, allowed is a power of two up to 4096"),
        ({"delay": -1.0}, "delay is -1.0.* s, allowed is 0 to 3600"),
        ({"delay": float("nan")}, "delay is nan s, allowed is 0 to 3600"),
        ({"delay": 3600.0}, "delay is 3600.0.* s, allowed is 0 to 3600"),
        ({"fail_at": 0}, "fail_at is 0, submissions are numbered from 1"),
    ],
)
def test_memory_device_refuses_options_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        rig.memory_device("wrong", **options)


@pytest.mark.spec("R-device-memory")
@pytest.mark.parametrize("name", ["", 3, None])
def test_memory_device_needs_a_name(name: Any) -> None:
    with pytest.raises(Invalid, match="takes a string that is not empty"):
        rig.memory_device(name)


@pytest.mark.spec("R-device-memory")
def test_closing_ends_a_device_after_its_work_and_the_host_never() -> None:
    words = k.Words()
    device = rig.memory_device("closing", delay=0.05)
    bump = k.load([device], k.submit(0, k.launch("bump", words.at(0))))
    points = [bump.run(bump.frame([]))[0] for _ in range(3)]
    device.close()
    device.close()
    assert words[0] == 3
    assert all(point.reached for point in points)
    with pytest.raises(rig.Lost, match="closing: the device is lost: it was closed") as caught:
        rig.Buffer.create(device, 8)
    assert caught.value.device == "closing"
    with pytest.raises(Invalid, match="host: this process's host cannot be closed"):
        rig.host().close()
    again = rig.memory_device("closing")  # another device of the same name
    assert again != device and not again.lost
    again.close()
