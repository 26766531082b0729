"""The demonstration runs, and what it feeds the model is what a file's ends say."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples" / "demo"
RUN_PYTHON = ROOT / ".venv-run" / "bin" / "python"


@pytest.fixture(scope="module")
def features() -> ModuleType:
    spec = importlib.util.spec_from_file_location("demo_features", DEMO / "features.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        (b"", b"", b""),
        (b" \n ", b"", b""),
        (b"  ab \n", b"ab \n", b"  ab"),
        (b"x" * 1023 + b"yz", b"x" * 1023 + b"y", b"x" * 1022 + b"yz"),
        (b" " * 5000 + b"z", b"", b" " * 1023 + b"z"),
        (b"a" + b" " * 5000, b"a" + b" " * 1023, b""),
    ],
)
def test_features(features: ModuleType, tmp_path: Path, text: bytes, start: bytes, end: bytes) -> None:
    file = tmp_path / "file"
    file.write_bytes(text)
    found = features.features(file)
    assert found.dtype == np.int32
    assert found.tolist() == [[*start, *[256] * (1024 - len(start)), *[256] * (1024 - len(end)), *end]]


@pytest.mark.skipif(not RUN_PYTHON.exists(), reason="`make venv` makes the environment without a compiler")
@pytest.mark.spec("P-data-foreign-process")
@pytest.mark.timeout(600)
def test_the_demo_names_real_files_and_agrees_with_onnx_runtime(tmp_path: Path) -> None:
    command = [sys.executable, DEMO / "demo.py", "--run-python", RUN_PYTHON, "--out", tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, timeout=590, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    answers = dict(
        line.split()[:2] for line in done.stdout.splitlines() if line.startswith("  ") and line.split()[0].count(".")
    )
    assert answers["errors.py"] == "python"
    assert answers["crc32c.cc"] == "cpp"
    assert answers["pyproject.toml"] == "toml"
    assert answers["pingpong.c"] == "c"
    assert "\nequal to ONNX Runtime" in done.stdout


def test_the_demo_refuses_an_environment_with_a_compiler(tmp_path: Path) -> None:
    command = [sys.executable, DEMO / "run.py", "model.rig", "labels.json", tmp_path, "README.md"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "tinygrad" in done.stderr
