"""The native reader of JSON against Python's own."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rig._core import read_json
from rig.errors import FormatError

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=200)
@given(values, st.booleans(), st.sampled_from([None, 0, 1]))
def test_what_python_writes(value: Any, ascii_only: bool, indent: int | None) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    found = read_json(text.encode("utf-8"))
    assert found == value
    assert repr(found) == repr(value)  # True is no 1


def strict(text: bytes) -> Any:
    """Decode as Python does, without what it takes beyond JSON: NaN, infinities, byte order marks, UTF-16."""

    def refuse(word: str) -> Any:
        raise ValueError(word)

    return json.loads(text.decode("utf-8"), parse_constant=refuse)


@settings(max_examples=400)
@given(values, st.lists(st.tuples(st.integers(0, 60), st.sampled_from(b'{}[]",:\\u0123edE+-. \n\x00\x1f\xff\xc3'))))
@example([1], [(0, ord("0"))])
def test_changed_text_is_read_as_python_reads_it_or_refused(value: Any, changes: list[tuple[int, int]]) -> None:
    text = bytearray(json.dumps(value, ensure_ascii=False).encode())
    for at, byte in changes:
        text[at % len(text)] = byte
    try:
        expected = strict(bytes(text))
    except ValueError:
        with pytest.raises(FormatError, match=r"^byte \d+: "):
            read_json(text)
    else:
        try:
            found = read_json(text)
        except FormatError as error:
            assert "past what a float holds" in str(error) or "surrogate" in str(error)
        else:
            assert found == expected


@pytest.mark.parametrize(
    ("text", "where", "why"),
    [
        (b"", 0, "the text ends where a value is expected"),
        (b"[1, 2", 5, "a comma or a closing bracket is expected"),
        (b'{"a": 1 2}', 8, "a comma or a closing brace is expected"),
        (b"{a: 1}", 1, "a name in quotes is expected"),
        (b'{"a" 1}', 5, "a colon is expected"),
        (b"1 2", 2, "something follows the value"),
        (b"nul", 0, "no value starts so"),
        (b"01", 1, "something follows the value"),
        (b"-", 1, "a digit is expected"),
        (b"1.e3", 2, "a digit is expected"),
        (b"1e999", 5, "past what a float holds"),
        (b'"abc', 4, "ends inside a string"),
        (b'"a\nb"', 2, "a control character stands in a string"),
        (b'"\xff"', 3, "not UTF-8"),
        (b'"\\q"', 2, "no such escape"),
        (b'"\\u12g4"', 5, "four hexadecimal digits are expected"),
        (b'"\\ud800"', 7, "half of a surrogate pair"),
        (b'"\\udc00"', 7, "half of a surrogate pair"),
        (b'"\\ud800\\u0041"', 13, "half of a surrogate pair"),
        (b'"\\ud800x"', 7, "half of a surrogate pair"),
        (b"[" * 65, 64, "nested too deep"),
        (b"[" * 1_000_000, 64, "nested too deep"),
        (b"1" * 301, 301, "too many digits"),
    ],
)
def test_what_is_no_json_is_refused_with_the_byte(text: bytes, where: int, why: str) -> None:
    with pytest.raises(FormatError, match=why) as caught:
        read_json(text)
    assert caught.value.where == f"byte {where}"


def test_the_last_of_two_equal_names_counts() -> None:
    assert read_json(b'{"a": 1, "a": [2]}') == {"a": [2]}


def test_as_deep_as_it_goes() -> None:
    found = read_json(b"[" * 64 + b"]" * 64)
    for _ in range(63):
        (found,) = found
    assert found == []


def test_numbers_of_any_size() -> None:
    for number in (2**63, 2**64, -(2**63), 10**17, 10**18, -(2**200)):
        assert read_json(str(number).encode()) == number
    assert read_json(b"-999999999999999999") == -999999999999999999
