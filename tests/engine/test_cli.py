"""`rig compile`, the progress bar, and the names of the package."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
import time
from argparse import ArgumentParser
from pathlib import Path

import pytest

import rig
import tolk_engine
from rig.errors import Invalid, Refused
from tolk_engine import progress
from tolk_engine.cli import register

onnx = pytest.importorskip("onnx")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write ``y = x * 2 + 1`` over floats of shape (n, 3), n open."""
    helper, types = onnx.helper, onnx.TensorProto
    constants = [helper.make_tensor(n, types.FLOAT, [], [v]) for n, v in (("two", 2.0), ("one", 1.0))]
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "two"], ["t"]), helper.make_node("Add", ["t", "one"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", types.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("y", types.FLOAT, ["n", 3])],
        constants,
    )
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(made.SerializeToString())
    return path


def command(*args: str) -> int | None:
    parser = ArgumentParser("rig compile")
    run = register(parser)
    return run(parser.parse_args(list(args)))


def test_an_onnx_file_becomes_a_model(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "model.rig"
    assert not command(str(model), "-o", str(out), "--shape", "x=2x3", "--target", "x86-64-v2")
    text = capsys.readouterr()
    assert f"{out}: 1 kernels for x86-64-v2, " in text.out
    assert text.err == ""  # not a terminal
    opened = rig.open(out)
    (x,) = opened.signature.inputs
    assert (x.name, x.shape, opened.signature.target) == ("x", (2, 3), "x86-64-v2")
    numpy = pytest.importorskip("numpy")
    result = opened(numpy.arange(6, dtype=numpy.float32).reshape(2, 3))
    assert result.tolist() == [[1, 3, 5], [7, 9, 11]]


def test_quiet_prints_nothing_and_the_bytes_are_the_same(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / "a", tmp_path / "b"]
    for file, jobs in zip(files, ("1", "2"), strict=True):
        command(str(model), "-o", str(file), "--shape", "x=1x3", "--quiet", "--jobs", jobs)
    assert capsys.readouterr() == ("", "")
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("shape", ["x", "=1x2", "x=1xtwo", "x=-2x3", "x=1x"])
def test_a_shape_that_is_none_is_refused_by_the_parser(shape: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command("m.onnx", "-o", "out", "--shape", shape)
    assert ended.value.code == 2
    assert "is no shape; write NAME=1x2048" in capsys.readouterr().err


def test_what_is_wrong_leaves_no_file(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "model.rig"
    with pytest.raises(Invalid, match="arch 'x86-64-v9' is unknown"):
        command(str(model), "-o", str(out), "--target", "x86-64-v9")
    with pytest.raises(Invalid, match="--shape x is given twice"):
        command(str(model), "-o", str(out), "--shape", "x=1x3", "--shape", "x=2x3")
    with pytest.raises(OSError, match="nowhere"):
        command(str(tmp_path / "nowhere.onnx"), "-o", str(out))
    assert list(tmp_path.iterdir()) == []


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command("--help")
    assert ended.value.code == 0
    assert "rig compile model.onnx -o model.rig" in capsys.readouterr().out


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_the_bar_draws_on_a_terminal_and_leaves_a_clean_line() -> None:
    stream = Terminal()
    with progress.bar(stream=stream) as bar:
        bar(0, 10, "start")
        for i in range(1, 10):
            bar(i, 10, "too soon to draw")
        bar(10, 10, "done")
    text = stream.getvalue()
    assert "] 0/10 start" in text and "] 10/10 done" in text
    assert "5/10" not in text
    assert text.endswith("\r") and "\n" not in text


def test_a_step_of_unknown_length_shows_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tolk_engine.progress._TICK", 0.01)
    stream = Terminal()
    before = threading.active_count()
    with progress.bar(stream=stream) as bar:
        with bar.during("reading"):
            time.sleep(0.3)
        assert threading.active_count() == before
        with pytest.raises(Refused), bar.during("failing"):
            raise Refused("no")
    assert threading.active_count() == before
    assert stream.getvalue().count("\rreading, 0 s") > 3
    assert stream.getvalue().endswith(" \r")


def test_the_bar_cleans_up_when_the_work_fails() -> None:
    stream = Terminal()
    with pytest.raises(Refused), progress.bar(stream=stream) as bar:
        bar(1, 2, "half")
        raise Refused("no")
    assert stream.getvalue().endswith(" \r")


@pytest.mark.parametrize(("stream", "quiet"), [(io.StringIO(), False), (Terminal(), True)])
def test_the_bar_is_silent_elsewhere(stream: io.StringIO, quiet: bool) -> None:
    with progress.bar(stream=stream, quiet=quiet) as bar:
        bar(0, 1, "x")
        bar(1, 1, "x")
        with bar.during("x"):
            pass
    assert stream.getvalue() == ""


def test_the_package_gives_its_names_and_imports_no_compiler() -> None:
    code = (
        "import sys, tolk_engine as t, tolk_engine.target, tolk_engine.link, tolk_engine.compile\n"
        "assert all(callable(getattr(t, n)) for n in ('compile', 'link', 'target', 'renderer', 'run', 'slots'))\n"
        "found = [m for m in ('tinygrad', 'llvmlite', 'numpy', 'onnx') if m in sys.modules]\n"
        "assert not found, found\n"
        "assert set(t.__all__) == set(dir(t))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert tolk_engine.capture is not None
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = tolk_engine.nonsense  # type: ignore[attr-defined]


def test_a_package_that_is_missing_is_named() -> None:
    code = (
        "import sys; sys.modules['tinygrad'] = None\n"
        "import tolk_engine, rig\n"
        "try: tolk_engine.capture\n"
        "except rig.Refused as e: print(e)"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert "capture needs a package that is not here" in done.stdout
    assert "pip install 'rig-runtime[tolk]'" in done.stdout
