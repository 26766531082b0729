"""A golden file with code, a loop and notes, read by rig and by a reader without any code of rig."""

from __future__ import annotations

import ast
import json
import struct
import subprocess
import sys
from pathlib import Path

import made
import pytest
from independent_reader import read

import rig
from rig.model import Artifact, KernelNote, Notes, PieceNote, Signature, Tensor, Weight, save
from rig.model.verify import verify
from rig.program.description import (
    Access,
    Address,
    Alloc,
    Data,
    Fixed,
    Hole,
    Image,
    Input,
    InputSlot,
    Launch,
    Loop,
    Program,
    Ref,
    Submit,
    Term,
    Use,
    View,
    Width,
)  # fmt: skip
from rig.program.parts import parts

GOLDEN = Path(__file__).parent / "golden"
FILE = GOLDEN / "artifact-v1-notes.bin"
FLOATS = struct.pack("<300f", *range(300))


def launch(name: str, *words: int, iterations: int = 1, hole: int = 0) -> Launch:
    params = Data(
        bytes(16) + b"".join(w.to_bytes(8, "little") for w in words),
        (Hole(8, Width.W64, (Term(Address(hole, 0), 1),), 64),),
    )
    one = Fixed(1)
    return Launch(0, name, params, (Ref(0, 0, Use.WRITE),), (Fixed(2), one, one), (Fixed(iterations), one, one))


def model() -> tuple[Program, Signature, list[tuple[Weight, bytes]], Notes]:
    """Give a program whose functions do nothing: of every kind of field something."""
    fixed = ((View(0, 0, 4096), Access.READ_WRITE), (View(1, 0, 1200), Access.READ))
    first = Submit(0, (launch("f0", 1 << 40, iterations=70000),), (InputSlot(1),), fixed)
    inner = Submit(0, (launch("f1", 5), launch("f0", 2**63 - 1, hole=1)), (InputSlot(1),), fixed)
    program = Program(
        ("x86-64-v1",), (Alloc(0, 4096), Alloc(0, 1200), Alloc(0, 40, Data(bytes(range(40))))),
        (Image(0, Data(made.flat_image("x86-64-v1", ("f0", "f1")))),), (Input(0, 16), Input(0, 4)), 3,
        (first, Loop(Fixed(300), (inner, Loop(Fixed(2), (inner,))), 2)),
    )  # fmt: skip
    signature = Signature(
        (Tensor("größe", "float32", (2, 2), 0, 64),), (Tensor("y", "int32", (), 1),), "by hand", "x86-64-v1", "notes",
    )  # fmt: skip
    notes = Notes(
        (KernelNote("f0", "r_3", 5_000_000_000, 12), KernelNote("f1")), (PieceNote(0, 64, 1024, 0, 4),),
    )  # fmt: skip
    return program, signature, [(Weight("w", 1, "float32", (3, 100)), FLOATS)], notes


@pytest.mark.case("C22")
def test_the_file_is_what_it_was_made_of(tmp_path: Path) -> None:
    program, signature, weights, notes = model()
    save(tmp_path / "again.rig", program, signature, weights, notes=notes)
    assert (tmp_path / "again.rig").read_bytes() == FILE.read_bytes()
    with Artifact(FILE) as artifact:
        assert (artifact.signature, artifact.notes) == (signature, notes)
        assert artifact.program == program
    assert verify(FILE).parts == 5


@pytest.mark.case("C22")
@pytest.mark.skipif(not made.ARCH.startswith("x86"), reason="the file is for x86-64")
def test_the_file_runs() -> None:
    y = bytearray(b"abcd")
    memory = rig.Buffer.create(rig.host(), 16)
    rig.open(FILE).bind({"größe": memory}, {"y": y}).run()
    assert y == b"abcd"


@pytest.mark.parametrize("name", ["artifact-v1.bin", "artifact-v1-notes.bin"])
def test_another_reader_finds_the_same(name: str) -> None:
    found = read((GOLDEN / name).read_bytes())
    with Artifact(GOLDEN / name) as artifact:
        signature, p = artifact.signature, artifact.program
        weights = {}
        for initial in artifact.initial.values():
            weights[initial.name] = bytearray(initial.nbytes)
            initial.read_into(memoryview(weights[initial.name]))
        assert found["weights"] == weights
        for kind, tensors in (("inputs", signature.inputs), ("outputs", signature.outputs)):
            theirs = [
                (t["name"], t["dtype"], tuple(t["shape"]), t["slot"], t.get("align", 0))
                for t in found["signature"][kind]
            ]
            assert theirs == [(t.name, t.dtype, t.shape, t.slot, t.align) for t in tensors]
        assert (found["signature"]["name"], found["signature"]["target"]) == (signature.name, signature.target)
        assert tuple(found["devices"]) == p.devices
        assert found["memory"] == [(m.nbytes, len(m.init.bytes)) for m in p.memory if isinstance(m, Alloc)]
        assert found["images"] == [bytes(image.binary.bytes) for image in p.images]
        assert found["launches"] == [
            (part.name, part.blocks, part.iterations, part.times) for part in parts(p) if part.kind == "launch"
        ]  # fmt: skip
        noted = artifact.notes.kernels if artifact.notes else ()
        assert [k["symbol"] for k in found["notes"].get("kernels", ())] == [k.symbol for k in noted]


def test_the_other_reader_notices_damage() -> None:
    whole = FILE.read_bytes()
    for at in range(0, len(whole), 41):
        damaged = bytearray(whole)
        damaged[at] ^= 1
        try:
            found = read(bytes(damaged))
        except (AssertionError, ValueError, KeyError, IndexError, struct.error):
            continue
        assert found == read(whole), at  # what it does not look at: dates, padding, the directory


def test_the_other_reader_uses_no_code_of_rig() -> None:
    source = (Path(__file__).parent / "independent_reader.py").read_text("utf-8")
    names = {
        (node.module if isinstance(node, ast.ImportFrom) else node.names[0].name) or ""
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert names == {"__future__", "json", "struct", "sys", "zlib", "pathlib", "typing"}
    assert len(source.splitlines()) <= 130


def test_it_prints() -> None:
    done = subprocess.run(
        [sys.executable, "-I", str(Path(__file__).parent / "independent_reader.py"), str(FILE)],
        capture_output=True, text=True, check=True, timeout=30, env={"PYTHONIOENCODING": "utf-8"},
    )  # fmt: skip
    assert "launches: [('f0', 2, 70000, 1), ('f1', 2, 1, 300)," in done.stdout
    assert json.dumps("größe")[1:-1] in done.stdout or "größe" in done.stdout
