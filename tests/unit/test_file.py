"""Files as devices: memory in a file, moved to and from other memory in order, and what a file that changes does."""

from __future__ import annotations

import os
import random
import threading
from pathlib import Path
from typing import Any

import pytest

import rig
from rig import Buffer, Claim, Invalid, Lost, OutOfMemory, Refused
from rig.program import description as d
from tests.unit import kernels as k
from tests.unit import processes
from tests.unit.test_fork import FORK

pytestmark = pytest.mark.spec("R-device-io")

MIB = 1 << 20
SIZES = [0, 1, 7, 4095, 4097, MIB - 1, 3 * MIB + 5]
OTHERS: dict[str, dict[str, Any] | None] = {
    "host": None,
    "memory": {},
    "memory without borrow": {"borrows": False},
    "memory without copy": {"copies": False},
    "memory with neither": {"borrows": False, "copies": False},
}
on_every_other = pytest.mark.parametrize("other", OTHERS)


def opened(other: str) -> Any:
    options = OTHERS[other]
    return k.opened("host") if options is None else k.opened("memory", **options)


def handles_open() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


def noise(nbytes: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(nbytes)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data"


def test_a_file_says_what_it_is(path: Path) -> None:
    path.write_bytes(b"0123456789")
    with rig.file_device(path) as file:
        assert (file.name, file.kind, file.arch, file.instruction_set) == (str(path), "file", "", "")
        assert (file.runs_on_host, file.borrows, file.copies, file.cores, file.cache_bytes) == (
            False,
            True,
            True,
            0,
            None,
        )
        assert file.host == rig.host() and file in rig.devices() and repr(file) == f"<rig.Device {path}, file>"
        whole, piece = Buffer.file(file), Buffer.file(file, 2, 3)
        assert (whole.nbytes, piece.nbytes, Buffer.file(file, 4).nbytes, whole.writable) == (10, 3, 6, False)
        assert bytes(whole.read()) == b"0123456789"
        assert bytes(piece.read()) == bytes(whole.view(2, 3).read()) == b"234"
        assert bytes(Buffer.file(file, 10).read()) == b""
        with pytest.raises(Refused, match="its memory has no address"):
            _ = whole.address
        with pytest.raises(Refused, match="the host does not address its memory"):
            memoryview(whole)
        with pytest.raises(Refused, match=r"cannot borrow memory of .*data, which the host does not address"):
            whole.borrow(rig.host())
    assert file.lost and file not in rig.devices()


@pytest.mark.parametrize(
    ("offset", "nbytes", "message"),
    [
        (-1, 1, "offset is -1, allowed is 0 to the file's 10 bytes"),
        (11, None, "offset is 11, allowed is 0 to the file's 10 bytes"),
        (8, 3, "3 bytes at offset 8 is not within the buffer's 10 bytes"),
        (8, -1, "-1 bytes at offset 8 is not within"),
    ],
)
def test_bytes_outside_the_file(path: Path, offset: int, nbytes: int | None, message: str) -> None:
    path.write_bytes(bytes(10))
    with rig.file_device(path) as file, pytest.raises(Invalid, match=message):
        Buffer.file(file, offset, nbytes)


def test_a_device_that_is_no_file() -> None:
    with pytest.raises(Invalid, match="host is no file, it is a device of kind host"):
        Buffer.file(rig.host())


@pytest.mark.parametrize("nbytes", SIZES)
def test_read_and_write_at_odd_offsets(path: Path, nbytes: int) -> None:
    data = noise(nbytes)
    with rig.file_device(path, "w+", nbytes=nbytes + 20) as file:
        piece = Buffer.file(file, 13, nbytes)
        assert bytes(piece.read()) == bytes(nbytes)
        piece.write(data)
        assert bytes(piece.read()) == data
        assert path.read_bytes() == bytes(13) + data + bytes(7)


@on_every_other
@pytest.mark.parametrize("nbytes", SIZES)
def test_copies_both_ways(path: Path, other: str, nbytes: int) -> None:
    data = noise(nbytes + 20)
    path.write_bytes(data)
    with rig.file_device(path, "r+") as file, opened(other) as device:
        there = Buffer.create(device, nbytes + 8)
        straight = device.borrows
        point = Buffer.file(file, 13, nbytes).submit_copy(there.view(5, nbytes))
        assert point.device == (str(path) if straight else "host")  # who reaches both makes it
        assert bytes(there.read()) == bytes(5) + data[13 : 13 + nbytes] + bytes(3)
        changed = noise(nbytes, 1)
        there.view(3, nbytes).write(changed)
        point = there.view(3, nbytes).submit_copy(Buffer.file(file, 11, nbytes))
        assert point.device == (str(path) if straight else "host")
        assert point.wait(60)
        assert path.read_bytes() == data[:11] + changed + data[11 + nbytes :]


@pytest.mark.parametrize("nbytes", SIZES)
def test_copies_within_a_file_and_between_files(path: Path, nbytes: int) -> None:
    data = noise(nbytes)
    path.write_bytes(data + bytes(nbytes + 3))
    with rig.file_device(path, "r+") as one, rig.file_device(f"{path}2", "w+", nbytes=nbytes + 1) as two:
        point = Buffer.file(one, 0, nbytes).submit_copy(Buffer.file(one, nbytes + 3, nbytes))
        assert point.device == one.name and point.wait(60)
        assert path.read_bytes() == data + bytes(3) + data
        Buffer.file(one, nbytes + 3, nbytes).submit_copy(Buffer.file(two, 1, nbytes))
        assert Path(f"{path}2").read_bytes() == bytes(1) + data
        if nbytes:
            with pytest.raises(Invalid, match="the copy's ends overlap"):
                Buffer.file(one, 0, nbytes).submit_copy(Buffer.file(one, nbytes - 1, nbytes))


def test_read_only_memory_is_never_written(path: Path) -> None:
    path.write_bytes(bytes(64))
    with rig.file_device(path) as file, k.memory_devices(1) as (device,):
        ours, there = Buffer.file(file), k.buffer(device, *range(8))
        assert ours.access == rig.Access.READ
        with pytest.raises(Invalid, match="the buffer is read-only memory"):
            ours.write(bytes(64))
        with pytest.raises(Invalid, match="the copy's destination is read-only memory"):
            there.submit_copy(ours)
        with pytest.raises(Refused, match="data: it is open for reading only, no memory is made in it"):
            Buffer.create(file, 8)
        step = k.submit(0, k.launch("bump", k.writes(0)), slots=[k.given(1)])
        steps = (step, k.move(k.given(1), k.given(0), 8))
        images = (d.Image(0, d.Data(k.binary())),)
        loaded = k.load([device, file], *steps, inputs=[(1, 64), (0, 64)], images=images)
        with pytest.raises(Invalid, match="input 0 is read-only memory, the program writes it"):
            loaded.run(loaded.frame([ours, there]))
        assert k.values(there) == list(range(8))  # nothing was done
        assert file.submitted == 0
    assert path.read_bytes() == bytes(64)


def test_modes_and_sizes(path: Path) -> None:
    path.write_bytes(b"12345")
    with rig.file_device(path, "r+") as file:
        Buffer.file(file, 1, 2).write(b"xx")
    assert path.read_bytes() == b"1xx45"
    with rig.file_device(os.fsencode(path), "w+") as file:
        assert Buffer.file(file).nbytes == 0 and path.read_bytes() == b""
    with rig.file_device(str(path), "w+", nbytes=3) as file:
        assert bytes(Buffer.file(file).read()) == bytes(3)
    for mode in ("w", "a", "", None):
        with pytest.raises(Invalid, match=r"mode is .*, allowed are 'r', 'r\+' and 'w\+'"):
            rig.file_device(path, mode)  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="nbytes is 3 in mode 'r', the size of a file that exists is its own"):
        rig.file_device(path, nbytes=3)
    for nbytes in (-1, 2**62, 1.0, True):
        with pytest.raises(Invalid, match=f"nbytes is {nbytes}, allowed is a number of bytes from 0"):
            rig.file_device(path, "w+", nbytes=nbytes)  # type: ignore[arg-type]
    assert path.read_bytes() == bytes(3)  # a call that is refused leaves the file alone


