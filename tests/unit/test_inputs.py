"""Inputs from .npz files and images, for `rig run` and `rig bench`."""

from __future__ import annotations

import builtins
import sys
import zipfile
from pathlib import Path
from typing import Any

import made
import numpy as np
import pytest

from rig.cli import main
from rig.errors import FormatError
from rig.model.npz import Npz

IMAGE = np.arange(48, dtype="float32").reshape(1, 3, 4, 4)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made.scaled_image().save(tmp_path / "model.rig")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def result(*args: str) -> np.ndarray:
    assert main(("run", "model.rig", *args, "--output", "result=out.npy")) == 0
    return np.load("out.npy")


# .npz


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_an_npz_file_gives_all_inputs(folder: Path, save: Any) -> None:
    save("inputs.npz", image=np.asfortranarray(IMAGE).astype(">f4"), scale=np.float64(2))
    assert np.array_equal(result("--input", "inputs.npz"), IMAGE * 2)
    assert np.array_equal(result("-i", "image=inputs.npz", "-i", "scale=inputs.npz"), IMAGE * 2)
    save("one.npz", np.float64(3))
    assert np.array_equal(result("-i", "image=inputs.npz", "-i", "scale=one.npz"), IMAGE * 3)


def test_npz_agrees_with_numpy(tmp_path: Path) -> None:
    arrays = {"a/b": np.arange(5), "größe": np.ones((2, 0)), "x.npy": np.array(3.5), "long" * 50: np.zeros(100_000)}
    for save in (np.savez, np.savez_compressed):
        save(tmp_path / "many.npz", **arrays)
        found = Npz(str(tmp_path / "many.npz"))
        assert sorted(found.names) == sorted(np.load(tmp_path / "many.npz").files)
        with zipfile.ZipFile(tmp_path / "many.npz") as other:
            for name in found.names:
                assert found.read(name) == other.read(f"{name}.npy")


def test_an_empty_npz_and_a_commented_one(tmp_path: Path) -> None:
    np.savez(tmp_path / "empty.npz")
    assert Npz(str(tmp_path / "empty.npz")).names == ()
    with zipfile.ZipFile(tmp_path / "noted.npz", "w") as file:
        file.comment = b"a remark"
        file.writestr("x.npy", b"12345")
    assert Npz(str(tmp_path / "noted.npz")).read("x") == b"12345"


def test_damaged_npz_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez_compressed(path, x=np.arange(1000), y=np.arange(10))
    whole = path.read_bytes()
    arrays = {Npz(str(path)).read(name) for name in ("x", "y")}
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        with pytest.raises(FormatError, match=r"x\.npz"):
            [Npz(str(path)).read(name) for name in ("x", "y")]
    for at in range(0, len(whole), 3):
        damaged = bytearray(whole)
        damaged[at] ^= 0x10
        path.write_bytes(damaged)
        try:
            found = Npz(str(path))
            data = {name: found.read(name) for name in found.names}
        except FormatError:
            continue
        assert set(data.values()) <= arrays  # a flip in a name, or in what is not read


def test_packed_by_another_method(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_BZIP2) as file:
        file.writestr("x.npy", b"12345")
    with pytest.raises(FormatError, match=r"x\.npz: x: it is packed by method 12; stored and deflated members"):
        Npz(str(tmp_path / "x.npz")).read("x")


@pytest.mark.parametrize(
    ("arrays", "args", "message"),
    [
        (
            {"imagee": IMAGE}, ("-i", "in.npz"),
            "in.npz: 'imagee' is no input of the model; the inputs are image, scale; did you mean 'image'?",
        ),
        ({"a": IMAGE, "b": IMAGE}, ("-i", "image=in.npz"), "in.npz has no array of that name; it has a, b"),
        ({"image": IMAGE}, ("-i", "in.npz"), "input 'scale' (position 1): expected float64 of shape (), but it is mis"),
        ({"scale": np.int64(2)}, ("-i", "in.npz"), "found int64 of shape () in in.npz (scale)"),
        ({"image": IMAGE}, ("-i", "in.npz", "-i", "image=in.npz"), "input 'image' is given twice: in.npz and in.npz"),
        (None, ("-i", "in.npz"), "rig: in.npz: No such file or directory"),
        (b"PK no", ("-i", "in.npz"), "in.npz: no .npz file, or one that was cut"),
    ],
)  # fmt: skip
def test_npz_files_that_do_not_fit(
    folder: Path, capsys: pytest.CaptureFixture[str], arrays: Any, args: tuple[str, ...], message: str
) -> None:
    if isinstance(arrays, bytes):
        Path("in.npz").write_bytes(arrays)
    elif arrays is not None:
        np.savez("in.npz", **arrays)
    assert main(("run", "model.rig", *args)) == 1
    assert message in capsys.readouterr().err


# Images.


