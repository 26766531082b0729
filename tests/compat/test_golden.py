"""Bytes of every released format version: they still decode to what they were made of."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "unit"))
from programs import everything, nested

from rig.program.codec import FORMAT_VERSION, of_bytes, to_bytes
from rig.program.description import Program

GOLDEN = Path(__file__).parent / "golden"
VERSION_1 = {"everything": everything(), "nested": nested(3), "empty": Program(())}


@pytest.mark.spec("P-data-golden")
@pytest.mark.parametrize("name", VERSION_1)
def test_version_1(name: str) -> None:
    stored = (GOLDEN / f"program-v1-{name}.bin").read_bytes()
    assert of_bytes(stored) == VERSION_1[name]
    assert to_bytes(VERSION_1[name]) == stored


@pytest.mark.spec("P-data-golden")
def test_every_version_has_golden_bytes() -> None:
    for version in range(1, FORMAT_VERSION + 1):
        assert list(GOLDEN.glob(f"program-v{version}-*.bin"))
    for path in GOLDEN.glob("program-v*.bin"):
        assert path.read_bytes()[8] == int(path.name.split("-")[1][1:])
