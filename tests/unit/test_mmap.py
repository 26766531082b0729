"""Weights used where they lie in a mapped file."""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Any

import made
import numpy as np
import pytest

import rig
from rig.errors import FormatError, Invalid, Refused
from rig.model import Weight
from rig.program.description import Fixed, InputSlot, Loop, Move
from rig.program.uses import written

WEIGHT = np.arange(1, 5001, dtype="float32")
ONES = np.ones(5000, "float32")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made.times_weight(WEIGHT.tobytes(), b"abc").save(tmp_path / "model.rig")
    return tmp_path / "model.rig"


def mappings(path: Path) -> list[str]:
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(str(path))]


def handle_count() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def remembering() -> made.Made:
    """Each run gives the weight and then writes it: it is state."""
    kind = ("float32", (4,))
    parts = (made.copy(0, 2, 16), made.copy(1, 0, 16))
    return made.Made(
        {"x": kind}, {"y": kind}, made.step(*parts, slots=(made.memory(0, 16), 0, 1)),
        weights=((Weight("state", 0, "float32", (4,)), np.ones(4, "float32").tobytes()),),
    )  # fmt: skip


def test_a_mapped_model_gives_the_same(path: Path) -> None:
    model = rig.open(path, mmap=True)
    assert mappings(path)
    assert all(" r--p " in line for line in mappings(path))
    assert np.array_equal(model(ONES), WEIGHT)
    result = np.zeros(5000, "float32")
    model.bind({"x": ONES * 2}, {"y": result}).run()
    assert np.array_equal(result, WEIGHT * 2)


def test_the_mapping_goes_with_the_model(path: Path) -> None:
    handles = handle_count()
    model = rig.open(path, mmap=True)
    assert mappings(path)
    del model
    gc.collect()
    assert mappings(path) == []
    assert handle_count() == handles


def test_the_name_may_go_and_be_replaced(path: Path) -> None:
    model = rig.open(path, mmap=True)
    made.times_weight((WEIGHT * 3).tobytes(), b"abc").save(path)  # another file of that name
    assert np.array_equal(model(ONES), WEIGHT)
    path.unlink()
    assert np.array_equal(model(ONES), WEIGHT)


def test_without_mmap_nothing_is_mapped(path: Path) -> None:
    model = rig.open(path)
    assert mappings(path) == []
    assert np.array_equal(model(ONES), WEIGHT)


def test_a_changed_byte_is_noticed_unless_told_otherwise(path: Path) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(WEIGHT.tobytes()) + 3] ^= 0x80
    path.write_bytes(damaged)
    with pytest.raises(FormatError, match=r"weight 'floats'\): the checksum is"):
        rig.open(path, mmap=True)
    gc.collect()
    assert mappings(path) == []
    assert rig.open(path, mmap=True, verify=False)(ONES)[0] == -1
    damaged[damaged.index(b"\x7fELF") + 3] ^= 1  # what is no weight is always checked
    path.write_bytes(damaged)
    with pytest.raises(FormatError, match="file is damaged"):
        rig.open(path, mmap=True, verify=False)


def test_a_weight_that_is_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "state.rig"
    remembering().save(path)
    whole = path.read_bytes()
    model = rig.open(path, mmap=True)
    assert mappings(path) == []
    assert model(np.full(4, 7, "float32")).tolist() == [1] * 4
    assert model(np.full(4, 9, "float32")).tolist() == [7] * 4
    assert path.read_bytes() == whole


def test_what_a_run_writes() -> None:
    program = made.times_weight(WEIGHT.tobytes()).program
    assert written(program) == set()
    assert written(remembering().program) == {0}
    slot = made.memory(1, 4)
    move = Move(InputSlot(0), (), slot, (), 4)
    loop = made.Made({}, {}, move, weights=()).program  # type: ignore[arg-type]
    looped = type(program)(("x",), (), (), (), 0, (Loop(Fixed(2), (Loop(Fixed(1), loop.steps),)),))  # type: ignore[arg-type]
    assert written(looped) == {1}


def test_progress_counts_mapped_bytes(path: Path) -> None:
    seen: list[tuple[int, int]] = []
    rig.open(path, mmap=True, progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (20003, 20003)
    assert sorted(seen) == seen


@pytest.mark.parametrize("kind", ["bytes", "pipe", "folder", "device"])
def test_what_cannot_be_mapped(path: Path, tmp_path: Path, kind: str) -> None:
    sources: dict[str, Any] = {
        "bytes": path.read_bytes(),
        "pipe": tmp_path / "pipe",
        "folder": tmp_path,
        "device": "/dev/zero",
    }
    os.mkfifo(tmp_path / "pipe")
    said = "give its path, not bytes" if kind == "bytes" else f"maps a regular file, and this is a {kind}"
    with pytest.raises(Refused, match=said):
        rig.open(sources[kind], mmap=True)


def test_another_device_and_an_empty_file(path: Path, tmp_path: Path) -> None:
    with pytest.raises(Refused, match=r"gives mapped memory to the host, but device 0 is far \(memory\)"):
        rig.open(path, mmap=True, device=rig.memory_device("far"))
    (tmp_path / "empty").touch()
    with pytest.raises(FormatError, match="there are no bytes"):
        rig.open(tmp_path / "empty", mmap=True)
    with pytest.raises(Invalid, match="verify=False is for mmap=True"):
        rig.open(path, verify=False)
