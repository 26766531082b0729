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

pytestmark = pytest.mark.case("C20")
WEIGHT = np.arange(1, 300, dtype="float32")
ONES = np.ones(299, "float32")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("c20") / "model.rig"
    made.times_weight(WEIGHT.tobytes(), b"abc").save(path)
    return path.read_bytes()


def refused(path: Path, data: bytes | bytearray) -> None:
    path.write_bytes(data)
    start = time.monotonic()
    with pytest.raises(FormatError, match=r"model\.rig: "):
        rig.open(path)
    assert time.monotonic() - start < 1


def test_cuts(tmp_path: Path, whole: bytes) -> None:
    borders = [0, 1, len(whole) - 1]
    for mark in (b"PK\3\4", b"PK\1\2", b"PK\5\6", b"\x93RIGPRG", WEIGHT.tobytes(), b'{"format":1', b"\x7fELF"):
        at = whole.index(mark)
        borders += [max(at - 1, 0), at, at + 1]
    chance = random.Random(1)
    for size in borders + [chance.randrange(len(whole)) for _ in range(200)]:
        refused(tmp_path / "model.rig", whole[:size])


def test_flipped_bits(tmp_path: Path, whole: bytes) -> None:
    chance = random.Random(2)
    for _ in range(1000):
        damaged = bytearray(whole)
        damaged[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        refused(tmp_path / "model.rig", damaged)


def test_flips_in_weights_and_in_code_are_noticed(tmp_path: Path, whole: bytes) -> None:
    for mark, where in ((WEIGHT.tobytes(), "weight 'floats'"), (b"\x7fELF", r"program\.rig")):
        damaged = bytearray(whole)
        damaged[damaged.index(mark) + 100] ^= 1
        with pytest.raises(FormatError, match=where):
            rig.open(damaged)


def test_trailing_bytes(tmp_path: Path, whole: bytes) -> None:
    refused(tmp_path / "model.rig", whole + b"\0")


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
