"""``python -m tolk_engine check`` names what is there, and the command that brings what is missing."""

from __future__ import annotations

import subprocess
import sys

import pytest


def run(*hidden: str, words: tuple[str, ...] = ("check",), **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a process that cannot import some packages."""
    script = f"import sys; sys.modules.update(dict.fromkeys({hidden!r})); sys.argv = ['', *{words!r}]\n"
    script += "import runpy; runpy.run_module('tolk_engine', run_name='__main__')"
    import os

    variables = {**os.environ, **environment}
    return subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=100, check=False, env=variables
    )


def test_all_is_there() -> None:
    done = run(RIG_CACHE="0")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if not line.startswith(" "))
    assert lines["tinygrad"].startswith("0.14.0") and lines["llvmlite"].startswith("llvmlite 0.50")
    assert lines["cache"] == "off: RIG_CACHE switches it off"
    assert lines["rig"].split()[-1].startswith(("x86-64-v", "arm64"))


@pytest.mark.parametrize(
    ("hidden", "get", "code"),
    [
        ("tinygrad", "pip install 'rig-runtime[tolk]'", 1),
        ("llvmlite", "pip install 'rig-runtime[tolk]'", 1),
        ("onnx", "pip install 'rig-runtime[onnx]', for ONNX files", 0),
    ],
)
def test_what_is_missing_is_named_with_its_command(hidden: str, get: str, code: int) -> None:
    done = run(hidden)
    assert done.returncode == code, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    (at,) = [i for i, line in enumerate(lines) if line.startswith(hidden)]
    assert "not usable" in lines[at] and lines[at + 1].strip() == get


def test_no_clang_is_no_fault() -> None:
    done = run(RIG_CLANG="/nowhere/clang")
    assert done.returncode == 0
    assert "RIG_CLANG is '/nowhere/clang', which is no clang" in done.stdout


def test_another_word_is_no_command() -> None:
    done = run(words=("chek",))
    assert done.returncode == 1 and done.stderr.strip() == "usage: python -m tolk_engine check"
