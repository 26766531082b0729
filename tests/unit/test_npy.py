"""Files of NumPy's, read and written without NumPy, against NumPy."""

from __future__ import annotations

import io
import itertools

import numpy as np
import pytest

from rig.errors import FormatError
from rig.model import npy

KINDS = ("bool", "int8", "uint16", "int64", "float16", "float32", "float64", ">f4", ">i8", ">u2")
SHAPES: tuple[tuple[int, ...], ...] = ((), (0,), (3,), (1, 784), (2, 3, 4), (3, 0, 2), (2, 3, 4, 5))


def saved(array: np.ndarray) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize(("kind", "shape", "order"), list(itertools.product(KINDS, SHAPES, "CF")))
def test_arrays_keep_their_values(kind: str, shape: tuple[int, ...], order: str) -> None:
    numbers = np.random.default_rng(1).integers(0, 100, shape)
    array = np.asarray(np.asarray(numbers).astype(kind), order="C" if order == "C" else "F")
    name, found, elements = npy.parse(saved(array), "x.npy")
    assert (name, found) == (array.dtype.name, shape)
    assert bytes(elements) == array.astype(array.dtype.newbyteorder("<")).tobytes(order="C")
    again = np.load(io.BytesIO(npy.dump(name, found, elements)))
    assert again.dtype == array.dtype.newbyteorder("=")
    assert np.array_equal(again, array)


def test_what_is_written_is_what_numpy_writes() -> None:
    for shape in SHAPES:
        array = np.ones(shape, "float32")
        assert npy.dump("float32", shape, array.tobytes()) == saved(array)


def test_a_header_in_another_form() -> None:
    array = np.arange(6, dtype="int16").reshape(2, 3)
    plain = b"{'descr': '<i2', 'fortran_order': False, 'shape': (2, 3), }"
    other = b'{"shape":(2,3),"fortran_order":False,"descr":"<i2"}'
    data = saved(array)
    assert plain in data
    assert npy.parse(data.replace(plain, other.ljust(len(plain))), "x")[:2] == ("int16", (2, 3))


def test_a_long_header() -> None:
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }".ljust(100_000) + b"\n"
    data = b"\x93NUMPY\2\0" + len(head).to_bytes(4, "little") + head + np.float32(2).tobytes()
    assert npy.parse(data, "x") == ("float32", (1,), memoryview(np.float32(2).tobytes()))


def test_an_element_type_that_rig_does_not_have() -> None:
    assert npy.parse(saved(np.array([1 + 2j])), "x")[:2] == ("<c16", (1,))


GOOD = npy.dump("float32", (2,), bytes(8))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not an .npy file"),
        (npy.MAGIC, "not an .npy file"),
        (b"x" * 100, "not an .npy file"),
        (npy.MAGIC + b"\1\0\5\0abc", "the header is no dict: abc"),
        (npy.MAGIC + b"\1\0\5\0{   }", "the header states no dense array of one element type"),
        (GOOD[:-1], "float32 of shape (2,) has 8 bytes, but 7 follow the header"),
        (GOOD + b"x", "float32 of shape (2,) has 8 bytes, but 9 follow the header"),
        (GOOD.replace(b"(2,)", b"-2, "), "the header is no dict"),
        (GOOD.replace(b"(2,), }", b"(-2,), }"), "no dense array"),
        (GOOD.replace(b"False", b"None "), "no dense array"),
        (saved(np.zeros(1, [("a", "f4")])), "no dense array"),
    ],
)
def test_what_cannot_be_read(data: bytes, message: str) -> None:
    with pytest.raises(FormatError, match=r"^x\.npy: ") as error:
        npy.parse(data, "x.npy")
    assert message in str(error.value)
