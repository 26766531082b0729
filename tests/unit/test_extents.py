"""Extents that are expressions of variables: values, bounds, and what is none."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rig.errors import Invalid
from rig.model.extents import bounds, shape_bounds, shape_of

NAMES = ("n", "m", "k2")


def sums() -> st.SearchStrategy[str]:
    """Expressions as Python spells them, which means the same."""
    leaf = st.one_of(st.sampled_from(NAMES), st.integers(0, 99).map(str))

    def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return st.one_of(
            st.tuples(inner, st.sampled_from("+-*"), inner).map(lambda t: f"({t[0]}{t[1]}{t[2]})"),
            st.tuples(inner, st.sampled_from("+-*"), inner).map("".join),
            st.tuples(inner, st.sampled_from(["//", "%"]), st.integers(1, 9)).map(lambda t: f"({t[0]}){t[1]}{t[2]}"),
            st.tuples(st.sampled_from(["max", "min"]), inner, inner).map(lambda t: f"{t[0]}({t[1]},{t[2]})"),
            inner.map(lambda t: f"-({t})"),
        )

    return st.recursive(leaf, larger, max_leaves=12)


@given(sums(), st.tuples(*[st.integers(-20, 20)] * 3))
def test_the_value_is_python_s(text: str, values: tuple[int, int, int]) -> None:
    named = dict(zip(NAMES, values, strict=True))
    want = eval(text, {"max": max, "min": min}, named)
    assert bounds(text, {name: (value, value) for name, value in named.items()}) == (want, want)


@given(sums(), st.tuples(*[st.tuples(st.integers(-9, 9), st.integers(0, 9))] * 3), st.tuples(*[st.integers(0, 9)] * 3))
def test_no_value_is_outside_the_bounds(
    text: str, spans: tuple[tuple[int, int], ...], steps: tuple[int, int, int]
) -> None:
    ranges = {name: (low, low + width) for name, (low, width) in zip(NAMES, spans, strict=True)}
    named = {name: min(low + step, high) for (name, (low, high)), step in zip(ranges.items(), steps, strict=True)}
    low, high = bounds(text, ranges)
    assert low <= eval(text, {"max": max, "min": min}, named) <= high


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "it ends too early"),
        ("n+", "it ends too early"),
        ("n n", "' ' was not expected"),
        ("n m".replace(" ", "("), "'(' was not expected"),
        ("(n", "')' is missing"),
        ("n)", "')' was not expected"),
        ("n/2", "'/' was not expected"),
        ("n//m", "it may divide by 0"),
        ("n%0", "it may divide by 0"),
        ("q+1", "there is no variable 'q'; there are n, m"),
        ("2n", "'2n' was not expected"),
        ("__import__('os')", "was not expected"),
        ("__import__(n)", "there is no variable '__import__'"),
        ("(" * 200 + "n" + ")" * 200, "nested too deeply"),
        ("-" * 200 + "n", "nested too deeply"),
        ("n+" * 600 + "n", "characters, allowed are 1000"),
        ("max(n)", "',' is missing"),
    ],
)
def test_what_is_no_expression_is_refused(text: str, why: str) -> None:
    with pytest.raises(Invalid) as e:
        bounds(text, {"n": (0, 8), "m": (0, 3)})
    assert why in str(e.value)


def test_shapes_have_numbers_and_no_negative_extent() -> None:
    assert shape_of((2, "n+1", "n*m"), {"n": 3, "m": 4}) == (2, 4, 12)
    assert shape_bounds((2, "n"), {"n": (0, 8)}) == ((2, 2), (0, 8))
    with pytest.raises(Invalid, match=r"axis 1: the extent n-4 may be negative \(-4\)"):
        shape_bounds((2, "n-4"), {"n": (0, 8)})
