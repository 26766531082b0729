"""C06: rank, shape, element type and bytes are checked on each call, before any step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import made
import numpy as np
import pytest

import rig
from rig.errors import Invalid
from rig.model import Model

pytestmark = pytest.mark.case("C06")
ONES = np.ones(4, "float32")
WANT = r"input 'x' \(position 0\): expected float32 of shape \(4,\), found "


class Elsewhere:
    """An array of a device that is not here."""

    def __dlpack__(self, **kwargs: Any) -> Any:
        raise BufferError("not CPU memory")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


@pytest.fixture(params=["loaded", "opened", "far"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Model:
    if request.param == "loaded":
        return made.sum_twice().load()
    return made.sum_twice().open(tmp_path, rig.memory_device("far") if request.param == "far" else None)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((np.ones(8, "float32"),), WANT + r"float32 of shape \(8,\): axis 0 is 8, expected 4"),
        ((np.ones(3, "float32"),), WANT + r"float32 of shape \(3,\): axis 0 is 3, expected 4"),
        ((np.ones((2, 2), "float32"),), WANT + r"float32 of shape \(2, 2\): 2 axes where 1 are expected"),
        ((np.ones(4, "int32"),), WANT + r"int32 of shape \(4,\)"),
        ((np.ones(4, "float64"),), WANT + r"float64 of shape \(4,\)"),
        ((Elsewhere(),), WANT + "an Elsewhere that NumPy cannot take"),
        ((None,), WANT + "None"),
        ((), r"input 'x' \(position 0\): expected float32 of shape \(4,\), but it is missing"),
        ((ONES, ONES), r"position 1: the model has 1 input \('x'\), found one more, float32 of shape \(4,\)"),
    ],
)
def test_a_wrong_input_is_named_and_the_next_call_is_right(model: Model, args: tuple[Any, ...], message: str) -> None:
    total = np.full((), 77, "float32")
    for _ in range(2):
        with pytest.raises(Invalid, match=message):
            model(*args, out={"total": total})
        assert total == 77
        assert model(ONES) == 8


def test_bound_memory_is_checked_too(model: Model) -> None:
    total = np.full((), 77, "float32")
    for wrong, message in (
        (np.ones(8, "float32"), r"float32 of shape \(8,\): axis 0 is 8, expected 4"),
        (np.ones(4, "float64"), r"float64 of shape \(4,\)"),
        (bytes(12), r"uint8 of shape \(12,\): 12 raw bytes where 16 are expected"),
    ):
        with pytest.raises(Invalid, match=WANT + message):
            model.bind({"x": wrong}, {"total": total})
    assert total == 77
    model.bind({"x": ONES}, {"total": total}).run()
    assert total == 8
