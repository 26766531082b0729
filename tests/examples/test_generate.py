"""The example that generates in one run is right, in a fresh process without the compiler too."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import rig
import tolk_engine

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "generate"


@pytest.fixture(scope="module")
def gpt() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpt", FOLDER / "gpt.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.case("C01")
def test_tokens_are_numpys_for_every_length(gpt: ModuleType, tmp_path: Path) -> None:
    given = gpt.weights(7)
    tolk_engine.compile(gpt.schedule(given)).save(tmp_path / "gpt.rig")
    script = """
import sys, rig
model = rig.open(sys.argv[1])
for case in sys.argv[2:]:
    prompt, length = case.split(":")
    tokens = [int(t) for t in prompt.split(",")]
    given, out = bytearray(512), bytearray(512)
    memoryview(given).cast("i")[: len(tokens)] = memoryview(b"".join(t.to_bytes(4, "little") for t in tokens)).cast("i")
    model.bind({"tokens": given}, {"out": out}, {"prompt": len(tokens), "length": int(length)}).run()
    print(*memoryview(out).cast("i")[: int(length)].tolist())
assert not {"tinygrad", "tolk_engine", "numpy"} & set(sys.modules)
"""
    cases = [([1, 2, 3], 3), ([1, 2, 3], 4), ([9], 70), (list(range(50)), 128), ([5, 5], 1)]
    words = [f"{','.join(map(str, p))}:{n}" for p, n in cases]
    command = [sys.executable, "-c", script, str(tmp_path / "gpt.rig"), *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    found = [[int(t) for t in line.split()] for line in done.stdout.splitlines()]
    assert found == [gpt.reference(given, prompt, length)[:length] for prompt, length in cases]
    model = rig.open(tmp_path / "gpt.rig")
    tokens = np.zeros(gpt.CONTEXT, np.int32)
    tokens[0] = 9
    kept = model(tokens, prompt=1, length=20)
    copy = kept.copy()
    model(tokens + 3, prompt=1, length=128)
    assert np.array_equal(kept, copy) and kept[:20].tolist() == gpt.reference(given, [9], 20)


@pytest.mark.slow
def test_the_script_runs() -> None:
    done = subprocess.run(
        [sys.executable, FOLDER / "generate.py"], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(", as NumPy's") == 2
