"""C34: an error says which input is meant, what was expected and found, and the axis; nothing is cast or run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import made
import numpy as np
import pytest

import rig
from rig.errors import Invalid
from rig.model import Model

pytestmark = pytest.mark.case("C34")
IMAGE = np.ones((1, 3, 4, 4), "float32")
SCALE = np.float64(2)
IMAGE_WANTS = "input 'image' (position 0): expected float32 of shape (1, 3, 4, 4)"
SCALE_WANTS = "input 'scale' (position 1): expected float64 of shape ()"
SENTINEL = -123.0

WRONG: dict[str, tuple[dict[str, Any], list[str]]] = {
    "scale as int64": ({"image": IMAGE, "scale": np.int64(2)}, [f"{SCALE_WANTS}, found int64 of shape ()"]),
    "image as float64": (
        {"image": IMAGE.astype("float64"), "scale": SCALE}, [f"{IMAGE_WANTS}, found float64 of shape (1, 3, 4, 4)"],
    ),
    "another extent": (
        {"image": np.ones((1, 3, 4, 5), "float32"), "scale": SCALE},
        [f"{IMAGE_WANTS}, found float32 of shape (1, 3, 4, 5): axis 3 is 5, expected 4"],
    ),
    "another rank": (
        {"image": IMAGE[0], "scale": SCALE},
        [f"{IMAGE_WANTS}, found float32 of shape (3, 4, 4): 3 axes where 4 are expected"],
    ),
    "scale missing": ({"image": IMAGE}, [f"{SCALE_WANTS}, but it is missing"]),
    "an input too many": (
        {"image": IMAGE, "scale": SCALE, "imagee": IMAGE},
        [
            "'imagee' is no input (found float32 of shape (1, 3, 4, 4))", "did you mean 'image'",
            "float32 of shape (1, 3, 4, 4)?", "('image', 'scale')",
        ],
    ),
    "a misspelt input": (
        {"imagee": IMAGE, "scale": SCALE}, ["'imagee' is no input", f"{IMAGE_WANTS}, but it is missing"],
    ),
    "a list": ({"image": IMAGE.tolist(), "scale": SCALE}, [f"{IMAGE_WANTS}, found a list"]),
    "a number": ({"image": IMAGE, "scale": 2.0}, [f"{SCALE_WANTS}, found a float"]),
    "both": (
        {"image": np.ones((1, 3, 4, 5), "float64"), "scale": np.int64(2)},
        [
            f"{IMAGE_WANTS}, found float64 of shape (1, 3, 4, 5): axis 3 is 5, expected 4",
            f"{SCALE_WANTS}, found int64 of shape ()",
        ],
    ),
}  # fmt: skip


@pytest.fixture(params=["loaded", "opened", "far"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Model:
    if request.param == "loaded":
        return made.scaled_image().load()
    return made.scaled_image().open(tmp_path, rig.memory_device("far") if request.param == "far" else None)


@pytest.mark.parametrize("name", WRONG)
def test_a_call_says_what_is_wrong(model: Model, name: str) -> None:
    named, parts = WRONG[name]
    result = np.full((1, 3, 4, 4), SENTINEL, "float32")
    with pytest.raises(Invalid) as error:
        model(out={"result": result}, **named)
    for part in parts:
        assert part in str(error.value)
    assert (result == SENTINEL).all()
    with pytest.raises(Invalid) as again:
        model(**named)
    assert str(again.value) == str(error.value)


@pytest.mark.parametrize("name", [name for name in WRONG if name != "a number"])
def test_binding_says_it_too(model: Model, name: str) -> None:
    named, parts = WRONG[name]
    result = np.full((1, 3, 4, 4), SENTINEL, "float32")
    with pytest.raises(Invalid) as error:
        model.bind(named, {"result": result})
    for part in parts:
        assert part in str(error.value)
    assert (result == SENTINEL).all()


def test_by_position_too(model: Model) -> None:
    with pytest.raises(Invalid, match=r"input 'scale' \(position 1\): expected float64 of shape \(\), found int64"):
        model(IMAGE, np.int64(2))
    assert (model(IMAGE, SCALE) == 2).all()
