"""Real models, whole: compiled and saved here, opened and run in a process without a compiler, equal to ONNX Runtime.

The tolerance is 1e-4 of the largest output. That it is small enough to notice a lost weight is shown for one model by
zeroing each of its weights in turn.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import rig
from tolk_engine import StorageRef, compile, link, run, slots

np = pytest.importorskip("numpy")
pytest.importorskip("tinygrad")
pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

from tolk_engine import from_onnx  # noqa: E402

TOLERANCE = 1e-4

_CHILD = """
import sys
import numpy as np
import rig
model = rig.open(sys.argv[1])
given = dict(np.load(sys.argv[2]))
state = dict(pair.split("=") for pair in sys.argv[4:])
found = {}
for at in range(len(next(iter(given.values())))):
    inputs = {name: values[at] for name, values in given.items()}
    inputs.update((name, found[output][-1]) for name, output in state.items() if found)
    got = model(**inputs)
    names = [t.name for t in model.signature.outputs]
    for name, value in zip(names, got if isinstance(got, tuple) else (got,)):
        found.setdefault(name, []).append(value)
np.savez(sys.argv[3], **{name: np.stack(values) for name, values in found.items()})
absent = {"tinygrad", "tolk_engine", "llvmlite", "onnx", "onnxruntime"} & set(sys.modules)
assert not absent, absent
"""


def package_file(package: str, name: str) -> Path:
    """Return a file of an installed package; the test is skipped where the package is missing.

    The packages are found, not imported: what they would import is not installed.
    """
    from importlib.util import find_spec

    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        pytest.skip(f"{package} is not installed")
    (path,) = Path(found.submodule_search_locations[0]).glob(name)
    return path


def elsewhere(model: Path, given: dict[str, Any], **state: str) -> dict[str, Any]:
    """Run a saved model in a fresh process, once for each first index of `given`, and return the outputs.

    `state` maps an input to the output that it is from the second call on.
    """
    ins, outs = model.with_suffix(".in.npz"), model.with_suffix(".out.npz")
    np.savez(ins, **given)
    pairs = [f"{name}={output}" for name, output in state.items()]
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(model), str(ins), str(outs), *pairs], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return dict(np.load(outs))


def reference(model: Path, given: dict[str, Any], **state: str) -> dict[str, Any]:
    """Return the same from ONNX Runtime."""
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    session = runtime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    names = [o.name for o in session.get_outputs()]
    found: dict[str, list[Any]] = {name: [] for name in names}
    for at in range(len(next(iter(given.values())))):
        inputs = {name: np.asarray(values[at]) for name, values in given.items()}
        inputs.update((name, found[output][-1]) for name, output in state.items() if at)
        for name, value in zip(names, session.run(names, inputs), strict=True):
            found[name].append(value)
    return {name: np.stack(values) for name, values in found.items()}


def distance(got: dict[str, Any], wanted: dict[str, Any]) -> float:
    """Return the largest difference of an output from what is wanted, as a part of that output's largest value."""
    assert {n: v.shape for n, v in got.items()} == {n: v.shape for n, v in wanted.items()}
    parts = [np.abs(got[n] - v).max() / np.abs(v).max() for n, v in wanted.items()]
    return float(max(parts)) if np.isfinite(parts).all() else float("inf")


# --- magika ----------------------------------------------------------------------------------------------------------


def test_magika_names_files(tmp_path: Path) -> None:
    source = package_file("magika", "models/*/model.onnx")
    compile(from_onnx(source), jobs=1).save(tmp_path / "magika.rig")
    text = (Path(__file__).read_bytes() * 8)[:2048]
    drawn = np.random.default_rng(0).integers(0, 257, (1, 2048))
    # Of equal bytes the model takes a variance that is 0, as a difference of two sums: what is left is their rounding.
    equal = np.full((1, 2048), 61)
    given = {"bytes": np.stack([np.array([list(text)]), drawn, equal]).astype(np.int32)}
    got, wanted = elsewhere(tmp_path / "magika.rig", given), reference(source, given)
    assert distance(got, wanted) <= TOLERANCE
    assert (got["target_label"].argmax(-1) == wanted["target_label"].argmax(-1)).all()


# --- silero ----------------------------------------------------------------------------------------------------------

RATES = (16000, 8000)
SHAPES = {"input": (1, 512), "state": (2, 1, 128)}


def sound(count: int) -> Any:
    """Return so many blocks of a sound with a voice's overtones in noise, [blocks, 1, 512]."""
    t = np.arange(count * 512) / 16000
    tone = 100 + 30 * np.sin(2 * np.pi * 2 * t)
    voice = sum(np.sin(2 * np.pi * k * np.cumsum(tone) / 16000) / k for k in range(1, 20))
    loud = 0.5 + 0.5 * np.sin(2 * np.pi * 0.7 * t)
    noise = np.random.default_rng(0).standard_normal(len(t))
    return (0.1 * loud * voice + 0.02 * noise).astype(np.float32).reshape(count, 1, 512)


