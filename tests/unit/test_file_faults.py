"""Files as devices where something goes wrong: files that change, closing, forks, handles that stay."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

import rig
from rig import Buffer, Lost, Refused
from tests.unit import kernels as k
from tests.unit import processes
from tests.unit.files import MIB, handles_open, images, noise, on_every_other, opened
from tests.unit.test_fork import FORK

pytestmark = pytest.mark.spec("R-device-io")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data"


# What goes wrong.


def test_a_file_that_became_shorter(path: Path) -> None:
    path.write_bytes(noise(4 * MIB))
    flags = k.Words()
    with rig.file_device(path, "r+") as file, k.memory_devices(1) as (device,):
        hold = k.load([device], k.submit(0, k.launch("gate", flags.at(0), flags.at(1))))
        (gate,) = hold.run(hold.frame([]))
        into, good = Buffer.create(rig.host(), 4 * MIB), Buffer.create(device, 100)
        point = Buffer.file(file).submit_copy(into, waits=[gate])
        os.truncate(path, 3 * MIB - 5)
        flags[1] = 1
        why = "data: submission 1 was not done: reading .* the file became shorter, it ends before that"
        for use in (
            lambda: point.wait(60),
            into.read,
            lambda: memoryview(into),
            lambda: into.view(0, 100).submit_copy(good),
        ):
            with pytest.raises(Lost, match=why) as caught:
                use()
        assert caught.value.device == file.name
        with pytest.raises(Refused, match=r"data: reading .* the file became shorter, it ends before that"):
            Buffer.file(file, 2 * MIB).read()
        # What is there is read on, by a device that is not lost.
        assert Buffer.file(file, MIB, 100).submit_copy(good).wait(60) and not file.lost
        assert bytes(good.read()) == path.read_bytes()[MIB : MIB + 100]


def test_a_write_does_not_make_a_file_longer_that_became_shorter(path: Path) -> None:
    with rig.file_device(path, "w+", nbytes=4 * MIB) as file:
        os.truncate(path, MIB)
        with pytest.raises(Refused, match=rf"writing .* the file became shorter, it ends at byte {MIB}"):
            Buffer.file(file, 2 * MIB, 8).write(bytes(8))
        with pytest.raises(Refused, match=r"writing .* the file became shorter"):
            Buffer.file(file, MIB - 1, 2).write(b"xy")
        assert path.read_bytes() == bytes(MIB)
        source = Buffer.create(rig.host(), 2 * MIB)
        source.write(b"x" * (2 * MIB))
        with pytest.raises(Lost, match=f"submission 1 was not done: writing .* it ends at byte {MIB}"):
            source.submit_copy(Buffer.file(file, 512, 2 * MIB)).wait(60)
        assert path.stat().st_size == MIB
        for use in (lambda: Buffer.file(file, 0, 8).read(), lambda: Buffer.file(file, 0, 8).write(bytes(8))):
            with pytest.raises(Lost, match="submission 1 was not done"):  # nobody knows what it holds
                use()
        assert bytes(source.read(bytearray(2 * MIB))) == b"x" * (2 * MIB)
    with rig.file_device(path) as file:
        assert Buffer.file(file).nbytes == MIB


@on_every_other
def test_a_file_that_shrinks_and_grows_all_the_time(path: Path, other: str) -> None:
    """A copy gives what a read of the file gives, or an error; the process lives.

    Beside a truncation read(2) may give zeros on some file systems, never anything else.
    """
    data, before = b"\xaa" * (3 * MIB), b"\x55" * (3 * MIB)
    path.write_bytes(data)
    over = threading.Event()

    def shrink() -> None:
        while not over.is_set():
            os.truncate(path, MIB // 2)
            path.write_bytes(data)

    with rig.file_device(path) as file, opened(other) as device:
        call = k.Background(shrink)
        failed = 0
        for _ in range(60):
            there = Buffer.create(device, 3 * MIB)
            there.write(before)
            try:
                Buffer.file(file).submit_copy(there).wait(60)
                assert set(bytes(there.read())) | {0} == {0, 0xAA}
            except (Lost, Refused) as error:
                assert "the file became shorter" in str(error)
                failed += 1
        over.set()
        call.result()
        path.write_bytes(data)
        there = Buffer.create(device, 3 * MIB)
        assert Buffer.file(file).submit_copy(there).wait(60) and bytes(there.read()) == data
    assert failed


@on_every_other
def test_a_program_whose_file_became_shorter(path: Path, other: str) -> None:
    path.write_bytes(bytes(64))
    with rig.file_device(path) as file, opened(other) as device:
        steps = (
            k.move(k.given(0), k.memory(0, 64), 64),
            k.submit(0, k.launch("addk", k.writes(0), k.writes(0), 1), slots=[k.memory(0, 64)]),
            k.move(k.memory(0, 64), k.given(1), 64),
        )
        loaded = k.load([device, file], *steps, memory=[k.alloc(0, 64)], inputs=[(1, 64), (0, 64)], images=images())
        out = k.buffer(device, *[0] * 8)
        k.run(loaded, [Buffer.file(file), out])
        assert k.values(out) == [1, *[0] * 7]
        os.truncate(path, 8)
        with pytest.raises((Lost, Refused), match="the file became shorter"):
            k.run(loaded, [Buffer.file(file), out])
        # The last move was not made: the failure was known before it was asked for, or later, and then it failed too.
        try:
            assert k.values(out) == [1, *[0] * 7]
        except Lost as error:
            assert "the file became shorter" in str(error)


def test_a_file_that_takes_no_more(path: Path) -> None:
    processes.check(f"""
