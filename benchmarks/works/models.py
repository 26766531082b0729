"""Real models against ONNX Runtime, one thread each, in turns in one process, with the share of the slowest kernels.

The files lie in packages of PyPI, which are found and not imported. They are compiled once for the processor's level,
into ``build/bench``.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from benchmarks.measure import Result, Spread

SECONDS = 8.0
SHOWN = 3  # kernels that a row names


def measure_magika() -> Result:
    """Measure the model that names a file's type from its ends: 2048 bytes in."""
    return _measure("ort_magika", "magika", "models/*/model.onnx", {"bytes": (1, 2048)})


def measure_nudenet() -> Result:
    """Measure a detector: images of 320 x 320."""
    return _measure("ort_nudenet", "nudenet", "320n.onnx", {"images": (1, 3, 320, 320)})


def measure_silero() -> Result:
    """Measure a voice detector: 512 samples and a state."""
    shapes: dict[str, tuple[int, ...]] = {"input": (1, 512), "state": (2, 1, 128), "sr": ()}
    return _measure("ort_silero", "silero_vad", "data/silero_vad_op18_ifless.onnx", shapes)


def _source(package: str, pattern: str) -> Path:
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise SystemExit(f"the package {package} is not installed; `make venv` installs it")
    (path,) = Path(found.submodule_search_locations[0]).glob(pattern)
    return path


def _measure(work: str, package: str, pattern: str, shapes: Mapping[str, tuple[int, ...]]) -> Result:
    import rig
    from tolk_engine import compile, from_onnx

    source = _source(package, pattern)
    with tempfile.TemporaryDirectory() as folder:
        model = Path(folder) / "model.rig"
        compile(from_onnx(source, shapes), f"{rig.host().arch},tune=native").save(model)
        options = ["--threads", "1", "--seconds", str(SECONDS), "--kernels", "--against", "onnx", str(source), "--json"]
        command = [sys.executable, "-m", "rig.cli", "bench", str(model), *options]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{work}: {done.stderr}")
    found = json.loads(done.stdout)
    theirs = found["against"]
    slowest = sorted(found["kernels"], key=lambda k: -k["share"])
    side: dict[str, float | int | str] = {"kernels": len(slowest), "difference": theirs["difference"] or 0.0}
    for kernel in slowest[:SHOWN]:
        rate = f" at {kernel['gflops']:.1f} GFLOP/s" if kernel["gflops"] else ""
        side[kernel["name"] or kernel["where"]] = f"{100 * kernel['share']:.0f} %{rate}"
    return Result(work, f"{package}, a run", "ms", _spread(found), _spread(theirs), float("inf"), found["runs"], side)


def _spread(found: Mapping[str, float]) -> Spread:
    return Spread(1e3 * found["median"], 1e3 * found["q1"], 1e3 * found["q3"])