def test_what_the_system_refuses_names_the_path(path: Path) -> None:
    handles = handles_open()
    for mode in ("r", "r+"):
        with pytest.raises(FileNotFoundError, match=r"No such file or directory: '.*data'"):
            rig.file_device(path, mode)
    for mode in ("r", "r+", "w+"):
        with pytest.raises(IsADirectoryError, match=f"Is a directory: '{path.parent}'"):
            rig.file_device(path.parent, mode)
    os.mkfifo(path)  # opening it does not wait for its other end
    for mode in ("r", "r+"):
        with pytest.raises(Refused, match="data: it is no regular file"):
            rig.file_device(path, mode)
    with pytest.raises(OSError, match=r"File too large: '.*big'"):
        rig.file_device(path.with_name("big"), "w+", nbytes=2**61)
    assert handles_open() == handles


def test_a_file_without_permission(path: Path) -> None:
    path.write_bytes(b"1")
    path.chmod(0)
    processes.check(f"""
rig.file_device  # imported while it may be
path = {str(path)!r}
if os.geteuid() == 0: os.seteuid(65534)
for mode in ("r", "r+", "w+"):
    try: rig.file_device(path, mode)
    except PermissionError as error: assert error.filename == path, error
    else: raise AssertionError(mode)
""")


def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff"
    with rig.file_device(path, "w+", nbytes=1) as file:
        assert file.name.endswith("/\N{REPLACEMENT CHARACTER}")
        Buffer.file(file).write(b"x")
    assert Path(os.fsdecode(path)).read_bytes() == b"x"


