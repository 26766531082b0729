"""A check of any description passes or refuses with Invalid, in bounded time, whatever peers send."""

from __future__ import annotations

import time
from typing import Any

import msgspec
import pytest
from checks import End, FakeDevice
from generated import programs
from hypothesis import given, settings
from hypothesis import strategies as st
from programs import everything

from rig.errors import Invalid
from rig.program.check import check
from rig.program.description import Program
from rig.program.schema import readable

small = st.integers(-1, 3) | st.integers(0, 2) | st.sampled_from([8, 16, 64])
wild = small | st.integers(-(2**63), 2**63 - 1)


def passed(program: Program) -> bool:
    """Tell whether `program` passes a check on devices of its arches; anything but a pass or Invalid fails the test."""
    host = FakeDevice()
    devices = [FakeDevice(f"d{index}", arch, host=host) for index, arch in enumerate(program.devices)]
    began = time.process_time()
    try:
        check(program, devices, lambda rail: End() if rail == 4 else None)
    except Invalid as error:
        assert str(error)
        return False
    finally:
        assert time.process_time() - began < 5
    return True


@pytest.mark.spec("P-load-index")
@settings(max_examples=300)
@given(programs(small, blob=24) | programs(wild, blob=24))
def test_any_description(program: Program) -> None:
    passed(program)


def places(value: Any) -> list[tuple[Any, ...]]:
    """Return the path of every integer in a description's plain form."""
    found: list[tuple[Any, ...]] = []

    def walk(at: Any, path: tuple[Any, ...]) -> None:
        if isinstance(at, list):
            for index, item in enumerate(at):
                walk(item, (*path, index))
        elif isinstance(at, int):
            found.append(path)

    walk(value, ())
    return found


def plain() -> Any:
    """Return lists and integers in the form of a program that keeps every rule."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(everything()))


PLACES = places(plain())


def changed(*changes: tuple[tuple[int, ...], int]) -> bool | None:
    """Tell whether that program passes with other numbers at some places; None if they do not fit their types."""
    raw = plain()
    for path, number in changes:
        at = raw
        for index in path[:-1]:
            at = at[index]
        at[path[-1]] = number
    try:
        return passed(msgspec.convert(raw, Program, dec_hook=lambda _, blob: blob))
    except msgspec.ValidationError:
        return None


@pytest.mark.spec("P-load-index")
@settings(max_examples=400)
@given(st.sampled_from(PLACES), wild, st.sampled_from(PLACES), wild)
def test_other_numbers(first: tuple[int, ...], one: int, second: tuple[int, ...], two: int) -> None:
    changed((first, one), (second, two))


@pytest.mark.spec("P-load-index")
def test_every_number_is_looked_at() -> None:
    assert changed() is True
    far = -(2**62)
    unchecked = {readable(list(path), plain())[0] for path in PLACES if changed((path, far)) is True}
    assert unchecked
    for path in unchecked:  # numbers that only a device or a run can judge
        assert path.endswith((".factor", ".add", ".value")), path
