"""What mypy says about users' code: right code passes, and each wrong line is found."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import rig

HERE = Path(__file__).parent
STUB = Path(rig.__file__).parent / "_core.pyi"

pytestmark = pytest.mark.skipif(
    not STUB.is_file(), reason="the stub of the native module is made by the build: run against the installed package"
)


def mypy(file: Path, cache: Path) -> list[str]:
    """Check one file strictly, outside of this repository's configuration, and return what is said."""
    command = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--config-file=",
        "--no-error-summary",
        "--cache-dir",
        str(cache),
    ]
    done = subprocess.run(
        [*command, file.name], capture_output=True, text=True, timeout=110, check=False, cwd=file.parent
    )
    assert not done.stderr, done.stderr
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mypy")


def test_right_code_passes(cache: Path) -> None:
    assert mypy(HERE / "right.py", cache) == []


def test_each_wrong_line_is_found(cache: Path) -> None:
    """Each line of wrong.py that ends in ``# error: CODE`` has that error, and no other line has one."""
    text = (HERE / "wrong.py").read_text("utf-8").splitlines()
    expected = {(n, m[1]) for n, line in enumerate(text, 1) if (m := re.search(r"# error: ([a-z-]+)$", line))}
    found = {
        (int(m[1]), m[2])
        for line in mypy(HERE / "wrong.py", cache)
        if (m := re.match(r"wrong\.py:(\d+): error: .*\[([a-z-]+)\]$", line))
    }
    assert expected
    assert found == expected
