"""What an input or output accepts, without a runtime beneath it."""

from __future__ import annotations

import array
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from rig.errors import Invalid
from rig.model.arrays import DTYPES, check_view, describe, dtype, nbytes, nearest, of_format
from rig.model.ports import MISSING, Port, fields, gather, ports, refuse
from rig.model.signature import Tensor


def port(kind: str = "float32", shape: tuple[int, ...] = (2, 3), align: int = 0) -> Port:
    made = Port("input", 1, Tensor("x", kind, shape, 0, align))
    made.learn(np)
    return made


@pytest.mark.parametrize("name", DTYPES)
def test_the_table_agrees_with_numpy(name: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, name, name))
    found = dtype(name)
    assert (found.itemsize, kind.name) == (kind.itemsize, name)
    if found.code:
        assert np.dtype(found.code) == kind
        assert of_format(memoryview(np.zeros(1, kind)).format, kind.itemsize) == (name, False)


def test_formats() -> None:
    assert of_format(">f", 4) == ("float32", True)
    assert of_format("<l", 8) == ("int64", False)
    assert of_format("l", 4) == ("int32", False)
    assert of_format("Zd", 16) == ("'Zd'", False)
    assert of_format("!b", 1) == ("int8", False)


def test_unknown_element_types_list_the_known() -> None:
    with pytest.raises(Invalid, match="'float31' is no element type; it must be one of bool, int8, uint8"):
        dtype("float31")


def test_sizes_of_hostile_shapes_take_no_time() -> None:
    assert nbytes("float64", (2**63,) * 1_000_000) > 2**63
    assert nbytes("float64", (2**63,) * 1000 + (0,)) == 0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "None"), ([1], "a list"), (1.5, "a float"), (object(), "an object"),
        (np.zeros((2, 3), "int8"), "int8 of shape (2, 3)"),
        (np.zeros(2, ">f4"), "float32 of shape (2,) in the other byte order"),
        (np.float64(1), "float64 of shape ()"), (b"abc", "uint8 of shape (3,)"),
        (array.array("d", [1]), "float64 of shape (1,)"),
    ],
)  # fmt: skip
def test_descriptions(value: Any, text: str) -> None:
    assert describe(value) == text


def test_nearest() -> None:
    assert nearest("imagee", ["scale", "image"]) == "image"
    assert nearest("zzz", ["scale", "image"]) == ""


NUMBERS = np.arange(6, dtype="float32").reshape(2, 3)


@pytest.mark.case("C04")
@pytest.mark.parametrize(
    "value",
    [
        NUMBERS, np.asfortranarray(NUMBERS), NUMBERS.astype(">f4"), NUMBERS[::-1], np.repeat(NUMBERS, 2, 1)[:, ::2],
        np.broadcast_to(np.float32(1), (2, 3)), np.frombuffer(NUMBERS.tobytes(), "float32").reshape(2, 3),
        memoryview(NUMBERS), np.frombuffer(b"x" + NUMBERS.tobytes(), "float32", 6, 1).reshape(2, 3),
        NUMBERS.view(np.matrix), memoryview(NUMBERS.tobytes()).cast("f", (2, 3)),
    ],
)  # fmt: skip
def test_values_are_kept(value: Any) -> None:
    found, problem = port().array_of(np, value)
    assert problem == ""
    assert np.array_equal(found, np.asarray(value))
    assert (found.dtype, found.shape, found.flags.c_contiguous, found.flags.aligned) == (
        np.dtype("f4"),
        (2, 3),
        True,
        True,
    )
    shared = isinstance(value, np.ndarray) and value.flags.c_contiguous and value.flags.aligned and value.dtype.isnative
    if isinstance(value, np.ndarray):
        assert np.shares_memory(found, value) == shared


@pytest.mark.case("C04")
def test_scalars_are_kept() -> None:
    for value in (np.float64(2.5), np.array(2.5), np.array([[2.5]])[0, 0], np.array(2.5).astype(">f8")):
        found, problem = port("float64", ()).array_of(np, value)
        assert (problem, found.shape, float(found)) == ("", (), 2.5)


WANT = "input 'x' (position 1): expected float32 of shape (2, 3)"


@pytest.mark.case("C34")
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (NUMBERS.astype("float64"), f"{WANT}, found float64 of shape (2, 3)"),
        (NUMBERS[:, :2], f"{WANT}, found float32 of shape (2, 2): axis 1 is 2, expected 3"),
        (
            np.zeros((3, 2), "f4"),
            f"{WANT}, found float32 of shape (3, 2): axis 0 is 3, expected 2, axis 1 is 2, expected 3",
        ),
        (NUMBERS[0], f"{WANT}, found float32 of shape (3,): 1 axes where 2 are expected"),
        (np.zeros((2, 4), "i8"), f"{WANT}, found int64 of shape (2, 4): axis 1 is 4, expected 3"),
        (NUMBERS.tolist(), f"{WANT}, found a list, which is no array: pass a NumPy array"),
        (None, f"{WANT}, found None, which is no array: pass a NumPy array"),
        (1.5, f"{WANT}, found a float, which is no array: pass a NumPy array"),
        (NUMBERS.tobytes(), f"{WANT}, found uint8 of shape (24,): 1 axes where 2 are expected"),
        (NUMBERS.astype(object), f"{WANT}, found object of shape (2, 3)"),
    ],
)
def test_what_does_not_fit(value: Any, message: str) -> None:
    assert port().array_of(np, value) == (None, message)