@pytest.fixture(scope="module")
def silero() -> tuple[Path, Any]:
    source = package_file("silero_vad", "data/silero_vad_op18_ifless.onnx")
    return source, compile(from_onnx(source, SHAPES), jobs=1)


@pytest.mark.parametrize("rate", RATES)
def test_silero_keeps_its_state_over_100_calls(silero: tuple[Path, Any], rate: int, tmp_path: Path) -> None:
    source, compiled = silero
    compiled.save(tmp_path / "silero.rig")
    given = {
        "input": sound(100), "state": np.zeros((100, 2, 1, 128), np.float32), "sr": np.full(100, rate, np.int64)
    }  # fmt: skip
    got = elsewhere(tmp_path / "silero.rig", given, state="stateN")
    wanted = reference(source, given, state="stateN")
    assert distance(got, wanted) <= TOLERANCE
    assert wanted["stateN"].std(0).max() > 0.1, "the sound moves the state"


class _Bound:
    """A model that runs here, with each of its constants in a buffer of its own."""

    def __init__(self, compiled: Any) -> None:
        self.schedule = compiled.schedule
        host = rig.host()
        self.weights: dict[str, rig.Buffer] = {}
        bound = {}
        for at, storage in enumerate(self.schedule.storages):
            if storage.init is not None:
                buffer = rig.Buffer.create(host, storage.nbytes)
                buffer.write(storage.init)
                bound[StorageRef(at)] = self.weights[storage.name or f"constant {at}"] = buffer
        self.linked = link(compiled, {"CPU": host}, bound)
        self.slots = slots(self.linked)

    def __call__(self, given: dict[str, Any]) -> dict[str, Any]:
        for at in self.schedule.inputs:
            self.slots[at].write(np.ascontiguousarray(given[self.schedule.slots[at].name]))
        run(self.linked, self.slots)
        return {s.name: self.read(i) for i, s in enumerate(self.schedule.slots) if i in self.schedule.outputs}

    def read(self, at: int) -> Any:
        slot = self.schedule.slots[at]
        return np.frombuffer(self.slots[at].read(), slot.dtype).reshape(slot.shape).copy()

    def without_each(self) -> Iterator[str]:
        """Zero each constant for the time of an iteration."""
        for name, buffer in self.weights.items():
            kept = bytes(buffer.read())
            buffer.write(bytes(len(kept)))
            yield name
            buffer.write(kept)


def test_a_lost_weight_of_silero_is_seen(silero: tuple[Path, Any]) -> None:
    """Each weight of the branch for a rate moves a result by more than the tolerance; no other does at that rate."""
    source, compiled = silero
    model = _Bound(compiled)
    blocks = sound(40)
    seen: dict[int, set[str]] = {}
    for rate in RATES:
        start = {"input": blocks, "state": np.zeros((40, 2, 1, 128), np.float32), "sr": np.full(40, rate, np.int64)}
        states = reference(source, start, state="stateN")["stateN"]
        given = [{"input": blocks[i + 1], "state": states[i], "sr": np.int64(rate)} for i in (5, 20, 37)]
        wanted = [
            {n: v[0] for n, v in reference(source, {n: np.stack([v]) for n, v in g.items()}).items()} for g in given
        ]
        assert max(distance(model(g), w) for g, w in zip(given, wanted, strict=True)) <= TOLERANCE
        seen[rate] = {
            name
            for name in model.without_each()
            if max(distance(model(g), w) for g, w in zip(given, wanted, strict=True)) > TOLERANCE
        }
    of_8k = {name for name in model.weights if name.startswith("model_8k.")}
    assert seen == {16000: set(model.weights) - of_8k, 8000: of_8k}


# --- nudenet ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nudenet_finds_the_same(tmp_path: Path) -> None:
    source = package_file("nudenet", "320n.onnx")
    compile(from_onnx(source, {"images": (1, 3, 320, 320)}), jobs=2).save(tmp_path / "nudenet.rig")
    drawn = np.random.default_rng(0)
    grid = np.linspace(0, 6, 320, dtype=np.float32)
    smooth = (np.sin(grid)[:, None] * np.cos(grid)[None] * 0.4 + 0.5) * np.float32([1, 0.7, 0.5])[:, None, None]
    given = {"images": np.stack([smooth[None], drawn.random((1, 3, 320, 320), np.float32)])}
    assert distance(elsewhere(tmp_path / "nudenet.rig", given), reference(source, given)) <= TOLERANCE