PIXELS = np.arange(48, dtype="uint8").reshape(4, 4, 3) * 5


def echo(dtype: str, shape: tuple[int, ...]) -> None:
    kind = (dtype, shape)
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    made.Made({"x": kind}, {"y": kind}, made.step(made.copy(0, 1, size), slots=(0, 1))).save(Path("echo.rig"))


def shown(*args: str) -> np.ndarray:
    assert main(("run", "echo.rig", "--input", "x=image.png", *args, "--output", "y=y.npy")) == 0
    return np.load("y.npy")


@pytest.fixture
def image(folder: Path) -> None:
    pillow = pytest.importorskip("PIL.Image")
    pillow.fromarray(PIXELS).save("image.png")


@pytest.mark.usefixtures("image")
def test_layouts_and_scales() -> None:
    echo("float32", (1, 3, 4, 4))
    assert np.array_equal(shown(), PIXELS.transpose(2, 0, 1)[None].astype("float32"))
    assert np.array_equal(shown("--scale", "255"), (PIXELS.transpose(2, 0, 1)[None] / 255).astype("float32"))
    echo("float16", (4, 4, 3))
    assert np.array_equal(shown("--layout", "NHWC", "--scale", "2"), (PIXELS / 2).astype("float16"))
    echo("uint8", (1, 4, 4, 3))
    assert np.array_equal(shown("--layout", "NHWC"), PIXELS[None])
    echo("uint8", (4, 4, 4))
    assert np.array_equal(shown("--layout", "NHWC")[..., 3], np.full((4, 4), 255))
    echo("float64", (1, 1, 4, 4))
    assert shown().shape == (1, 1, 4, 4)


@pytest.mark.usefixtures("image")
@pytest.mark.parametrize(
    ("kind", "args", "message"),
    [
        (
            ("float32", (1, 3, 4, 5)), (),
            "an image of 5 x 4 pixels as NCHW, found 4 x 4 pixels in image.png; resize it first",
        ),
        (("float32", (1, 4, 4, 3)), (), "an image of 3 x 4 pixels as NCHW, found 4 x 4"),
        (("float32", (1, 4, 5, 3)), ("--layout", "NCHW"), "an image of 3 x 5 pixels as NCHW, found 4 x 4"),
        (("float32", (1, 7, 4, 4)), (), "which has 7 channels as NCHW; images have 1, 3 or 4 (see --layout)"),
        (("float32", (2, 3, 4, 4)), (), "which is no one image"),
        (("float32", (48,)), (), "which is no one image"),
        (("int32", (1, 3, 4, 4)), (), "divided by --scale are no int32; float types can hold them"),
        (("uint8", (1, 3, 4, 4)), ("--scale", "255"), "divided by --scale are no uint8"),
    ],
)  # fmt: skip
def test_images_that_do_not_fit(
    capsys: pytest.CaptureFixture[str], kind: tuple[str, tuple[int, ...]], args: tuple[str, ...], message: str
) -> None:
    echo(*kind)
    assert main(("run", "echo.rig", "--input", "x=image.png", *args)) == 1
    err = capsys.readouterr().err
    assert err.startswith("rig: input 'x' (position 0): ")
    assert message in err


@pytest.mark.usefixtures("image")
def test_what_is_no_image(capsys: pytest.CaptureFixture[str]) -> None:
    echo("float32", (1, 3, 4, 4))
    Path("image.png").write_bytes(b"text")
    assert main(("run", "echo.rig", "--input", "x=image.png")) == 1
    assert capsys.readouterr().err == "rig: input 'x' (position 0): image.png is no image that pillow reads\n"


def test_without_pillow(folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    real = builtins.__import__

    def importing(name: str, *more: Any, **named: Any) -> Any:
        if name == "PIL":
            raise ImportError("no PIL")
        return real(name, *more, **named)

    monkeypatch.setattr(builtins, "__import__", importing)
    echo("float32", (1, 3, 4, 4))
    assert main(("run", "echo.rig", "--input", "x=image.png")) == 1
    assert capsys.readouterr().err == (
        "rig: image.png: reading images needs the package pillow: pip install 'rig-runtime[images]'\n"
    )


@pytest.mark.parametrize("scale", ["0", "x", "nan"])
def test_no_scale(scale: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("run", "model.rig", "--scale", scale)) == 2
    assert f"{scale!r} is no number to divide by" in capsys.readouterr().err


def test_plain_runs_import_none_of_this(folder: Path) -> None:
    np.save("image.npy", IMAGE)
    np.save("scale.npy", np.float64(1))
    for name in ("rig.model.npz", "rig.cli.photo"):
        sys.modules.pop(name, None)
    assert result("-i", "image=image.npy", "-i", "scale=scale.npy").shape == IMAGE.shape
    assert {"rig.model.npz", "rig.cli.photo"} & sys.modules.keys() == set()
