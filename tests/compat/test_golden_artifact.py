"""A file of every released format version: it still opens, and what it was made of still gives the same bytes."""

from __future__ import annotations

import struct
from pathlib import Path

import made
import pytest

import rig
from rig.model import Signature, Tensor, Weight, save
from rig.model.artifact import FORMAT, Artifact
from rig.program.description import Alloc, Copy, Fixed, Input, InputSlot, MemorySlot, Program, Submit, Term, View

GOLDEN = Path(__file__).parent / "golden"
ZERO = (Term(Fixed(0), 1),)


def model(arch: str) -> tuple[Program, Signature, list[tuple[Weight, bytes]]]:
    """Give a program that needs no code: one output is a weight, the other the input."""
    slots = (InputSlot(0), InputSlot(1), InputSlot(2), MemorySlot(View(1, 0, 12)))
    step = Submit(0, (Copy(0, ZERO, 1, ZERO, 16), Copy(3, ZERO, 2, ZERO, 12)), slots)
    inputs = tuple(Input(0, nbytes) for nbytes in (16, 16, 12))
    program = Program((arch,), (Alloc(0, 3), Alloc(0, 12)), (), inputs, 0, (step,))
    signature = Signature(
        (Tensor("x", "float32", (2, 2), 0),),
        (Tensor("same", "float32", (2, 2), 1), Tensor("weight", "int32", (3,), 2)), "none", arch, "golden",
    )  # fmt: skip
    weights = [
        (Weight("bytes", 0, "uint8", (3,)), b"abc"),
        (Weight("ints", 1, "int32", (3,)), struct.pack("<3i", 1, -2, 3)),
    ]
    return program, signature, weights


@pytest.mark.case("C22")
def test_version_1(tmp_path: Path) -> None:
    stored = (GOLDEN / "artifact-v1.bin").read_bytes()
    save(tmp_path / "again.rig", *model("x86-64-v1"))
    assert (tmp_path / "again.rig").read_bytes() == stored
    with Artifact(stored) as artifact:
        program, signature, _ = model("x86-64-v1")
        assert (artifact.program, artifact.signature) == (program, signature)


@pytest.mark.case("C22")
@pytest.mark.skipif(not made.ARCH.startswith("x86"), reason="the file is for x86-64")
def test_version_1_runs() -> None:
    opened = rig.open(GOLDEN / "artifact-v1.bin")
    same, weight = bytearray(16), bytearray(12)
    opened.bind({"x": struct.pack("4f", 1, 2, 3, 4)}, {"same": same, "weight": weight}).run()
    assert struct.unpack("4f", same) == (1, 2, 3, 4)
    assert struct.unpack("<3i", weight) == (1, -2, 3)


def test_every_version_has_a_golden_file() -> None:
    assert [(GOLDEN / f"artifact-v{version}.bin").is_file() for version in range(1, FORMAT + 1)] == [True] * FORMAT
