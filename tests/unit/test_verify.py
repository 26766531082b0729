"""`rig verify`: whole files pass, and each kind of damage is placed."""

from __future__ import annotations

import random
import zlib
from pathlib import Path
from typing import Any

import made
import msgspec
import numpy as np
import pytest

import rig
from rig.cli import main
from rig.errors import FormatError
from rig.model import zip as archive
from rig.model.artifact import Artifact, save
from rig.model.notes import Notes
from rig.model.summary import summary
from rig.model.verify import verify
from rig.program.description import Data, Fixed, Image, Loop, Program
from rig.program.images import look

WEIGHT = np.arange(1, 301, dtype="float32").tobytes()
FLAT = Path(__file__).parent.parent / "compat" / "golden"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made.times_weight(WEIGHT, b"abc").save(tmp_path / "model.rig")
    return tmp_path / "model.rig"


def test_a_whole_file(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = verify(path)
    assert (found.nbytes, found.members, found.weights, found.memory) == (path.stat().st_size, 4, 2, 2)
    assert (found.images, found.parts, found.devices) == (1, 1, (made.ARCH,))
    assert found.functions == len(look(made.library()).functions) >= 9
    assert main(("verify", str(path))) == 0
    assert capsys.readouterr().out.startswith(f"{path}: OK: ")
    assert verify(path.read_bytes()) == found
    assert main(("verify", str(FLAT / "artifact-v1.bin"))) == 0


def test_bytes_that_are_read_are_counted(path: Path) -> None:
    seen: list[tuple[int, int]] = []
    verify(path, lambda done, total: seen.append((done, total)))
    assert seen[-1] == (1203, 1203)


def test_every_flip_is_found(path: Path) -> None:
    whole = path.read_bytes()
    chance = random.Random(3)
    for _ in range(300):
        damaged = bytearray(whole)
        damaged[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        with pytest.raises(FormatError):
            verify(damaged)


def test_damage_is_placed(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damaged = bytearray(path.read_bytes())
    damaged[damaged.index(WEIGHT) + 700] ^= 1
    path.write_bytes(damaged)
    assert main(("verify", str(path))) == 1
    assert f"rig: {path}: byte {damaged.index(WEIGHT[:600])} of 1200 (weight 'floats')" in capsys.readouterr().err
    path.write_bytes(damaged[:-9])
    assert main(("verify", str(path))) == 1
    assert capsys.readouterr().err.startswith(f"rig: {path}: ")


def test_the_zips_own_checksums(path: Path) -> None:
    """A file that is whole but for the CRC-32s, which only other tools look at when they unpack it."""
    whole = bytearray(path.read_bytes())
    member = archive.members_of(bytes(whole[-4096:]), len(whole))[0]
    start, size = member_place(whole, b"signature.json")
    crc = zlib.crc32(whole[start : start + size]).to_bytes(4, "little")
    assert crc == member.crc32.to_bytes(4, "little")
    assert whole.count(crc) == 2
    wrong = bytes(whole).replace(crc, b"\1\2\3\4")
    assert rig.open(wrong) is not None
    with pytest.raises(FormatError, match=r"signature\.json, the zip's CRC-32: the checksum is .*, expected 04030201"):
        verify(wrong)


def member_place(whole: bytearray, name: bytes) -> tuple[int, int]:
    at = whole.index(name) - 30
    extra = int.from_bytes(whole[at + 28 : at + 30], "little")
    return at + 30 + len(name) + extra, int.from_bytes(whole[at + 22 : at + 26], "little")


def saved(tmp_path: Path, program: Program, one: made.Made) -> Path:
    save(tmp_path / "bad.rig", program, one.signature, one.weights)
    return tmp_path / "bad.rig"


def test_a_program_that_breaks_a_rule(tmp_path: Path) -> None:
    one = made.add_one(4)
    loop = Loop(Fixed(1), one.program.steps, trip=5)  # type: ignore[arg-type]
    bad = saved(tmp_path, msgspec.structs.replace(one.program, steps=(loop,)), one)
    with pytest.raises(FormatError, match=r"bad\.rig: program\.rig: steps\[0\].*5"):
        verify(bad)


def test_a_launch_of_what_is_not_there(tmp_path: Path) -> None:
    one = made.add_one(4)
    step = made.step(made.launch("absent", 2, 4), slots=(1, 0))
    bad = saved(tmp_path, msgspec.structs.replace(one.program, steps=(step,)), one)
    with pytest.raises(
        FormatError,
        match=r"bad\.rig: program\.rig: steps\[0\]\.parts\[0\] \(launch of 'absent'\): images\[0\] has no such",
    ):
        verify(bad)


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ("in", r"input 'x' \(position 0\): the program writes it"),
        ("out", r"output 'y' \(position 0\): the program does not write it"),
    ],
)
def test_a_signature_that_does_not_fit(tmp_path: Path, wrong: str, what: str) -> None:
    one = made.add_one(4)
    parts = (made.copy(0, 1, 16), made.copy(1, 0, 16)) if wrong == "in" else (made.launch("nothing", 2, 1, written=0),)
    bad = saved(tmp_path, msgspec.structs.replace(one.program, steps=(made.step(*parts, slots=(0, 1)),)), one)
    with pytest.raises(FormatError, match=what):
        verify(bad)


def test_code_for_another_processor_is_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    one = made.same_and_next()
    other = msgspec.structs.replace(one.program, devices=("arm64+bf16",) if made.ARCH != "arm64" else ("x86-64-v4",))
    path = saved(tmp_path, other, one)
    assert verify(path).devices == other.devices
    assert main(("verify", str(path))) == 0
    assert "does not run" in capsys.readouterr().out


def flat_file(tmp_path: Path, image: bytes) -> Path:
    return saved(tmp_path, Program((made.ARCH,), (), (Image(0, Data(image)),)), made.Made({}, {}))


def test_flat_images(tmp_path: Path) -> None:
    image = made.flat_image(made.ARCH)
    assert look(image) == ("flat", made.ARCH, 48, {"f0": 16, "f10": 16})
    assert verify(flat_file(tmp_path, image)).functions == 2
    with pytest.raises(
        FormatError, match=rf"images\[0\]: its code needs x86-64-v9, but device 0 is one of {made.ARCH}"
    ):
        verify(flat_file(tmp_path, made.flat_image("x86-64-v9")))


def test_flat_images_that_are_damaged(tmp_path: Path) -> None:
    image = made.flat_image(made.ARCH)
    for at in range(8, len(image)):
        damaged = bytearray(image)
        damaged[at] ^= 4
        if 44 <= at < 48 or 52 <= at < 64:  # the loader looks at these
            continue
        try:
            found = look(bytes(damaged))
        except FormatError:
            continue
        assert 32 <= at < 44, at  # where the name of the arch lies in the strings, and how many there are
        assert found.requires != made.ARCH or at < 36
    for size in range(8, len(image)):
        with pytest.raises(FormatError):
            look(image[:size])
    damaged = bytearray(image)
    damaged[-20] ^= 1
    with pytest.raises(FormatError, match=r"bad\.rig: program\.rig: images\[0\]: byte 48: the checksum is"):
        verify(flat_file(tmp_path, bytes(damaged)))
    with (
        pytest.raises(FormatError, match=r"bad\.rig: program\.rig: images\[0\]: byte 48: the checksum is"),
        Artifact(tmp_path / "bad.rig") as artifact,
    ):
        summary(artifact)


def test_shared_libraries_and_other_images() -> None:
    found = look(made.library())
    assert (found.kind, found.requires) == ("shared library", "")
    assert found.functions["add_one_f32"] > 0
    assert look(b"SPIR-V, perhaps") == ("of another kind", "", 15, {})
    with pytest.raises(FormatError, match="lead nowhere"):
        look(made.library()[:100])


@pytest.mark.parametrize(
    ("notes", "what"),
    [
        ({"kernels": 3}, "notes.kernels: it is 3"),
        ({"kernels": [{}]}, "'symbol' is missing"),
        ([], "expected an object"),
    ],
)
def test_notes_that_are_none_are_found_when_they_are_asked_for(tmp_path: Path, notes: Any, what: str) -> None:
    """A model loads all the same: no run depends on notes."""

    class Wrong(Notes):
        def to_json(self) -> Any:
            return notes

    one = made.add_one(4)
    save(tmp_path / "bad.rig", one.program, one.signature, one.weights, notes=Wrong())
    assert rig.open(tmp_path / "bad.rig").signature == one.signature
    with (
        Artifact(tmp_path / "bad.rig") as artifact,
        pytest.raises(FormatError, match=f"bad.rig: manifest.json: .*{what}"),
    ):
        assert artifact.notes
    with pytest.raises(FormatError, match=f"bad.rig: manifest.json: .*{what}"):
        verify(tmp_path / "bad.rig")
