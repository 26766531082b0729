"""Tensors as text."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from rig.cli.devices import size
from rig.cli.show import lines, values


def shown(array: np.ndarray) -> list[str]:
    return list(lines("x", array.dtype.name, array.shape, memoryview(array.tobytes())))


def test_few_values_are_shown_whole() -> None:
    assert shown(np.array([[1.5, 0.1], [1e-10, 3]], "float32")) == ["x: float32 (2, 2)", "  [[1.5, 0.1], [1e-10, 3.0]]"]
    assert shown(np.array(True)) == ["x: bool ()", "  True"]
    assert shown(np.zeros((2, 0), "uint8")) == ["x: uint8 (2, 0)", "  []"]
    assert shown(np.array([1, np.nan, -np.inf, -0.0])) == ["x: float64 (4,)", "  [1.0, nan, -inf, -0.0]"]


def test_many_values_are_shown_in_extract() -> None:
    array = np.arange(100, dtype="int32")
    array[40] = 1000
    assert shown(array)[1:] == ["  0 1 2 3 4 5 6 7 ... (100 values)", "  min 0, max 1000, argmax 40"]


def test_nan_does_not_hide_the_extremes() -> None:
    array = np.arange(50, dtype="float32")
    array[::7] = np.nan
    assert shown(array)[2] == "  min 1.0, max 48.0, argmax 48, 8 nan"
    assert shown(np.full(40, np.nan, "float16"))[2] == "  all 40 are nan"


@pytest.mark.parametrize("kind", ["float16", "float32"])
def test_the_digits_give_the_number_back(kind: str) -> None:
    array = np.random.default_rng(2).standard_normal(30).astype(kind)
    text = shown(array)[1].strip()[1:-1]
    assert np.array_equal(np.array([float(number) for number in text.split(", ")]).astype(kind), array)


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float16", "int8", "uint64"])
def test_all_values(name: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, name, name))
    bits = np.arange(1 << 16, dtype="uint16") if kind.itemsize > 1 else np.arange(256, dtype="uint8")
    array = bits[: len(bits) // 8 * 8].view(kind)
    with np.errstate(invalid="ignore"):
        want = array.astype("float64")
    assert np.array_equal(np.array(values(name, memoryview(array.tobytes())), "float64"), want, equal_nan=True)


def test_sizes() -> None:
    assert [size(n) for n in (0, 1023, 1024, 1536, 32 << 20, 3 << 30)] == [
        "0 B",
        "1023 B",
        "1 KiB",
        "1.5 KiB",
        "32 MiB",
        "3 GiB",
    ]