def test_narrow_floats_come_as_themselves_or_as_bits() -> None:
    made = port("bfloat16")
    narrow = NUMBERS.astype(ml_dtypes.bfloat16)
    for value in (narrow, narrow.view("uint16"), np.asfortranarray(narrow)):
        found, problem = made.array_of(np, value)
        assert problem == ""
        assert found.dtype == np.uint16
        assert np.array_equal(found, narrow.view("uint16"))
    assert (
        made.array_of(np, NUMBERS)[1]
        == "input 'x' (position 1): expected bfloat16 of shape (2, 3), found float32 of shape (2, 3)"
    )
    assert made.written(np, narrow.copy()) == ""
    assert made.buffer_of(narrow, writable=False)[1] == ""


@pytest.mark.case("C05")
def test_alignment_beyond_the_element() -> None:
    made = port(shape=(4,), align=64)
    room = np.zeros(64, "float32")
    start = -room.__array_interface__["data"][0] % 64 // 4
    good, bad = room[start : start + 4], room[start + 1 : start + 5]
    assert made.array_of(np, good)[0] is good
    assert made.misaligned(good.__array_interface__["data"][0]) == ""
    assert (
        made.written(np, bad)
        == "input 'x' (position 1): its memory starts 4 bytes past a multiple of 64, and must start on one"
    )


@pytest.mark.case("C04")
@pytest.mark.parametrize(
    ("value", "writable", "message"),
    [
        (NUMBERS, True, ""),
        (bytearray(24), True, ""),
        (bytes(24), False, ""),
        (memoryview(bytes(24)).cast("f", (2, 3)), False, ""),
        (bytes(24), True, "expected writable float32 of shape (2, 3), found uint8 of shape (24,) that is read-only"),
        (
            bytes(23),
            False,
            "expected float32 of shape (2, 3), found uint8 of shape (23,): 23 raw bytes where 24 are expected",
        ),
        (NUMBERS.astype(">f4"), False, "found float32 of shape (2, 3) in the other byte order"),
        (np.asfortranarray(NUMBERS), False, "with strides (4, 8): its elements must be dense and in C order"),
        (NUMBERS.astype("i4"), False, "expected float32 of shape (2, 3), found int32 of shape (2, 3)"),
        (
            NUMBERS.reshape(3, 2),
            False,
            "found float32 of shape (3, 2): axis 0 is 3, expected 2, axis 1 is 2, expected 3",
        ),
        ([1.0], False, "found a list, which does not export its memory"),
        (None, False, "found None, which does not export its memory"),
    ],
)
def test_memory_to_be_used_in_place(value: Any, writable: bool, message: str) -> None:
    problem = port().buffer_of(value, writable=writable)[1]
    assert problem.startswith("input 'x' (position 1): " if message else "")
    assert problem.endswith(message)
    assert bool(problem) == bool(message)


def test_arrays_of_bytes_are_not_raw_for_bytes() -> None:
    assert check_view(memoryview(np.zeros(6, "uint8")), "uint8", (2, 3), writable=False).startswith(
        "expected uint8 of shape (2, 3), found uint8 of shape (6,): 1 axes where 2 are expected"
    )
    for raw in (bytes(6), bytearray(6)):
        assert check_view(memoryview(raw), "uint8", (2, 3), writable=False) == ""
        assert "6 raw bytes where 8 are expected" in check_view(memoryview(raw), "uint8", (2, 4), writable=False)
    assert check_view(memoryview(bytes(6)), "uint8", (6,), writable=False) == ""


A, B = ports("input", (Tensor("a", "float32", (2,), 0), Tensor("b", "int64", (), 1)))


def test_gather_brings_values_into_order() -> None:
    assert gather((A, B), (1,), {"b": 2}, "input") == ([1, 2], [])
    assert gather((A, B), (), {"b": 2}, "input", optional=True) == ([MISSING, 2], [])


@pytest.mark.case("C34")
@pytest.mark.parametrize(
    ("args", "named", "message"),
    [
        ((1,), {}, "input 'b' (position 1): expected int64 of shape (), but it is missing"),
        (
            (1, 2, np.zeros(3)), {},
            "position 2: the model has 2 inputs ('a', 'b'), found one more, float64 of shape (3,)",
        ),
        ((1, 2), {"a": 1}, "input 'a' (position 0): it is given by position and by name"),
        (
            (1, 2), {"bb": np.zeros(1)},
            "'bb' is no input (found float64 of shape (1,)): the model has 2 inputs ('a', 'b'); "
            "did you mean 'b', int64 of shape ()?",
        ),
    ],
)  # fmt: skip
def test_gather_names_what_is_wrong(args: tuple[Any, ...], named: dict[str, Any], message: str) -> None:
    assert gather((A, B), args, named, "input")[1] == [message]


def test_refuse_joins_all_problems() -> None:
    refuse(["", ""])
    with pytest.raises(Invalid, match=r"^one; two$"):
        refuse(["one", "", "two"])


def test_field_names() -> None:
    names = ["logits", "top.k", "1st", "_hidden", "class", "count", "größe", "", "top k", "²"]
    found = fields(names)
    assert found == [
        "logits",
        "top_k",
        "output_1st",
        "hidden",
        "class_",
        "output_count",
        "größe",
        "output",
        "top_k_2",
        "output_2",
    ]
    assert all(name.isidentifier() for name in found)
