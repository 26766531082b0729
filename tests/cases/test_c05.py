"""C05: memory that starts anywhere gives the right result or an error with the remainder, never a crash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import made
import numpy as np
import pytest

from rig.errors import Invalid
from rig.model import Model

pytestmark = pytest.mark.case("C05")
STARTS = (0, 1, 2, 4, 8, 12, 16, 32)
MANY = 262_208


def at(array: np.ndarray, start: int) -> np.ndarray:
    """Copy an array to `start` bytes past a multiple of 64."""
    room = np.zeros(array.nbytes + 64 + start, "uint8")
    base = -room.__array_interface__["data"][0] % 64 + start
    moved = room[base : base + array.nbytes].view(array.dtype)
    moved[:] = array
    return moved


def waves(count: int) -> Model:
    kind = ("float32", (count,))
    return made.Made({"x": kind}, {"y": kind}, made.step(made.launch("wave", 2, count), slots=(1, 0))).load()


def check(model: Model, x: np.ndarray, start: int) -> None:
    """Compare a call and a bound run on memory at `start` with those on aligned memory."""
    want = model(at(x, 0))
    assert np.array_equal(model(at(x, start)), want)
    out = at(np.zeros_like(want), start)
    size = x.dtype.itemsize
    if start % size == 0:
        assert model(at(x, start), out={"y": out}) is out
        assert np.array_equal(out, want)
        out.fill(0)
        model.bind({"x": at(x, start)}, {"y": out}).run()
        assert np.array_equal(out, want)
        return
    message = rf"its memory starts {start % size} bytes past a multiple of {size}"
    with pytest.raises(Invalid, match=rf"output 'y' \(position 0\): {message}"):
        model(x, out={"y": out})
    with pytest.raises(Invalid, match=rf"input 'x' \(position 0\): {message}.*; output 'y' \(position 0\): {message}"):
        model.bind({"x": at(x, start)}, {"y": out})
    assert not out.any()


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("count", [7, 13, MANY])
def test_floats_at_any_start(start: int, count: int) -> None:
    check(waves(count), np.linspace(-1, 1, count, dtype="float32"), start)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize(
    ("kernel", "kind"), [("add_one_u8", "uint8"), ("add_one_u16", "uint16"), ("add_one_f64", "float64")]
)
@pytest.mark.parametrize("count", [7, 13, 1000])
def test_other_element_sizes(kernel: str, kind: str, start: int, count: int) -> None:
    tensor = (kind, (count,))
    step = made.step(made.launch(kernel, 2, count), slots=(1, 0))
    check(made.Made({"x": tensor}, {"y": tensor}, step).load(), np.arange(count).astype(kind), start)


@pytest.mark.parametrize("start", STARTS)
@pytest.mark.parametrize("count", [7, MANY])
def test_a_pure_copy_takes_any_start(start: int, count: int) -> None:
    kind = ("float32", (count,))
    model = made.Made({"x": kind}, {"y": kind}, made.step(made.copy(1, 0, 4 * count), slots=(1, 0)), align=1).load()
    x = np.arange(count, dtype="float32")
    out: Any = at(np.zeros_like(x), start)
    model.bind({"x": at(x, start)}, {"y": out}).run()
    assert np.array_equal(out, x)
    assert model(at(x, start), out={"y": out}) is out
    assert np.array_equal(out, x)


@pytest.mark.parametrize("before", [b"", b"x", b"abc", bytes(65)])
def test_weights_after_bytes_load_right(tmp_path: Path, before: bytes) -> None:
    weight = np.arange(10, dtype="float32")
    for model in (
        made.times_weight(weight.tobytes(), before).load(), made.times_weight(weight.tobytes(), before).open(tmp_path),
    ):  # fmt: skip
        assert np.array_equal(model(np.full(10, 3, "float32")), weight * 3)
