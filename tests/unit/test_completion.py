"""The bash script completes commands, options, their words, and files."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from rig.cli import main, own_command, own_commands
from rig.cli.manual import bash, parser_of

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
SCRIPT = bash({name: parser_of(name, own_command(name)) for name in own_commands()})


def completed(folder: Path, *words: str) -> list[str]:
    """Return what bash would offer for the last of `words`."""
    listed = " ".join(f"'{word}'" for word in ("rig", *words))
    code = f"{SCRIPT}\nCOMP_WORDS=({listed})\nCOMP_CWORD={len(words)}\n_rig\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"\n"
    done = subprocess.run(["bash", "-c", code], cwd=folder, capture_output=True, text=True, check=True, timeout=30)
    assert done.stderr == ""
    return [line for line in done.stdout.splitlines() if line]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("model.rig", "my file.npy", "other"):
        (tmp_path / name).touch()
    return tmp_path


def test_commands(folder: Path) -> None:
    assert completed(folder, "") == [*own_commands(), "--help", "--version"]
    assert completed(folder, "in") == ["inspect"]


def test_options(folder: Path) -> None:
    assert completed(folder, "inspect", "--") == ["--all", "--debug", "--help", "--json", "--svg"]
    assert completed(folder, "run", "model.rig", "--out") == ["--output", "--output-dir"]


def test_values(folder: Path) -> None:
    assert completed(folder, "run", "--layout", "") == ["NCHW", "NHWC"]
    assert completed(folder, "run", "--threads", "") == []
    assert completed(folder, "completion", "") == ["bash"]
    assert completed(folder, "bench", "m.rig", "--against", "") == ["onnx"]


def test_files(folder: Path) -> None:
    for words in (("verify", "m"), ("run", "model.rig", "--output-dir", "m"), ("run", "--input", "x", "=", "m")):
        assert sorted(completed(folder, *words)) == ["model.rig", "my file.npy"]
    assert sorted(completed(folder, "run", "model.rig", "-i", "x", "=")) == ["model.rig", "my file.npy", "other"]
    assert completed(folder, "bench", "m.rig", "--against", "onnx", "o") == ["other"]


def test_the_command_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("completion", "bash")) == 0
    text = capsys.readouterr().out
    assert subprocess.run(["bash", "-n"], input=text, text=True, check=False, timeout=30).returncode == 0
    assert text.endswith("complete -F _rig rig\n")
    assert main(("completion", "fish")) == 2
