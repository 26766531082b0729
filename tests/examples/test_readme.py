"""The README's example and its commands are what they say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")


def test_the_python_example_runs(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len([line for line in code.splitlines() if line]) <= 10
    more = """
x, y = np.full((2, 4), 2, np.float32), np.zeros((2, 3), np.float32)
bound = model.bind({"x": x}, {"out": y})
bound.run()
print(y.sum())
"""
    command = [sys.executable, "-c", code + more]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=110, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["[[1.", "1.", "1.]", "[1.", "1.", "1.]]", "12.0"]


@pytest.mark.parametrize("command", re.findall(r"^    make (\w+)", README, re.MULTILINE))
def test_the_make_targets_exist(command: str) -> None:
    done = subprocess.run(["make", "-n", command], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", re.findall(r"^    rig (\w+)", README, re.MULTILINE))
def test_the_commands_exist(command: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rig.cli", command, "--help"], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "usage: rig " + command in done.stdout


@pytest.mark.parametrize(
    "file", ["README.md", "CONTRIBUTING.md", *(f"docs/{p.name}" for p in (ROOT / "docs").glob("*.md"))]
)
def test_links_lead_somewhere(file: str) -> None:
    text = (ROOT / file).read_text("utf-8")
    for target in re.findall(r"\]\(([^)#]+)", text):
        if "://" not in target:
            assert ((ROOT / file).parent / target).exists(), f"{file} links to {target}"