# Order.


def test_a_copy_to_a_file_follows_the_work_that_makes_the_bytes(path: Path) -> None:
    flags = k.Words()
    with rig.file_device(path, "w+", nbytes=16) as file, k.memory_devices(1) as (device,):
        made, back = k.buffer(device, 1), k.buffer(rig.host(), 0)
        step = k.submit(0, k.launch("gated_store", flags.at(0), flags.at(1), k.writes(0), 6), slots=[k.given(0)])
        gated = k.load([device], step, inputs=[(0, 8)])
        gated.run(gated.frame([made]))
        there = made.submit_copy(Buffer.file(file, 8))
        again = Buffer.file(file, 8).submit_copy(back)
        assert (there.device, there.value, again.value) == (file.name, 1, 2)
        assert flags.wait(0) and not there.wait(0.02) and not again.reached
        read = k.Background(lambda: bytes(Buffer.file(file, 8).read()))
        written = k.Background(lambda: made.write(k.as_bytes(9)))  # follows the copy that reads it
        assert not there.wait(0.02) and not read.done and not written.done
        flags[1] = 1
        assert read.result() == k.as_bytes(6)
        assert k.values(back) == [6]
        written.result()
        assert k.values(made) == [9]
        assert path.read_bytes() == k.as_bytes(0, 6)


def test_a_kernel_follows_the_copy_that_reads_a_file(path: Path) -> None:
    flags = k.Words()
    path.write_bytes(k.as_bytes(5) + bytes(8 * MIB))
    with rig.file_device(path) as file, k.memory_devices(2) as (one, two):
        x, big = k.buffer(one, 0), Buffer.create(rig.host(), 8 * MIB)
        hold = k.load([two], k.submit(0, k.launch("gate", flags.at(0), flags.at(1))))
        (gate,) = hold.run(hold.frame([]))
        add = k.load(
            [one], k.submit(0, k.launch("addk", k.writes(0), k.writes(0), 7), slots=[k.given(0)]), inputs=[(0, 8)]
        )
        Buffer.file(file, 8).submit_copy(big, waits=[gate])  # holds the file's queue
        Buffer.file(file, 0, 8).submit_copy(x)
        (end,) = add.run(add.frame([x]))
        assert not end.wait(0.02)
        flags[1] = 1
        assert k.values(x) == [12]


