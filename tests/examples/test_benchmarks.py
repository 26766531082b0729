"""The benchmarks' harness: what a row says, and that the references measure something."""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.build import reference
from benchmarks.measure import Result, Spread, pairs

ROOT = Path(__file__).resolve().parents[2]


def test_a_row_has_the_agreed_fields() -> None:
    row = Result("w", "what", "ns", Spread(30.0, 29.0, 31.0), Spread(20.0, 19.0, 22.0), 2.0, 15, {"side_us": 1.5})
    assert json.loads(row.to_json()) == {
        "work": "w", "value": 30.0, "unit": "ns", "reference": 20.0, "ratio": 1.5, "extra": 10.0, "n": 15, "goal": 2.0,
        "met": True, "value_q1": 29.0, "value_q3": 31.0, "reference_q1": 19.0, "reference_q3": 22.0, "side_us": 1.5,
    }  # fmt: skip
    assert "| 1.50 |" in row.to_row()


def test_a_row_without_a_reference_is_held_to_its_value() -> None:
    row = Result("w", "what", "ms", Spread(21.0, 20.0, 22.0), None, 20.0, 3)
    assert json.loads(row.to_json())["ratio"] is None
    assert not row.met


def test_pairs_take_turns() -> None:
    order: list[str] = []

    def sample(name: str) -> float:
        order.append(name)
        return float(len(order))

    value, other = pairs(lambda: sample("a"), lambda: sample("b"), n=4, warm=1)
    assert "".join(order) == "ab" + "ba" + "ab" + "ba" + "ab"
    assert (value.median, other.median) == (6.5, 6.5)


@pytest.mark.parametrize("name", ["pingpong", "readfile"])
def test_the_references_measure(name: str) -> None:
    function = getattr(reference(name), name)
    function.restype = ctypes.c_double
    argument = ctypes.c_uint32(100) if name == "pingpong" else str(ROOT / "LICENSE").encode()
    assert 10 < function(argument) < 1e9


def test_an_unknown_work_is_an_error_that_names_it() -> None:
    command = [sys.executable, "-m", "benchmarks.run", "kernels1001"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "unknown work kernels1001" in done.stderr
