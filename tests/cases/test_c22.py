"""C22: formats have versions of their own; others are refused with both numbers, and what is no artifact says so."""

from __future__ import annotations

import io
import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import made
import numpy as np
import pytest

import rig
from rig import _core
from rig.errors import FormatError, Refused
from rig.model import Artifact, save
from rig.model import signature as signatures
from rig.program import of_bytes, to_bytes

pytestmark = pytest.mark.case("C22")
GOLDEN = Path(__file__).parents[1] / "compat" / "golden"
WEIGHT = np.arange(1, 300, dtype="float32")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("c22") / "model.rig"
    made.times_weight(WEIGHT.tobytes(), b"abc").save(path)
    return path.read_bytes()


@pytest.mark.parametrize("version", [0, 2, 9])
def test_another_version_of_the_file(whole: bytes, version: int, tmp_path: Path) -> None:
    other = whole.replace(b"rig artifact format 1 ", b"rig artifact format %d " % version)
    path = tmp_path / "model.rig"
    path.write_bytes(other)
    advice = "open it with a newer rig" if version > 1 else "compile the model again"
    for source in (path, other):
        with pytest.raises(FormatError, match=f"format {version}, this rig reads format 1: .*{advice}"):
            rig.open(source)


@pytest.mark.parametrize("version", [0, 2])
def test_another_version_of_the_signature(version: int) -> None:
    data = signatures.to_bytes(made.add_one().signature)
    found = json.loads(data)
    found["format"] = version
    found["a field of the future"] = 1
    with pytest.raises(FormatError, match=f"format {version}, this rig reads format 1"):
        signatures.of_bytes(json.dumps(found).encode())


@pytest.mark.parametrize("version", [0, 2])
def test_another_version_of_the_program(version: int) -> None:
    data = bytearray(to_bytes(made.add_one().program))
    data[8:12] = version.to_bytes(4, "little")
    with pytest.raises(FormatError, match=f"byte 8: version {version} of the format; only version 1 is read here"):
        of_bytes(bytes(data))


@pytest.mark.parametrize("version", [0, 2])
def test_another_version_of_a_flat_image(version: int) -> None:
    data = bytearray(made.flat_image(made.ARCH))
    data[8:12] = version.to_bytes(4, "little")
    data[48:52] = _core.crc32c(data[64:]).to_bytes(4, "little")
    with pytest.raises(Refused, match=f"version.*{version}.*1|1.*{version}"):
        rig.Image.load(rig.host(), bytes(data))


def test_all_golden_files_open() -> None:
    for path in GOLDEN.glob("artifact-v*.bin"):
        with Artifact(path) as artifact:
            assert artifact.signature.format == 1
        if made.ARCH.startswith("x86"):
            assert rig.open(path).signature == artifact.signature


def saved_again(artifact: Artifact, path: Path) -> bytes:
    weights = []
    for weight in artifact.weights:
        data = bytearray(artifact.initial[weight.memory].nbytes)
        artifact.initial[weight.memory].read_into(memoryview(data))
        weights.append((weight, data))
    save(path, artifact.program, artifact.signature, weights, notes=artifact.notes)
    return path.read_bytes()


@pytest.mark.parametrize("name", ["artifact-v1.bin", "artifact-v1-notes.bin", ""])
def test_save_load_save_gives_the_same_bytes(tmp_path: Path, whole: bytes, name: str) -> None:
    first = (GOLDEN / name).read_bytes() if name else whole
    with Artifact(first) as artifact:
        second = saved_again(artifact, tmp_path / "second.rig")
    assert second == first
    with Artifact(second) as artifact:
        assert saved_again(artifact, tmp_path / "third.rig") == first


def test_compiling_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    tolk_engine: Any = pytest.importorskip("tolk_engine")
    tinygrad = pytest.importorskip("tinygrad")
    for name in ("a", "b"):
        w = tinygrad.Tensor(np.arange(48, dtype="float32").reshape(12, 4), device="CPU")
        schedule = tolk_engine.capture(lambda x, w=w: (x @ w).relu() + x.sum(), tolk_engine.Spec((3, 12)))
        tolk_engine.compile(schedule, "x86-64-v2", jobs=1).save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


class Spring:
    """A pickle of this leaves a file behind when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return (open, (str(self.path), "w"))


def others(tmp_path: Path) -> dict[str, tuple[bytes, str]]:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("data.pkl", pickle.dumps(Spring(tmp_path / "sprung")))
    image = b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + b"IHDR" + bytes(100)
    return {
        "nothing": (b"", "there are no bytes"),
        "text": (b"a model, one would think\n" * 30, "text"),
        "an image": (image, "a PNG image"),
        "a pickle": (pickle.dumps(Spring(tmp_path / "sprung")), "a pickle"),
        "a zip of a pickle": (archive.getvalue(), "a zip of another kind"),
        "a program alone": (to_bytes(made.add_one().program), "unknown data that starts with 93 52 49 47"),
        "an .npy file": (b"\x93NUMPY\1\0" + bytes(100), "a NumPy array"),
        "zeros": (bytes(5000), "unknown data that starts with 00 00 00 00"),
    }  # fmt: skip


@pytest.mark.parametrize("kind", list(others(Path())))
def test_what_is_no_artifact(tmp_path: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    from rig.cli import main

    data, said = others(tmp_path)[kind]
    path = tmp_path / "other"
    path.write_bytes(data)
    for source in (path, data):
        with pytest.raises(FormatError, match=f"not a rig artifact: .*{said}"):
            rig.open(source)
    for command in ("run", "inspect", "verify", "bench"):
        assert main((command, str(path))) == 1
        assert f"rig: {path}: not a rig artifact: " in capsys.readouterr().err
    assert not (tmp_path / "sprung").exists()