@pytest.mark.parametrize("borrows", [True, False])
def test_many_threads_copy_both_ways(path: Path, borrows: bool) -> None:
    """Each its own rows of one file; a row that was written is read as it was written."""
    rows, nbytes = 8, 100_001
    with rig.file_device(path, "w+", nbytes=rows * nbytes) as file, k.memory_devices(1, borrows=borrows) as (device,):

        def work(row: int) -> None:
            ours = Buffer.file(file, row * nbytes, nbytes)
            there, back = Buffer.create(device if row % 2 else rig.host(), nbytes), Buffer.create(rig.host(), nbytes)
            for turn in range(12):
                data = noise(nbytes, 100 * row + turn)
                there.write(data)
                there.submit_copy(ours)
                ours.submit_copy(back)
                assert bytes(back.read()) == data

        for call in [k.Background(work, row) for row in range(rows)]:
            call.result()
        assert path.read_bytes() == b"".join(noise(nbytes, 100 * row + 11) for row in range(rows))


# Programs.


def images() -> tuple[d.Image, ...]:
    return (d.Image(0, d.Data(k.binary())),)


@on_every_other
def test_a_program_moves_from_a_file_through_a_kernel_and_back(path: Path, other: str) -> None:
    with rig.file_device(path, "w+", nbytes=8 * 12) as file, opened(other) as device:
        Buffer.file(file).write(k.as_bytes(*range(12)))
        body = (
            k.move(k.given(0), k.memory(0, 16), 16, src_offset=((d.Int(0), 16),)),
            k.submit(0, k.launch("addk", k.writes(0), k.writes(0), 100, n=2), slots=[k.memory(0, 16)]),
            k.move(k.memory(0, 16), k.memory(1, 48), 16, dst_offset=((d.Int(0), 16),)),
        )
        steps = (k.loop(3, *body, trip=0), k.move(k.memory(1, 48), k.given(0), 48, dst_offset=48))
        memory = [k.alloc(0, 16), k.alloc(1, 48, k.as_bytes(1), two=True)]
        loaded = k.load([device, file], *steps, memory=memory, inputs=[(1, 96)], ints=1, images=images())
        assert file.memory_in_use == 2 * 48  # both copies lie in the file
        for turn in (1, 2):
            ends = k.run(loaded, [Buffer.file(file)])
            assert file.name in {end.device for end in ends} or not device.borrows
            assert k.values(Buffer.file(file)) == [*range(6), *(v + 100 for v in range(6))]
            Buffer.file(file, 48).write(k.as_bytes(*[turn] * 6))
        del loaded
        assert k.in_use(file) == 0
        assert path.stat().st_size == 96


def test_copies_are_parts_of_submissions_and_nothing_else_is(path: Path) -> None:
    with rig.file_device(path, "w+", nbytes=32) as file:
        x = k.buffer(rig.host(), 7)
        steps = (
            k.submit(0, k.copy(0, 1, 8, dst_offset=8), slots=[k.given(1), k.given(0)]),
            k.submit(0, k.copy(0, 1, 8, src_offset=8), slots=[k.given(0), k.memory(0, 8)]),
            k.move(k.memory(0, 8), k.given(0), 8, dst_offset=24),
        )
        loaded = k.load([file, rig.host()], *steps, memory=[k.alloc(0, 8)], inputs=[(0, 32), (1, 8)], images=())
        (end,) = k.run(loaded, [Buffer.file(file), x])
        assert (end.device, end.value) == (file.name, 3)
        assert path.read_bytes()[:32] == k.as_bytes(0, 7, 0, 7)
        with pytest.raises(Refused, match="data: a file runs nothing, it only copies"):
            rig.Image.load(file, k.binary())
        with pytest.raises(Refused, match="data: a file runs nothing, it only copies"):
            k.load([file], images=images())
        with pytest.raises(Invalid, match=r"devices\[0\]: the code is for .*, but .*data runs no code"):
            rig.program.load(k.program([rig.host()]), [file])
        with pytest.raises(Refused, match="fill"):
            fill = k.submit(0, k.fill(d.Entry(0, "nothing"), 1))
            k.load([file, rig.host()], fill, images=(d.Image(1, d.Data(k.binary())),))