import resource
file = rig.file_device({str(path)!r}, "w+", nbytes=1 << 20)
resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
try: rig.Buffer.file(file).write(bytes(1 << 20))
except rig.Refused as error: assert "from byte 4096: File too large" in str(error), error
else: raise AssertionError("written")
try: rig.Buffer.create(file, 1)
except rig.OutOfMemory as error: assert "the file cannot grow to 1052672 bytes: File too large" in str(error), error
else: raise AssertionError("made")
source = rig.Buffer.create(rig.host(), 1 << 20)
point = source.submit_copy(rig.Buffer.file(file))
for use in (lambda: point.wait(20), rig.Buffer.file(file).read):
    try: use()
    except rig.Lost as error: assert "from byte 4096: File too large" in str(error), error
    else: raise AssertionError("written")
""")


def test_a_closed_file(path: Path) -> None:
    flags = k.Words()
    path.write_bytes(noise(MIB))
    with k.memory_devices(1) as (device,):
        hold = k.load([device], k.submit(0, k.launch("gate", flags.at(0), flags.at(1))))
        (gate,) = hold.run(hold.frame([]))
        file = rig.file_device(path)
        ours, into = Buffer.file(file), Buffer.create(rig.host(), MIB)
        point = ours.submit_copy(into, waits=[gate])
        closing = k.Background(file.close)
        closing._thread.join(0.02)
        assert not closing.done  # after its work
        flags[1] = 1
        closing.result()
        file.close()
        assert point.reached and bytes(into.read()) == path.read_bytes()
        for use in (
            ours.read,
            lambda: ours.submit_copy(into),
            lambda: Buffer.file(file),
            lambda: Buffer.create(file, 1),
        ):
            with pytest.raises(Lost, match="data: the device is lost: it was closed"):
                use()
    with rig.file_device(path) as again:
        assert again != file and bytes(Buffer.file(again).read()) == path.read_bytes()


@pytest.mark.spec("R-close")
@pytest.mark.parametrize("kind", ["memory", "file"])
def test_closing_does_not_wait_for_those_who_go_on_submitting(path: Path, kind: str) -> None:
    device = rig.memory_device("busy") if kind == "memory" else rig.file_device(path, "w+", nbytes=MIB)
    ours = Buffer.create(device, MIB)

    def submit() -> int:
        into, done = Buffer.create(rig.host(), MIB), 0
        with pytest.raises(Lost, match="the device is lost: it was closed"):
            while True:
                ours.submit_copy(into)
                done += 1
        return done

    calls = [k.Background(submit) for _ in range(2)]
    while device.submitted < 10:
        pass
    k.Background(device.close).result(20)
    assert device.submitted - sum(call.result() for call in calls) in range(3)  # one of each may have come too late


def test_files_leave_no_handle_thread_or_memory(path: Path) -> None:
    path.write_bytes(noise(5000))
    into = Buffer.create(rig.host(), 5000)

    def use() -> None:
        with rig.file_device(path, "r+") as file:
            Buffer.file(file).submit_copy(into)
            Buffer.create(file, 100).write(bytes(100))

    use()
    handles, threads = handles_open(), k.threads_alive()
    for _ in range(200):
        use()
    assert handles_open() == handles
    assert k.threads_alive() <= threads
    kept = [rig.file_device(path) for _ in range(50)]
    buffers = [Buffer.file(file) for file in kept]
    for file in kept:
        file.close()
    assert handles_open() == handles  # though buffers name the files
    assert all(buffer.device.lost for buffer in buffers)
    assert path.stat().st_size == 5000


@pytest.mark.spec("R-fork")
def test_a_file_in_a_forks_child(path: Path) -> None:
    """It is lost there, and a child that drops or closes it leaves the file and the parent's device alone."""
    processes.check(
        FORK
        + f"""
import gc
path = {str(path)!r}
file = rig.file_device(path, "w+", nbytes=100)
kept, whole = rig.Buffer.create(file, 8), rig.Buffer.file(file)
kept.write(b"12345678")
into = rig.Buffer.create(rig.host(), 8)
def handles():
    return sum(os.path.realpath("/proc/self/fd/" + fd) == path for fd in os.listdir("/proc/self/fd"))
def use():
    for work in (whole.read, lambda: kept.submit_copy(into), lambda: rig.Buffer.create(file, 1)):
        refused(file, work)
    with rig.file_device(path) as anew: assert bytes(rig.Buffer.file(anew, 4096, 8).read()) == b"12345678"
def close():
    global file, kept, whole, into
    file.close()
    assert handles() == 0, handles()  # also if the parent's thread was letting go of a submission at the fork
    del kept, whole, file, into
    gc.collect()
    rig.devices()
    assert handles() == 0, handles()
def drop():
    global kept
    kept.free()
    del kept
    gc.collect()
os.sched_setaffinity(0, {{min(os.sched_getaffinity(0))}})  # so that it was, now and then
for work in (use, *[close] * 8, drop):
    for leave in (os._exit, sys.exit):
        child(work, leave=leave)
        assert os.path.getsize(path) == 8192, work
        assert bytes(kept.read()) == b"12345678", work
        assert kept.submit_copy(into).wait(20) and bytes(into.read()) == b"12345678"
assert handles() == 1
print("good")
""",
        "good\n",
    )


