"""Artifacts: what is saved is loaded, every byte is checked, and a file is written whole or not at all."""

from __future__ import annotations

import io
import json
import mmap
import os
import pickle
import random
import stat
import subprocess
import sys
import threading
import zipfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from rig.errors import FormatError, Invalid
from rig.model.artifact import Artifact, Weight, read, save
from rig.model.signature import Signature, Tensor
from rig.program.description import Alloc, Data, Hole, Input, Program, Width

SIGNATURE = Signature((Tensor("x", "float32", (4,), 0),), (Tensor("y", "float32", (4,), 1),), "c", "x86-64-v3", "small")
PROGRAM = Program(
    devices=("x86-64-v3",),
    memory=(Alloc(0, 64), Alloc(0, 3), Alloc(0, 40), Alloc(0, 8, Data(b"constant")), Alloc(0, 0)),
    inputs=(Input(0, 16), Input(0, 16)),
)
FLOATS = bytes(range(40))
WEIGHTS: list[tuple[Weight, Any]] = [
    (Weight("three.bytes", 1, "uint8", (3,)), b"abc"),
    (Weight("floats", 2, "float32", (2, 5)), memoryview(FLOATS)),
    (Weight("empty", 4, "float32", (0, 3)), b""),
]
NAMES = ["signature.json", "program.rig", "weights.safetensors", "manifest.json"]


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def load(source: Any) -> tuple[Program, Signature, dict[int, bytes]]:
    """Do with an artifact what a load does: decode all, and read every weight."""
    found = {}
    with Artifact(source) as artifact:
        for memory, initial in artifact.initial.items():
            data = bytearray(initial.nbytes)
            initial.read_into(memoryview(data))
            found[memory] = bytes(data)
        return artifact.program, artifact.signature, found


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("artifact") / "small.rig"
    save(path, PROGRAM, SIGNATURE, WEIGHTS)
    return path


@pytest.fixture(scope="module")
def whole(path: Path) -> bytes:
    return path.read_bytes()


def test_round_trip(path: Path) -> None:
    program, signature, weights = load(path)
    assert program == PROGRAM
    assert signature == SIGNATURE
    assert weights == {1: b"abc", 2: FLOATS, 4: b""}


def test_without_weights(tmp_path: Path) -> None:
    save(tmp_path / "plain.rig", PROGRAM, SIGNATURE)
    assert load(tmp_path / "plain.rig") == (PROGRAM, SIGNATURE, {})


def test_initial_data_of_weights_is_left_out_of_the_program(tmp_path: Path, whole: bytes) -> None:
    memory = list(PROGRAM.memory)
    memory[1], memory[2] = Alloc(0, 3, Data(b"abc")), Alloc(0, 40, Data(FLOATS))
    full = Program(devices=PROGRAM.devices, memory=tuple(memory), inputs=PROGRAM.inputs)
    save(tmp_path / "full.rig", full, SIGNATURE, WEIGHTS)
    assert (tmp_path / "full.rig").read_bytes() == whole


def test_other_tools_open_it(path: Path) -> None:
    with zipfile.ZipFile(path) as opened:
        assert opened.namelist() == NAMES
        assert opened.testzip() is None
        assert json.loads(opened.read("signature.json"))["inputs"][0]["name"] == "x"
        weights = opened.read("weights.safetensors")
    length = int.from_bytes(weights[:8], "little")
    header = json.loads(weights[8 : 8 + length])
    spans = sorted(item["data_offsets"] for item in header.values())
    assert spans[0][0] == 0 and spans[-1][1] == len(weights) - 8 - length
    assert all(before[1] == after[0] for before, after in pairwise(spans)), "the format allows no gaps"
    begin, end = header["floats"]["data_offsets"]
    assert header["floats"] == {"dtype": "F32", "shape": [2, 5], "data_offsets": [begin, end]}
    assert weights[8 + length + begin : 8 + length + end] == FLOATS


def test_members_and_tensors_are_aligned(whole: bytes) -> None:
    for content in (b'{\n "inputs"', b"\x93RIGPRG", b'{"format":1'):
        assert whole.index(content) % 64 == 0, content
    assert whole.index(FLOATS) % 64 == 0


@pytest.mark.case("C22")
def test_save_load_save_gives_the_same_bytes(tmp_path: Path, whole: bytes) -> None:
    program, signature, weights = load(whole)
    again = [(weight, weights[weight.memory]) for weight, _ in WEIGHTS]
    save(tmp_path / "again.rig", program, signature, again)
    assert (tmp_path / "again.rig").read_bytes() == whole


# Damage.