# Memory made in a file.


def test_memory_is_made_behind_the_file_and_given_back(path: Path) -> None:
    path.write_bytes(b"12345")
    with rig.file_device(path, "r+") as file:
        first, second, third = (Buffer.create(file, n) for n in (5000, 0, 1))
        assert path.stat().st_size == 4096 * 5 and file.memory_in_use == 5001
        assert all(b.aligned(4096) for b in (first, second, third))
        first.write(b"x" * 5000)
        third.write(b"y")
        assert path.read_bytes()[:5] == bytes(Buffer.file(file).read()) == b"12345"
        first.free()
        again = Buffer.create(file, 8192)  # where the first was, zero again
        assert bytes(again.read()) == bytes(8192) and path.stat().st_size == 4096 * 5
        assert bytes(third.read()) == b"y"
        third.free()
        assert path.stat().st_size == 4096 * 4
        again.free()
        second.free()
        assert path.read_bytes() == b"12345"
        last = Buffer.create(file, 1)
        assert path.stat().st_size == 8192
    assert path.read_bytes() == b"12345"  # closing takes it back
    with pytest.raises(Lost, match="data: the device is lost: it was closed"):
        last.read()


def test_what_others_append_is_neither_used_nor_cut_off(path: Path) -> None:
    path.write_bytes(b"12345")
    with rig.file_device(path, "r+") as file:
        first = Buffer.create(file, 1)
        with path.open("ab") as out:
            out.write(b"theirs")
        second = Buffer.create(file, 1)
        second.write(b"2")
        first.free()
        third = Buffer.create(file, 5000)
        third.write(b"3" * 5000)
        assert bytes(second.read()) == b"2"
        assert path.read_bytes()[8192 : 8192 + 6] == b"theirs"
        second.free()
        third.free()
    assert path.read_bytes()[8192 : 8192 + 6] == b"theirs" and path.stat().st_size == 12288


def test_memory_in_a_file_has_a_budget_and_a_bound(path: Path) -> None:
    with rig.file_device(path, "w+") as file:
        file.set_budget(100)
        kept = Buffer.create(file, 100)
        with pytest.raises(OutOfMemory, match="out of memory: 1 bytes asked for, 100 of 100 in use"):
            Buffer.create(file, 1)
        kept.free()
        file.set_budget(None)
        for nbytes in (2**60, 2**63 - 1):
            with pytest.raises(
                OutOfMemory, match=f"data: out of memory: {nbytes} bytes asked for, the file cannot grow"
            ):
                Buffer.create(file, nbytes)
        assert path.stat().st_size == 0 and k.in_use(file) == 0


def test_claims_on_a_file(path: Path) -> None:
    with rig.file_device(path, "w+", nbytes=8) as file:
        with Claim.hold(Buffer.file(file)):
            pass
        with pytest.raises(Invalid, match="memory that something outside rig reaches is never exclusive"):
            Claim.exclusive(Buffer.file(file))
        with Claim.exclusive(Buffer.create(file, 8)) as claim:
            assert claim.consume("it was given away").live
        Buffer.file(file).free()
        with pytest.raises(Invalid, match="the buffer is dead: it was freed"):
            Buffer.file(file, 0, 4).read()


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
    """A copy gives what the file held, or an error; the process lives."""
    data = b"\xaa" * (3 * MIB)
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
            try:
                Buffer.file(file).submit_copy(there).wait(60)
                assert set(bytes(there.read())) == {0xAA}
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
        if device.copies and device.borrows and device.kind == "memory":  # it fails when the end is waited for
            with pytest.raises(Lost, match="the file became shorter"):
                out.read()
        else:
            assert k.values(out) == [1, *[0] * 7]


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
    del kept, whole, file, into
    gc.collect()
    rig.devices()
    assert handles() == 0, handles()
def drop():
    global kept
    kept.free()
    del kept
    gc.collect()
for work in (use, close, drop):
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
