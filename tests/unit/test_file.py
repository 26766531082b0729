"""Files as devices: memory in a file, moved to and from other memory in order, and what a file that changes does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import rig
from rig import Buffer, Claim, Invalid, Lost, OutOfMemory, Refused
from rig.program import description as d
from tests.unit import kernels as k
from tests.unit import processes
from tests.unit.files import MIB, handles_open, images, noise, on_every_other, opened

pytestmark = pytest.mark.spec("R-device-io")

SIZES = [0, 1, 7, 4095, 4097, MIB - 1, 3 * MIB + 5]


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