@pytest.mark.case("C20")
def test_every_flipped_bit_is_noticed(whole: bytes) -> None:
    for at in range(len(whole)):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << at % 8
        with pytest.raises(FormatError) as error:
            load(damaged)
        assert str(error.value), at


@pytest.mark.case("C20")
def test_every_cut_is_noticed(whole: bytes) -> None:
    for size in range(len(whole)):
        with pytest.raises(FormatError, match=r"cut|not a rig artifact"):
            load(whole[:size])


@pytest.mark.case("C20")
@pytest.mark.parametrize("tail", [b"x", b"\0", b"\0" * 64])
def test_trailing_bytes_are_refused(whole: bytes, tail: bytes) -> None:
    with pytest.raises(FormatError, match=f"byte {len(whole) + len(tail)}: .*bytes after its end"):
        load(whole + tail)


def test_two_files_in_one_are_refused(whole: bytes) -> None:
    with pytest.raises(FormatError, match=f"ends at byte {len(whole)}, but it has {2 * len(whole)} bytes"):
        load(whole + whole)


@pytest.mark.parametrize(
    ("content", "where"),
    [(b"abc\0", r"weight 'three.bytes'"), (b"\x93RIGPRG", r"program\.rig"), (b'"inputs"', r"signature\.json")],
)
def test_damage_names_the_place(path: Path, whole: bytes, tmp_path: Path, content: bytes, where: str) -> None:
    damaged = bytearray(whole)
    damaged[damaged.index(content)] ^= 4
    file = tmp_path / "damaged.rig"
    file.write_bytes(damaged)
    with pytest.raises(FormatError, match=rf"damaged\.rig: byte \d+.*{where}.*checksum .* expected") as error:
        load(file)
    assert "damaged.rig: byte" in error.value.where


def test_padding_is_checked_too(whole: bytes) -> None:
    damaged = bytearray(whole)
    damaged[damaged.index(b"abc\0") + 7] = 1
    with pytest.raises(FormatError, match=r"weight 'three.bytes'.*not zero"):
        load(damaged)


def test_members_in_another_order_are_refused(whole: bytes) -> None:
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole)) as opened, zipfile.ZipFile(target, "w") as written:
        written.comment = opened.comment
        for name in reversed(NAMES):
            written.writestr(name, opened.read(name))
    with pytest.raises(FormatError, match=r"the members are manifest\.json, .*must be signature\.json"):
        load(target.getvalue())


def test_a_repacked_zip_is_refused(whole: bytes) -> None:
    target = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(whole)) as opened, zipfile.ZipFile(target, "w") as written:
        written.comment = opened.comment
        for name in NAMES:
            written.writestr(name, opened.read(name))
    with pytest.raises(FormatError, match="directory: by its directory the file ends at byte"):
        load(target.getvalue())


