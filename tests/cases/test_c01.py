"""C01: results that a caller keeps never change by later runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import made
import numpy as np
import pytest

import rig

pytestmark = pytest.mark.case("C01")
PLACES = ["host", "far"]


def device(place: str) -> Any:
    return rig.host() if place == "host" else rig.memory_device("far", delay=0.001)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("saved", [False, True])
def test_three_results_are_kept(tmp_path: Path, place: str, saved: bool) -> None:
    model = made.add_one().open(tmp_path, device(place)) if saved else made.add_one().load(device(place))
    kept = [model(np.array([value], "float32")) for value in (1.1, 1.2, 1.3)]
    assert [float(result[0]) for result in kept] == pytest.approx([2.1, 2.2, 2.3])


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("saved", [False, True])
def test_a_history_that_is_fed_back(tmp_path: Path, place: str, saved: bool) -> None:
    model = made.history().open(tmp_path, device(place)) if saved else made.history().load(device(place))
    random = np.random.default_rng(1)
    frames = random.standard_normal((5, 4, 4)).astype("float32")
    state, kept = frames, []
    for _ in range(20):
        frame = random.standard_normal((4, 4)).astype("float32")
        frames = np.concatenate([frames[1:], frame[None]])
        result = model(state, frame)
        state = result.new
        kept.append((result, frames))
    for result, want in kept:
        assert np.array_equal(result.new, want)
        assert np.array_equal(result.first, want[0])


def test_the_outputs_of_a_run_are_apart() -> None:
    model = made.history().load()
    result = model(np.ones((5, 4, 4), "float32"), np.ones((4, 4), "float32"))
    result.new[:] = 7
    assert (result.first == 1).all()
