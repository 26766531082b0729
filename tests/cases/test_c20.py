"""C20: a cut or damaged file is an error that says where, and a loaded model does not need its file."""

from __future__ import annotations

import random
import time
from pathlib import Path

import made
import numpy as np
import pytest

import rig
from rig.errors import FormatError
from rig.model import Artifact

pytestmark = pytest.mark.case("C20")
WEIGHT = np.arange(1, 300, dtype="float32")
ONES = np.ones(299, "float32")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("c20") / "model.rig"
    made.times_weight(WEIGHT.tobytes(), b"abc").save(path)
    return path.read_bytes()


def borders(whole: bytes) -> list[int]:
    """Return where each header, member, weight and the directory begin and end."""
    found = [0, 1, len(whole) - 1]
    with Artifact(whole) as artifact:
        for member in artifact.members:
            found += [member.start, member.offset, member.offset + member.nbytes]
        for initial in artifact.initial.values():
            data = bytearray(initial.nbytes)
            initial.read_into(memoryview(data))
            at = whole.index(bytes(data), artifact.members[2].offset + 100)
            found += [at, at + initial.nbytes // 2, at + initial.nbytes]
        program = artifact.members[1]
        body = int.from_bytes(whole[program.offset + 24 : program.offset + 32], "little")
        found += [program.offset + 64, program.offset + 64 + body, program.offset + 64 + (body + 63) // 64 * 64]
    for mark in (b"PK\1\2", b"PK\5\6", b"\x7fELF"):
        found.append(whole.rindex(mark))
    return sorted({at + around for at in found for around in (-1, 0, 1) if 0 <= at + around < len(whole)})


def refused(path: Path, data: bytes | bytearray) -> None:
    path.write_bytes(data)
    start = time.monotonic()
    with pytest.raises(FormatError, match=r"model\.rig: "):
        rig.open(path)
    assert time.monotonic() - start < 1


def test_cuts(tmp_path: Path, whole: bytes) -> None:
    chance = random.Random(1)
    places = borders(whole)
    assert len(places) > 50
    for size in places + [chance.randrange(len(whole)) for _ in range(200)]:
        refused(tmp_path / "model.rig", whole[:size])


def test_bytes_that_are_missing_or_there_twice_at_a_border(tmp_path: Path, whole: bytes) -> None:
    for at in borders(whole):
        refused(tmp_path / "model.rig", whole[:at] + whole[at + 1 :])
        refused(tmp_path / "model.rig", whole[:at] + whole[at : at + 1] + whole[at:])
        if 64 <= at <= len(whole) - 64:
            refused(tmp_path / "model.rig", whole[:at] + whole[at + 64 :])
            refused(tmp_path / "model.rig", whole[:at] + bytes(64) + whole[at:])


def test_flipped_bits(tmp_path: Path, whole: bytes) -> None:
    chance = random.Random(2)
    for _ in range(1000):
        damaged = bytearray(whole)
        damaged[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        with pytest.raises(FormatError):
            rig.open(damaged)
    for at in borders(whole):
        damaged = bytearray(whole)
        damaged[at] ^= 1 << chance.randrange(8)
        refused(tmp_path / "model.rig", damaged)


def test_flips_in_a_program_of_many_parts(whole: bytes) -> None:
    """Of a compiled file too, whose code is another kind of image: golden, so that no compiler is needed."""
    golden = (Path(__file__).parents[1] / "compat" / "golden" / "artifact-v1-notes.bin").read_bytes()
    for at in range(len(golden)):
        damaged = bytearray(golden)
        damaged[at] ^= 1 << at % 8
        with pytest.raises(FormatError):
            rig.open(damaged)
        with pytest.raises(FormatError):
            rig.open(golden[:at])


def test_flips_in_weights_and_in_code_are_noticed(tmp_path: Path, whole: bytes) -> None:
    for mark, where in ((WEIGHT.tobytes(), "weight 'floats'"), (b"\x7fELF", r"program\.rig")):
        damaged = bytearray(whole)
        damaged[damaged.index(mark) + 100] ^= 1
        with pytest.raises(FormatError, match=where):
            rig.open(damaged)


@pytest.mark.parametrize("more", [b"\0", b"\n", bytes(64), b"PK\5\6" + bytes(18), bytes(100_000)])
def test_trailing_and_leading_bytes(tmp_path: Path, whole: bytes, more: bytes) -> None:
    refused(tmp_path / "model.rig", whole + more)
    refused(tmp_path / "model.rig", more + whole)


def test_a_file_twice_and_two_files_mixed(tmp_path: Path, whole: bytes) -> None:
    refused(tmp_path / "model.rig", whole + whole)
    made.times_weight((WEIGHT * 2).tobytes(), b"abc").save(tmp_path / "other.rig")
    other = (tmp_path / "other.rig").read_bytes()
    assert len(other) == len(whole)
    for at in borders(whole):
        mixed = whole[:at] + other[at:]
        if mixed not in (whole, other):
            refused(tmp_path / "model.rig", mixed)


def test_the_file_may_go_once_the_model_is_loaded(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "model.rig"
    path.write_bytes(whole)
    model = rig.open(path)
    with path.open("r+b") as file:
        file.truncate(0)
        file.write(bytes(len(whole)))
    assert np.array_equal(model(ONES), WEIGHT)
    path.unlink()
    assert np.array_equal(model(ONES), WEIGHT)


def test_a_model_of_bytes_does_not_need_them(whole: bytes) -> None:
    memory = bytearray(whole)
    model = rig.open(memory)
    memory[:] = bytes(len(memory))
    assert np.array_equal(model(ONES), WEIGHT)


def test_a_failed_load_leaves_nothing(tmp_path: Path, whole: bytes) -> None:
    damaged = bytearray(whole)
    damaged[damaged.index(WEIGHT.tobytes()) + 100] ^= 1
    path = tmp_path / "model.rig"
    path.write_bytes(damaged)
    handles = len(list(Path("/proc/self/fd").iterdir()))
    before = rig.host().memory_in_use
    for _ in range(20):
        with pytest.raises(FormatError):
            rig.open(path)
    assert len(list(Path("/proc/self/fd").iterdir())) == handles
    assert rig.host().memory_in_use == before