@pytest.mark.big
def test_a_file_larger_than_memory_may_be(path: Path) -> None:
    """Six GiB of a sparse file pass through a window on a memory device, which adds them up, in one run."""
    processes.check(
        f"""
import resource
path = {str(path)!r}
GIB, WINDOW = 1 << 30, 64 << 20
nbytes = 6 * GIB + WINDOW
file = rig.file_device(path, "w+", nbytes=nbytes)
for at, value in ((0, 1), (4 * GIB - 8, 2), (4 * GIB, 3), (nbytes - 8, 4)):
    rig.Buffer.file(file, at, 8).write(value.to_bytes(8, "little"))
device = rig.memory_device("m")
window, sums, out = (d.MemorySlot(d.View(i, 0, WINDOW)) for i in range(3))
refs = (d.Ref(0, 0, d.Use.WRITE), d.Ref(1, 8, d.Use.READ))
add = d.Submit(0, (call("muladd", 0, 0, 1, refs=refs, n=WINDOW // 8),), (sums, window))
body = (d.Move(d.InputSlot(0), (d.Term(d.Int(0), WINDOW),), window, (), WINDOW), add)
steps = (d.Loop(d.Fixed(nbytes // WINDOW), body, 0), d.Move(sums, (), out, (), WINDOW))
memory = (d.Alloc(0, WINDOW), d.Alloc(0, WINDOW), d.Alloc(1, WINDOW))
images = (d.Image(0, d.Data(LIBRARY)),)
p = d.Program((device.arch, ""), memory, images, (d.Input(1, nbytes),), 1, steps)
p = load(p, [device, file])
for point in run(p, [rig.Buffer.file(file)]): assert point.wait(100)
assert os.path.getsize(path) == nbytes + WINDOW
with open(path, "rb") as copy:
    copy.seek(nbytes)
    found = memoryview(copy.read()).cast("Q")
assert (found[0], found[-1], sum(found)) == (4, 6, 10), (found[0], found[-1], sum(found))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert peak < 500 << 10, peak
""",
        seconds=110,
    )
