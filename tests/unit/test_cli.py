"""The `rig` command: what it prints, what it writes, and how it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import made
import numpy as np
import pytest

import rig
import rig.cli
from rig.cli import main

IMAGE = np.arange(48, dtype="float32").reshape(1, 3, 4, 4)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made.scaled_image().save(tmp_path / "model.rig")
    made.same_and_next().save(tmp_path / "pair.rig")
    np.save(tmp_path / "image.npy", IMAGE)
    np.save(tmp_path / "scale.npy", np.float64(2))
    np.save(tmp_path / "x.npy", np.array([1, 2, 3, 4], "float32"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


RUN = ("run", "model.rig", "--input", "image=image.npy", "--input", "scale=scale.npy")


def test_run_prints_the_outputs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(RUN) == 0
    assert capsys.readouterr().out.splitlines() == [
        "result: float32 (1, 3, 4, 4)", "  0.0 2.0 4.0 6.0 8.0 10.0 12.0 14.0 ... (48 values)",
        "  min 0.0, max 94.0, argmax 47",
    ]  # fmt: skip
    assert main(("run", "pair.rig", "-i", "x=x.npy")) == 0
    assert capsys.readouterr().out.splitlines() == [
        "same: float32 (4,)", "  [1.0, 2.0, 3.0, 4.0]", "next: float32 (4,)", "  [2.0, 3.0, 4.0, 5.0]",
    ]  # fmt: skip


def test_run_reads_plain_bytes(folder: Path) -> None:
    (folder / "image.bin").write_bytes(IMAGE.tobytes())
    assert main((*RUN[:3], "image=image.bin", *RUN[4:], "--output", "result=out.npy")) == 0
    assert np.array_equal(np.load("out.npy"), IMAGE * 2)


def test_run_reads_arrays_in_any_order(folder: Path) -> None:
    np.save("image.npy", np.asfortranarray(IMAGE).astype(">f4"))
    assert main((*RUN, "--output", "result=out.npy")) == 0
    assert np.array_equal(np.load("out.npy"), IMAGE * 2)


def test_run_writes_outputs(folder: Path) -> None:
    assert main(("run", "pair.rig", "-i", "x=x.npy", "-o", "next=next.bin", "-o", "same=same.npy")) == 0
    assert np.fromfile("next.bin", "float32").tolist() == [2, 3, 4, 5]
    assert np.load("same.npy").tolist() == [1, 2, 3, 4]
    assert main(("run", "pair.rig", "-i", "x=x.npy", "--output-dir", "deep/results")) == 0
    assert np.load("deep/results/next.npy").tolist() == [2, 3, 4, 5]
    assert sorted(path.name for path in Path("deep/results").iterdir()) == ["next.npy", "same.npy"]


def test_outputs_stay_in_their_folder(folder: Path) -> None:
    kind = ("float32", (4,))
    made.Made(
        {"a=b": kind}, {"../up": kind, "/root": kind, ".": kind},
        made.step(*(made.copy(0, i, 16) for i in (1, 2, 3)), slots=(0, 1, 2, 3)),
    ).save(Path("odd.rig"))  # fmt: skip
    assert main(("run", "odd.rig", "-i", "a=b=x.npy", "--output-dir", "results")) == 0
    assert sorted(path.name for path in Path("results").iterdir()) == ["_root.npy", "_up.npy", "output.npy"]


FAILURES: list[tuple[tuple[str, ...], str]] = [
    (("run", "none.rig"), "rig: none.rig: No such file or directory"),
    (("run", "image.npy"), "rig: image.npy: not a rig artifact: it looks like a NumPy array"),
    (RUN[:4], "rig: input 'scale' (position 1): expected float64 of shape (), but it is missing"),
    (
        (*RUN[:3], "imagee=image.npy"),
        "rig: 'imagee' is no input of the model; the inputs are image, scale; did you mean 'image'?",
    ),
    (
        (*RUN, "--output", "resul=x"),
        "rig: 'resul' is no output of the model; the outputs are result; did you mean 'result'?",
    ),
    ((*RUN, "--input", "scale=x.npy"), "rig: input 'scale' is given twice: scale.npy and x.npy"),
    (
        (*RUN[:3], "image=x.npy", *RUN[4:]),
        "rig: input 'image' (position 0): expected float32 of shape (1, 3, 4, 4), "
        "found float32 of shape (4,) in x.npy: 1 axes where 4 are expected",
    ),
    (
        (*RUN[:3], "image=model.rig", *RUN[4:]),
        "rig: input 'image' (position 0): expected float32 of shape (1, 3, 4, 4), 192 bytes, found ",
    ),
    ((*RUN[:3], "image=none.npy"), "rig: none.npy: No such file or directory"),
    ((*RUN, "--output", "result=none/out.npy"), "rig: none/out.npy: No such file or directory"),
    ((*RUN, "--threads", "0"), "rig: threads is 0"),
]  # fmt: skip


@pytest.mark.parametrize(("args", "message"), FAILURES)
def test_a_failure_is_one_line_and_1(
    folder: Path, capsys: pytest.CaptureFixture[str], args: tuple[str, ...], message: str
) -> None:
    assert main(args) == 1
    err = capsys.readouterr().err
    assert err.startswith(message)
    assert err.count("\n") == 1


def test_debug_shows_the_traceback(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("run", "none.rig", "--debug")) == 1
    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((), "a command is needed"),
        (("--bogus",), "unknown option --bogus"),
        (("ruh",), "'ruh' is no command; did you mean 'run'? The commands are "),
        (("run",), "the following arguments are required: model"),
        (("run", "model.rig", "--inputs", "a=b"), "unrecognized arguments: --inputs"),
        (("run", "model.rig", "--input", "ab"), "'ab' is not NAME=FILE"),
        (("run", "model.rig", "--input", "=ab"), "'=ab' is not NAME=FILE"),
        (("run", "model.rig", "--threads", "x"), "invalid int value: 'x'"),
        (("run", "model.rig", "--output", "a=b", "--output-dir", "c"), "not allowed with argument"),
        (("devices", "extra"), "unrecognized arguments: extra"),
    ],
)
def test_wrong_usage_is_2(capsys: pytest.CaptureFixture[str], args: tuple[str, ...], message: str) -> None:
    assert main(args) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("--version",)) == 0
    assert capsys.readouterr().out == f"rig {rig.__version__}\n"
    for flag in ("--help", "-h"):
        assert main((flag,)) == 0
        text = capsys.readouterr().out
        assert "  run         Run a model on files and print its outputs." in text
        assert "  devices     List the devices of this machine." in text
        assert "rig run model.rig --input image=image.npy" in text
    for command in rig.cli.own_commands():
        assert main((command, "--help")) == 0
        assert "example" in capsys.readouterr().out


def test_devices(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("devices",)) == 0
    host = rig.host()
    line = capsys.readouterr().out.splitlines()[0]
    assert line.startswith(f"{host.name}: host, {host.arch} ({host.instruction_set}), {host.cores} core")
    assert "aligned to" in line


# Other packages' commands.


def register(parser: ArgumentParser) -> Callable[[Namespace], int | None]:
    """Greet somebody."""
    parser.add_argument("name")
    return greet


def greet(space: Namespace) -> int | None:
    if space.name == "interrupt":
        raise KeyboardInterrupt
    if space.name == "bug":
        raise ZeroDivisionError("a bug\nin two lines")
    print(f"hello {space.name}")
    return 7


@pytest.fixture
def greeting(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = (
        EntryPoint("greet", "test_cli:register", "rig.commands"),
        EntryPoint("broken", "no_such_package:register", "rig.commands"),
    )
    monkeypatch.setattr(rig.cli, "_entries", lambda: entries)


@pytest.mark.usefixtures("greeting")
def test_commands_of_other_packages(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("greet", "you")) == 7
    assert capsys.readouterr().out == "hello you\n"
    assert main(("--help",)) == 0
    text = capsys.readouterr().out
    assert "  greet       Greet somebody." in text
    assert "  broken      (not usable: No module named 'no_such_package')" in text
    assert "  run         Run a model" in text
    assert main(("broken",)) == 1
    assert capsys.readouterr().err == "rig: No module named 'no_such_package'\n"
    assert main(("gret",)) == 2
    assert (
        "did you mean 'greet'? The commands are bench, broken, completion, devices, greet, inspect, run, verify"
        in capsys.readouterr().err
    )


@pytest.mark.usefixtures("greeting")
def test_interrupts_and_bugs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("greet", "interrupt")) == 130
    assert capsys.readouterr() == ("", "")
    assert main(("greet", "bug")) == 1
    assert capsys.readouterr().err == "rig: ZeroDivisionError: a bug in two lines (--debug shows where)\n"


# As a process.


def process(*args: str, cwd: Path, **more: Any) -> subprocess.CompletedProcess[str]:
    code = "import sys; sys.path[:0] = eval(sys.argv.pop(1)); from rig.cli import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, repr(sys.path), *args],
        cwd=cwd, capture_output=True, text=True, check=False, timeout=60, **more,
    )  # fmt: skip


def test_a_process_says_how_it_ended(folder: Path) -> None:
    done = process(*RUN, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("result: float32")
    assert process("run", "none.rig", cwd=folder).returncode == 1
    assert process("run", cwd=folder).returncode == 2


def test_a_closed_pipe_is_quiet(folder: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    code = "import sys; sys.path[:0] = eval(sys.argv.pop(1)); from rig.cli import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, repr(sys.path), *RUN],
        cwd=folder, stdout=writer, stderr=subprocess.PIPE, text=True, check=False, timeout=60,
    )  # fmt: skip
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


def test_run_imports_neither_numpy_nor_the_engine(folder: Path) -> None:
    code = (
        "import sys; sys.path[:0] = eval(sys.argv.pop(1)); from rig.cli import main; code = main(); "
        "heavy = ('numpy', 'tinygrad', 'tolk_engine', 'zipfile', 'pathlib', 'importlib.metadata', 'dataclasses'); "
        "print([m for m in heavy if m in sys.modules]); sys.exit(code)"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", code, repr(sys.path), *RUN],
        cwd=folder, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
