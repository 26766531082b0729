"""C04: arrays of any layout give the values that they show, or an error that names the input and the property."""

from __future__ import annotations

import array
from collections.abc import Callable
from pathlib import Path
from typing import Any

import made
import ml_dtypes
import numpy as np
import pytest

import rig
from rig.errors import Invalid
from rig.model import Model

pytestmark = pytest.mark.case("C04")

BASE = np.arange(24, dtype="float32")


def echo(dtype: str, shape: tuple[int, ...]) -> made.Made:
    """The input itself: bytes that are taken in another order show at once."""
    nbytes = int(np.prod(shape, dtype=int)) * np.dtype(getattr(ml_dtypes, dtype, dtype)).itemsize
    kind = (dtype, shape)
    return made.Made({"x": kind}, {"y": kind}, made.step(made.copy(0, 1, nbytes), slots=(0, 1)))


@pytest.fixture(params=["loaded", "opened", "mapped", "far"])
def ready(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str, tuple[int, ...]], Model]:
    """Make an echo in each of the ways that a model comes to run."""

    def make(dtype: str, shape: tuple[int, ...]) -> Model:
        one = echo(dtype, shape)
        if request.param == "far":
            return one.load(rig.memory_device("far", borrows=False))
        if request.param == "mapped":
            one.save(tmp_path / "echo.rig")
            return rig.open(tmp_path / "echo.rig", mmap=True)
        return one.load() if request.param == "loaded" else one.open(tmp_path)

    return make


def unaligned(values: np.ndarray, start: int) -> np.ndarray:
    memory = np.zeros(values.nbytes + start, "uint8")
    view = memory[start:].view(values.dtype).reshape(values.shape)
    view[...] = values
    return view


READ_ONLY = np.frombuffer(np.arange(6, dtype="float32").tobytes(), "float32")

ODD: dict[str, Any] = {
    "axes moved": np.arange(8, dtype="float32").reshape(1, 2, 2, 2).transpose(0, 2, 3, 1),
    "reversed": BASE[::-1],
    "every second column": BASE.reshape(4, 6)[:, ::2],
    "reversed columns": BASE.reshape(4, 6)[:, ::-1],
    "a broadcast scalar": np.broadcast_to(np.float32(7), (3, 4)),
    "a broadcast row": np.broadcast_to(BASE[:4], (3, 4)),
    "Fortran order": np.asfortranarray(BASE.reshape(4, 6)),
    "big-endian float32": np.array([1, 2, 3], ">f4"),
    "big-endian int64": np.array([1, 256], ">i8"),
    "big-endian and strided": np.arange(12, dtype=">f8").reshape(3, 4)[::-1, ::2],
    "big-endian uint16": np.array([1, 258], ">u2"),
    "read-only": READ_ONLY,
    "0-d": np.array(2.5, "float32"),
    "0-d, big-endian": np.array(2.5, ">f8"),
    "a NumPy scalar": np.float64(1.25),
    "a NumPy bool": np.bool_(True),
    "bools, strided": np.array([[1, 0, 1, 1], [0, 1, 0, 0]], bool)[:, ::3],
    "one byte off": unaligned(BASE, 1),
    "two bytes off": unaligned(np.arange(5, dtype="int64"), 2),
    "empty, strided": np.zeros((4, 0), "float32")[::2],
    "a field of records": np.array([(1, 2.5), (3, 4.5)], [("a", "i1"), ("b", "<f4")])["b"],
    "half, reversed": np.arange(5, dtype="float16")[::-1],
    "bfloat16, strided": np.arange(6).astype(ml_dtypes.bfloat16)[::2],
}


@pytest.mark.parametrize("name", ODD)
def test_values_are_kept(ready: Callable[..., Model], name: str) -> None:
    value = ODD[name]
    before = np.array(value, copy=True)
    model = ready(value.dtype.newbyteorder("=").name, value.shape)
    result = model(value)
    assert result.shape == value.shape
    assert result.dtype == value.dtype.newbyteorder("=")
    assert np.array_equal(np.asarray(result), np.asarray(value))
    assert np.array_equal(np.asarray(value), np.asarray(before))  # and the input is as it was
    assert not np.shares_memory(result, value)


OTHERS: dict[str, tuple[Any, str, tuple[int, ...]]] = {
    "array.array": (array.array("f", [1, 2, 3]), "float32", (3,)),
    "bytes": (b"\1\2\3", "uint8", (3,)),
    "bytearray": (bytearray(b"\1\2\3"), "uint8", (3,)),
    "a strided memoryview": (memoryview(b"\1\2\3\4\5\6")[::2], "uint8", (3,)),
    "a memoryview of two axes": (memoryview(bytes(range(6))).cast("B", (2, 3)), "uint8", (2, 3)),
    "array.array of int64": (array.array("q", [1, -2]), "int64", (2,)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_exports_its_memory_is_taken(ready: Callable[..., Model], name: str) -> None:
    value, dtype, shape = OTHERS[name]
    assert np.array_equal(ready(dtype, shape)(value), np.asarray(memoryview(value)).reshape(shape))


BOUND = {
    "axes moved": r"with strides \(32, 8, 4, 16\): its elements must be dense",
    "reversed": r"with strides \(-4,\): its elements must be dense",
    "a broadcast scalar": r"with strides \(0, 0\): its elements must be dense",
    "Fortran order": r"with strides \(4, 16\): its elements must be dense",
    "big-endian float32": "in the other byte order",
    "big-endian int64": "in the other byte order",
    "one byte off": r"its memory starts \d+ bytes past a multiple of 4, and must start on one",
}


@pytest.mark.parametrize("name", BOUND)
@pytest.mark.parametrize("kind", ["input", "output"])
def test_memory_that_is_used_in_place_is_plain_or_refused(name: str, kind: str) -> None:
    value = ODD[name]
    model = echo(value.dtype.newbyteorder("=").name, value.shape).load()
    plain = np.zeros(value.shape, value.dtype.newbyteorder("="))
    label = "input 'x'" if kind == "input" else "output 'y'"
    if kind == "output" and not value.flags.writeable:
        with pytest.raises(Invalid, match=f"{label} .*that is read-only"):
            model.bind({"x": plain}, {"y": value})
        return
    with pytest.raises(Invalid, match=rf"{label} \(position 0\): .*{BOUND[name]}"):
        model.bind(*({"x": value}, {"y": plain}) if kind == "input" else ({"x": plain}, {"y": value}))
    if kind == "output":
        with pytest.raises(Invalid, match=rf"{label} \(position 0\): .*{BOUND[name]}"):
            model(plain, out={"y": value})


def test_a_read_only_array_is_an_input_and_no_output() -> None:
    model = echo("float32", (6,)).load()
    y = np.full(6, -1, "float32")
    model.bind({"x": READ_ONLY}, {"y": y}).run()
    assert y.tolist() == [0, 1, 2, 3, 4, 5]
    y.flags.writeable = False
    for attempt in (
        lambda: model.bind({"x": READ_ONLY}, {"y": READ_ONLY}), lambda: model(READ_ONLY, out={"y": y}),
        lambda: model.bind({"x": READ_ONLY}, {"y": bytes(24)}),
    ):  # fmt: skip
        with pytest.raises(Invalid, match=r"output 'y' \(position 0\): expected writable float32 .* that is read-only"):
            attempt()
    assert y.tolist() == [0, 1, 2, 3, 4, 5]