def test_random_damage_never_escapes(whole: bytes) -> None:
    chance = random.Random(1)
    for _ in range(500):
        damaged = bytearray(whole)
        for _ in range(chance.randrange(1, 30)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        if damaged != whole:
            with pytest.raises(FormatError):
                load(damaged)


# What is no artifact.


class Trap:
    """An object whose pickle has a side effect."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("sprung",)


@pytest.mark.case("C22")
def test_what_is_no_artifact(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    other = io.BytesIO()
    with zipfile.ZipFile(other, "w") as written:
        written.writestr("a", "b")
    for data, kind in (
        (b"", "there are no bytes"),
        (b"just words\n", "text"),
        ("größe".encode(), "text"),
        (b"\x89PNG\r\n\x1a\n" + bytes(40), "a PNG image"),
        (pickle.dumps(Trap()), "a pickle"),
        (other.getvalue(), "a zip of another kind"),
        (bytes(100), "unknown data that starts with 00 00 00 00"),
    ):
        file = tmp_path / "other"
        file.write_bytes(data)
        for source in (file, data):
            with pytest.raises(FormatError, match=f"not a rig artifact: .*{kind}"):
                load(source)
    assert not (tmp_path / "sprung").exists()


@pytest.mark.case("C22")
@pytest.mark.parametrize("version", [0, 2])
def test_another_version_names_both(whole: bytes, version: int) -> None:
    other = whole.replace(b"rig artifact format 1 ", b"rig artifact format %d " % version)
    assert other != whole
    with pytest.raises(FormatError, match=f"format {version}, this rig reads format 1: .*compile the model again"):
        load(other)


# Sources.


@pytest.mark.case("C24")
def test_any_bytes(path: Path, whole: bytes) -> None:
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        for source in (
            whole,
            bytearray(whole),
            memoryview(whole),
            memoryview(whole).cast("B", (1, len(whole))),
            mapped,
        ):
            assert load(source)[2] == {1: b"abc", 2: FLOATS, 4: b""}


@pytest.mark.case("C24")
@pytest.mark.parametrize(
    "name",
    ["größe", "漢字", "😀", "a b", 'it\'s "quoted"', "100%", "x" * 200 + "/" + "y" * 120, "line\nbreak", "-dash"],
)
def test_any_path(tmp_path: Path, whole: bytes, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir(parents=True)
    file = folder / f"{name[-100:]}.rig"
    save(file, PROGRAM, SIGNATURE, WEIGHTS)
    assert file.read_bytes() == whole
    assert names(folder) == [file.name]
    for source in (file, str(file)):
        assert load(source)[2][1] == b"abc"


@pytest.mark.case("C24")
def test_a_path_that_is_no_text(tmp_path: Path, whole: bytes) -> None:
    file = os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe.rig")
    save(file, PROGRAM, SIGNATURE, WEIGHTS)
    assert load(file)[2][1] == b"abc"


@pytest.mark.case("C24")
def test_links_and_read_only_folders(tmp_path: Path, whole: bytes) -> None:
    folder = tmp_path / "locked"
    folder.mkdir()
    file = folder / "model.rig"
    file.write_bytes(whole)
    file.chmod(0o444)
    folder.chmod(0o555)
    link = tmp_path / "link.rig"
    link.symlink_to(file)
    try:
        assert load(link)[2][1] == b"abc"
    finally:
        folder.chmod(0o755)


@pytest.mark.case("C24")
def test_a_pipe_is_read_whole(tmp_path: Path, whole: bytes) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(whole,))
    writer.start()
    try:
        assert load(pipe)[2] == {1: b"abc", 2: FLOATS, 4: b""}
    finally:
        writer.join()


def test_endless_data_is_refused_soon() -> None:
    with pytest.raises(FormatError, match=r"/dev/zero: not a rig artifact"):
        load("/dev/zero")


def test_paths_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"missing\.rig"):
        load(tmp_path / "missing.rig")
    with pytest.raises(IsADirectoryError, match=str(tmp_path)):
        load(tmp_path)


@pytest.mark.parametrize("source", [None, 3, ["a"], object()])
def test_what_is_no_source(source: Any) -> None:
    with pytest.raises(Invalid, match=f"from a path or from bytes, not from {type(source).__name__}"):
        load(source)


@pytest.mark.case("C24")
def test_loading_leaves_nothing_behind(tmp_path: Path, path: Path) -> None:
    code = (
        "import sys; sys.path[:0] = eval(sys.argv[2]); from rig.model.artifact import read; "
        "print(read(sys.argv[1])[2].keys())"
    )
    (tmp_path / "tmp").mkdir()
    (tmp_path / "work").mkdir(mode=0o555)
    done = subprocess.run(
        [sys.executable, "-B", "-c", code, str(path), repr(sys.path)],
        cwd=tmp_path / "work", env={"TMPDIR": str(tmp_path / "tmp")},
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "dict_keys([1, 2, 4])\n"), done.stderr
    assert names(tmp_path / "tmp") == []


# Lifetime of the file.


def open_files() -> int:
    return len(names(Path("/proc/self/fd")))


def test_the_file_is_closed(path: Path) -> None:
    before = open_files()
    for _ in range(3):
        load(path)
    assert open_files() == before
    program, _, initial = read(path)
    assert open_files() == before + 1
    assert program == PROGRAM
    data = bytearray(3)
    initial[1].read_into(memoryview(data))
    assert data == b"abc"
    del initial
    assert open_files() == before


def test_a_failing_load_closes_the_file(tmp_path: Path, whole: bytes) -> None:
    file = tmp_path / "damaged.rig"
    file.write_bytes(whole[:-3])
    before = open_files()
    for _ in range(3):
        with pytest.raises(FormatError):
            load(file)
    assert open_files() == before


def test_a_closed_artifact_says_so(path: Path, whole: bytes) -> None:
    for source in (path, whole):
        with Artifact(source) as artifact:
            initial = artifact.initial[1]
        artifact.close()
        with pytest.raises(Invalid, match="the artifact is closed"):
            initial.read_into(memoryview(bytearray(3)))


@pytest.mark.case("C20")
def test_a_file_that_is_replaced_while_it_is_read(tmp_path: Path, whole: bytes) -> None:
    file = tmp_path / "model.rig"
    file.write_bytes(whole)
    with Artifact(file) as artifact:
        file.write_bytes(bytes(len(whole)))
        with pytest.raises(FormatError, match=r"weight 'floats'.*checksum"):
            artifact.initial[2].read_into(memoryview(bytearray(40)))
        file.write_bytes(b"")
        with pytest.raises(FormatError, match=r"model\.rig: "):
            artifact.initial[2].read_into(memoryview(bytearray(40)))


@pytest.mark.case("C35")
def test_progress_is_told_and_may_stop_the_read(path: Path) -> None:
    seen: list[tuple[int, int]] = []
    with Artifact(path, lambda done, total: seen.append((done, total))) as artifact:
        for initial in artifact.initial.values():
            initial.read_into(memoryview(bytearray(initial.nbytes)))
    assert seen == [(3, 43), (43, 43)]

    class Enough(Exception):
        pass

    def stop(done: int, total: int) -> None:
        raise Enough

    with Artifact(path, stop) as artifact, pytest.raises(Enough):
        artifact.initial[2].read_into(memoryview(bytearray(40)))


# Saving.


@pytest.mark.case("C23")
@pytest.mark.parametrize("call", ["pwrite", "fsync", "replace"])
def test_a_failing_save_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    file = tmp_path / "model.rig"
    file.write_bytes(b"the old file")
    calls = 0

    def fail(*args: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == (5 if call == "pwrite" else 1):
            raise OSError(28, "No space left on device")
        return original(*args)

    original = getattr(os, call)
    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="No space left"):
        save(file, PROGRAM, SIGNATURE, WEIGHTS)
    monkeypatch.undo()
    assert names(tmp_path) == ["model.rig"]
    assert file.read_bytes() == b"the old file"


def test_saving_replaces_what_a_link_points_to(tmp_path: Path, whole: bytes) -> None:
    target, link = tmp_path / "target.rig", tmp_path / "link.rig"
    target.write_bytes(b"old")
    link.symlink_to(target)
    save(link, PROGRAM, SIGNATURE, WEIGHTS)
    assert link.is_symlink()
    assert target.read_bytes() == whole


def test_the_mode_follows_the_mask(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        save(tmp_path / "model.rig", PROGRAM, SIGNATURE)
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "model.rig").stat().st_mode) == 0o640


def test_no_place_to_save(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        save(tmp_path / "missing" / "model.rig", PROGRAM, SIGNATURE)
    with pytest.raises(IsADirectoryError):
        save(tmp_path, PROGRAM, SIGNATURE)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(Invalid, match="regular file"):
        save(tmp_path / "pipe", PROGRAM, SIGNATURE)
    assert names(tmp_path) == ["pipe"]


HOLED = Data(bytes(8), (Hole(0, Width.W64, (), 1),))


@pytest.mark.parametrize(
    ("weight", "data", "message"),
    [
        (Weight("w", 5, "uint8", (3,)), b"abc", r"weight 'w': memory\[5\] is not there; the program has 5"),
        (Weight("w", 1, "uint8", (4,)), b"abcd", r"weight 'w': memory\[1\]: it has 3 bytes, the weight 4"),
        (Weight("w", 1, "uint8", (4,)), b"abc", r"weight 'w': 3 bytes, but uint8 of shape \(4,\) has 4"),
        (Weight("w", 3, "uint8", (4,)), b"abcd", r"memory\[3\]: it has 8 bytes, the weight 4"),
        (Weight(".pad.1", 1, "uint8", (3,)), b"abc", "the name is not allowed"),
        (Weight("__metadata__", 1, "uint8", (3,)), b"abc", "the name is not allowed"),
        (Weight("floats", 1, "uint8", (3,)), b"abc", "the name is there twice"),
        (Weight("w", 2, "float32", (10,)), FLOATS, r"memory\[2\] is filled by another weight"),
        (Weight("w", 1, "uint8", (3,)), memoryview(b"a-b-c-")[::2], "its bytes must be contiguous"),
        (Weight("w", 1, "text", (3,)), b"abc", "'text' is no element type"),
    ],
)
def test_weights_that_do_not_fit(tmp_path: Path, weight: Weight, data: Any, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        save(tmp_path / "model.rig", PROGRAM, SIGNATURE, [WEIGHTS[1], (weight, data)])
    assert names(tmp_path) == []


def test_a_weight_with_holes_is_refused(tmp_path: Path) -> None:
    program = Program(devices=PROGRAM.devices, memory=(Alloc(0, 8, HOLED),), inputs=PROGRAM.inputs)
    with pytest.raises(Invalid, match=r"weight 'w': memory\[0\]: it has initial data already"):
        save(tmp_path / "model.rig", program, SIGNATURE, [(Weight("w", 0, "uint8", (8,)), bytes(8))])


def test_a_signature_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match=r"inputs\[1\] of the program"):
        save(tmp_path / "model.rig", PROGRAM, Signature(SIGNATURE.inputs, ()))
    assert names(tmp_path) == []
