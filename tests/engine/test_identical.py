"""Two compiles of one function give identical bytes: whatever the processes, the hash seed, the cache, the machine."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("tinygrad")
pytest.importorskip("onnx")

import corpus
from graphs import model, node

from tolk_engine import compile

ROOT = Path(__file__).parents[2]

_CHILD = """
import hashlib, sys
import corpus
from tolk_engine import compile, from_onnx
for schedule in (corpus.several(), corpus.schedule("casts"), from_onnx(open(sys.argv[1], "rb").read())):
    for target in ("x86-64-v3", "arm64+fp16"):
        compiled = compile(schedule, target, jobs=int(sys.argv[2]))
        compiled.save(sys.argv[3])
        print(hashlib.sha256(open(sys.argv[3], "rb").read()).hexdigest(), compiled.compiler)
"""


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write an ONNX file with weights and several kernels."""
    np = pytest.importorskip("numpy")
    draw = np.random.default_rng(5)
    weights = {
        "w": draw.standard_normal((32, 48)).astype("float32"), "u": draw.standard_normal((48, 10)).astype("float32"),
    }  # fmt: skip
    nodes = [
        node("MatMul", "x w", "a"), node("Relu", "a", "b"), node("MatMul", "b u", "c"), node("Softmax", "c", "y"),
    ]  # fmt: skip
    path = tmp_path_factory.mktemp("graph") / "model.onnx"
    path.write_bytes(model(nodes, {"x": [4, 32]}, {"y": [4, 10]}, weights))
    return path


def fresh(graph: Path, out: Path, *, jobs: int, seed: str, cache: Path | None) -> str:
    """Return what a fresh process says of the files that it makes."""
    path = os.pathsep.join([*filter(None, sys.path), str(ROOT / "tests" / "engine")])
    given = {**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": seed, "RIG_CACHE": "0" if cache is None else "1"}
    if cache is not None:
        given["RIG_CACHE_DIR"] = str(cache)
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(graph), str(jobs), str(out)],
        env=given, capture_output=True, text=True, timeout=110,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(set(done.stdout.splitlines())) == 6
    return done.stdout


@pytest.mark.case("C22")
@pytest.mark.slow
def test_fresh_processes_give_identical_files(graph: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    said = {
        "off": fresh(graph, tmp_path / "m", jobs=1, seed="0", cache=None),
        "processes": fresh(graph, tmp_path / "m", jobs=2, seed="1", cache=None),
        "cold": fresh(graph, tmp_path / "m", jobs=1, seed="2", cache=cache),
        "warm": fresh(graph, tmp_path / "m", jobs=2, seed="random", cache=cache),
    }
    assert any(cache.rglob("*.text")) and any(cache.rglob("*.object"))
    assert len(set(said.values())) == 1, said


@pytest.mark.case("C22")
def test_one_process_gives_identical_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = set()

    def note(**given: int | bool | None) -> None:
        compiled = compile(corpus.several(), "x86-64-v3", **given)  # type: ignore[arg-type]
        compiled.save(tmp_path / "m")
        digests.add(hashlib.sha256((tmp_path / "m").read_bytes()).hexdigest())

    note(jobs=1)
    note(jobs=2)
    note(cache=False)
    monkeypatch.setenv("RIG_CACHE", "1")
    monkeypatch.setenv("RIG_CACHE_DIR", str(tmp_path / "cache"))
    note(jobs=2)  # cold
    note(jobs=1)  # warm
    half = sorted((tmp_path / "cache").rglob("*.text"))[::2]
    for entry in half:
        entry.unlink()
    note(jobs=2)  # some of it there
    assert half and len(digests) == 1


@pytest.mark.case("C22")
def test_what_was_compiled_before_changes_nothing(tmp_path: Path) -> None:
    first = compile(corpus.several(), "x86-64-v3")
    for name in ("norm", "casts", "attention"):
        compile(corpus.schedule(name), "x86-64-v3")
    compile(corpus.several(), "x86-64-v2")
    assert compile(corpus.several(), "x86-64-v3") == first


@pytest.mark.case("C22")
def test_a_tuned_target_is_the_same_each_time() -> None:
    schedule = corpus.several()
    assert compile(schedule, "x86-64-v3,tune=native").image == compile(schedule, "x86-64-v3,tune=native").image
