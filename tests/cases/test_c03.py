"""C03: one rule of ownership at every size: inputs are read during the call only, and results are the caller's."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import made
import numpy as np
import pytest

import rig

pytestmark = pytest.mark.case("C03")
PLACES = ["host", "far"]


def device(place: str) -> Any:
    return rig.host() if place == "host" else rig.memory_device("far", delay=0.01)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("count", [8, 1_000_000])
def test_a_source_that_is_filled_at_once(place: str, count: int) -> None:
    model = made.add_one(count).load(device(place))
    source = np.ones(count, "float32")
    result = model(source)
    source.fill(-1)
    assert (result == 2).all()


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("count", [4, 100_000])
def test_a_passed_through_output_is_the_input_of_that_run(tmp_path: Path, place: str, saved: bool, count: int) -> None:
    made_model = made.same_and_next(count)
    model = made_model.open(tmp_path, device(place)) if saved else made_model.load(device(place))
    ones, twos = np.ones(count, "float32"), np.full(count, 2, "float32")
    first = model(ones)
    second = model(twos)
    twos.fill(9)
    ones.fill(9)
    assert (first.same == 1).all() and (first.next == 2).all()
    assert (second.same == 2).all() and (second.next == 3).all()
    for result in (first, second):
        assert not np.shares_memory(result.same, result.next)
        assert not np.shares_memory(result.same, ones)


@pytest.mark.parametrize("place", PLACES)
def test_an_input_is_never_written_and_never_kept(place: str) -> None:
    model = made.same_and_next(1000).load(device(place))
    source = np.arange(1000, dtype="float32")
    source.flags.writeable = False
    before = sys.getrefcount(source)
    for _ in range(5):
        result = model(source)
    assert np.array_equal(source, np.arange(1000, dtype="float32"))
    del result
    assert sys.getrefcount(source) == before


@pytest.mark.parametrize("place", PLACES)
def test_an_output_that_is_also_the_input_gets_the_right_values(place: str) -> None:
    model = made.same_and_next().load(device(place))
    both = np.array([1, 2, 3, 4], "float32")
    result = model(both, out={"next": both})
    assert result.same.tolist() == [1, 2, 3, 4]
    assert both.tolist() == [2, 3, 4, 5]
