"""`rig inspect`: what it prints, its JSON, and its picture."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import made
import numpy as np
import pytest

from rig.cli import main
from rig.cli.picture import draw
from rig.model import Artifact, KernelNote, Notes, PieceNote, Weight
from rig.model.artifact import save
from rig.model.summary import kinds, lives, summary
from rig.program.description import Alloc, Data, Fixed, Image, Input, InputSlot, Loop, Move, Program, Term
from rig.program.parts import parts

FLOATS = ("float32", (4,))
WEIGHT = np.arange(4, dtype="float32").tobytes()


def several(notes: Notes | None, path: Path) -> Path:
    """A file with all kinds of memory: a weight, a constant, state and an arena of two pieces."""
    one = made.Made({"x": FLOATS}, {"y": FLOATS, "z": FLOATS})
    piece = made.memory(3, 16)
    other = made.MemorySlot(made.View(3, 64, 16))
    steps = (
        made.step(
            made.launch("times", 3, 4), made.launch("add_one_f32", 2, 4), made.copy(1, 0, 16),
            slots=(piece, 0, made.memory(0, 16)),
        ),
        made.step(
            made.launch("add_one_f32", 2, 4), made.launch("times", 3, 4), slots=(other, piece, made.memory(1, 16))
        ),
        Move(other, (), InputSlot(1), (), 16),
        Loop(Fixed(3), (made.step(made.copy(0, 1, 16), made.copy(0, 2, 16), slots=(other, 2, made.memory(2, 16))),)),
    )  # fmt: skip
    program = Program(
        (made.ARCH,),
        (Alloc(0, 16), Alloc(0, 16, Data(WEIGHT)), Alloc(0, 16, Data(WEIGHT)), Alloc(0, 128)),
        (Image(0, Data(made.library())),), tuple(Input(0, 16) for _ in range(3)), 0, steps,
    )  # fmt: skip
    save(path, program, one.signature, [(Weight("w<1>&", 0, "float32", (4,)), WEIGHT)], notes=notes)
    return path


NOTES = Notes(
    (KernelNote("times", "r_4 & more", 8_000_000, 48), KernelNote("add_one_f32", "E_4")),
    (PieceNote(3, 0, 16, 0, 4), PieceNote(3, 64, 16, 3, 6)),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return several(NOTES, tmp_path / "model.rig")


def found(path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    assert main(("inspect", str(path), "--json")) == 0
    return json.loads(capsys.readouterr().out)


def test_json(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = found(path, capsys)
    assert list(data) == ["file", "signature", "devices", "memory", "images", "kernels", "steps", "weights"]
    assert data["file"] == {"name": str(path), "nbytes": path.stat().st_size, "format": 1}
    assert data["memory"] == {
        "weights": 16, "constants": 16, "state": 16, "arena": 128, "inputs": 16, "outputs": 32,
    }  # fmt: skip
    assert data["steps"] == {"submit": 3, "move": 1, "loop": 1, "launch": 4, "copy": 3, "fill": 0, "words": 0}
    assert data["weights"] == [{"name": "w<1>&", "dtype": "float32", "shape": [4], "nbytes": 16, "memory": 0}]
    assert data["signature"]["inputs"] == [
        {"name": "x", "dtype": "float32", "shape": [4], "nbytes": 16, "slot": 0}
    ]  # fmt: skip
    times, add_one = data["kernels"]
    assert (times["symbol"], times["name"], times["launches"], times["ops"], times["mem"]) == (
        "times", "r_4 & more", 2, 8_000_000, 48,
    )  # fmt: skip
    assert (times["iterations"], times["blocks"]) == (4, 1)
    assert times["code"] > 0
    assert (add_one["launches"], add_one["ops"]) == (2, 0)
    (image,) = data["images"]
    assert (image["kind"], image["device"], image["requires"]) == ("shared library", 0, "")


def test_the_documented_keys_are_all_there(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("inspect", "--help")) == 0
    text = capsys.readouterr().out
    data = found(path, capsys)
    for key, value in data.items():
        assert f"\n  {key}" in text
        for one in value if isinstance(value, list) else [value]:
            if isinstance(one, dict):
                assert [inner for inner in one if inner not in text] == []


def test_text(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("inspect", str(path))) == 0
    text = capsys.readouterr().out
    for line in (
        "inputs (1)\n  x  float32  4  16 B", "memory\n  weights     16 B\n", "  arena      128 B\n",
        "steps     3 submit, 1 move, 1 loop, 4 launch, 3 copy", "weights (1)\n  w<1>&  float32  4  16 B  memory 0",
        "kernels (2)\n  symbol       name",
    ):  # fmt: skip
        assert line in text
    assert main(("inspect", str(several(None, path)))) == 0
    assert "Mop" not in capsys.readouterr().out


def test_long_lists_are_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    weights = tuple((Weight(f"w{i}", i, "float32", (4,)), WEIGHT) for i in range(50))
    made.Made({}, {}, weights=weights).save(tmp_path / "many.rig")
    assert main(("inspect", str(tmp_path / "many.rig"))) == 0
    text = capsys.readouterr().out
    assert ("w39 " in text, "w40 " in text) == (True, False)
    assert "  ... and 10 more (--all shows them)" in text
    assert main(("inspect", str(tmp_path / "many.rig"), "--all")) == 0
    assert "w49 " in capsys.readouterr().out


def test_kinds_and_parts(path: Path) -> None:
    with Artifact(path) as artifact:
        assert kinds(artifact) == ["weight", "constant", "state", "arena"]
        all_parts = list(parts(artifact.program))
        assert [part.kind for part in all_parts] == [
            "launch",
            "launch",
            "copy",
            "launch",
            "launch",
            "move",
            "copy",
            "copy",
        ]
        assert [part.times for part in all_parts] == [1] * 6 + [3, 3]
        assert all_parts[0].where == "steps[0].parts[0]"
        assert all_parts[-1].where == "steps[3].body[0].parts[1]"
        written = [(t.memory, t.number, t.offset, t.nbytes) for t in all_parts[5].touches if t.writes]
        assert written == [(False, 1, 0, 16)]
        (first, *_) = all_parts[0].touches
        assert (first.memory, first.number, first.offset, first.nbytes, first.reads, first.writes) == (
            True, 3, 0, 16, False, True,
        )  # fmt: skip


def test_lives_are_noted_or_guessed(path: Path, tmp_path: Path) -> None:
    with Artifact(path) as artifact:
        noted = lives(artifact, list(parts(artifact.program)))
        assert [(x.number, x.offset, x.nbytes, x.first, x.last, x.exact) for x in noted] == [
            (3, 0, 16, 0, 4, True), (3, 64, 16, 3, 6, True),
        ]  # fmt: skip
    with Artifact(several(None, tmp_path / "bare.rig")) as artifact:
        guessed = lives(artifact, list(parts(artifact.program)))
        assert [(x.number, x.offset, x.nbytes, x.first, x.last, x.exact) for x in guessed] == [
            (3, 0, 16, 0, 4, False), (3, 64, 16, 3, 7, False),
        ]  # fmt: skip


def elements(svg: str, kind: str) -> list[ET.Element]:
    return list(ET.fromstring(svg).iter(f"{{http://www.w3.org/2000/svg}}{kind}"))


def test_the_picture(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = path.with_suffix(".svg")
    assert main(("inspect", str(path), "--svg", str(target))) == 0
    svg = target.read_text("utf-8")
    texts = [element.text for element in elements(svg, "text")]
    assert "w<1>& · 16 B" in texts
    assert "made: memory over one run" in texts
    assert "arena (memory 3)" in texts
    assert "r_4 & more" in texts
    titles = [element.text or "" for element in elements(svg, "title")]
    assert "16 B at 64, parts 3 to 6" in titles
    assert any(t.startswith("0: launch r_4 & more (steps[0].parts[0])") for t in titles)


def test_nothing_lies_outside_the_picture(path: Path) -> None:
    with Artifact(path) as artifact:
        svg = draw(artifact)
    root = ET.fromstring(svg)
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    rects = elements(svg, "rect")
    assert len(rects) > 20
    for rect in rects:
        x, y, w, h = (float(rect.attrib.get(key, 0)) for key in ("x", "y", "width", "height"))
        assert x >= 0 and y >= 0 and w > 0 and h > 0
        assert x + w <= width + 0.5 and y + h <= height + 0.5
    for text in elements(svg, "text"):
        assert 0 <= float(text.attrib["x"]) <= width and 0 < float(text.attrib["y"]) <= height


def test_pictures_of_much_and_of_nothing(tmp_path: Path) -> None:
    made.Made({}, {}).save(tmp_path / "none.rig")
    with Artifact(tmp_path / "none.rig") as artifact:
        assert "0 parts" in draw(artifact)
    count = 700
    steps = made.step(*(made.launch("add_one_f32", 2, 4) for _ in range(count)), slots=(1, 0))
    weights = tuple((Weight(f"w{i}", i, "float32", (4,)), WEIGHT) for i in range(600))
    made.Made({"x": FLOATS}, {"y": FLOATS}, steps, weights=weights).save(tmp_path / "much.rig")
    with Artifact(tmp_path / "much.rig") as artifact:
        svg = draw(artifact)
    root = ET.fromstring(svg)
    assert float(root.attrib["width"]) < 2000
    assert float(root.attrib["height"]) < 2500
    assert len(svg) < 1_000_000


def test_summary_reads_no_weights(path: Path) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(b"PK\3\4", damaged.index(b"program.rig") + 200) + 200] ^= 0
    with Artifact(bytes(damaged)) as artifact:
        assert summary(artifact)["file"]["name"] == ""


def test_offsets_that_a_run_decides(tmp_path: Path) -> None:
    from rig.program.description import Int

    one = made.Made({"x": FLOATS}, {"y": FLOATS})
    steps = (
        Move(InputSlot(0), (Term(Int(0), 4),), InputSlot(1), (), 4),
        Loop(Int(1), (made.step(made.copy(0, 1, 4), slots=(0, 1)),)),
    )
    program = Program((made.ARCH,), (), (), (Input(0, 16), Input(0, 16)), 2, steps)
    save(tmp_path / "x.rig", program, one.signature)
    with Artifact(tmp_path / "x.rig") as artifact:
        move, copy = parts(artifact.program)
        assert (move.touches[0].offset, move.touches[1].offset) == (None, 0)
        assert copy.times is None
        assert "as often as the run says" in draw(artifact)
