"""Compile a real ONNX model, run the saved file where there is no compiler, and compare with ONNX Runtime.

The model names the type of a file from its first and last bytes. It lies in the package `magika`, from which only the
model and its list of labels are read. ``make demo`` calls this script in the environment that has the compiler, and
names the Python of another that has rig and NumPy only.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

import tolk_engine

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TOLERANCE = 1e-5
RUNS = 50


@dataclass(frozen=True)
class Source:
    """The model's ONNX file and the labels of its outputs."""

    onnx: Path
    labels: list[str]


def find() -> Source:
    """Find the model in the installed package, without importing the package."""
    spec = importlib.util.find_spec("magika")
    if spec is None or spec.origin is None:
        raise SystemExit("the demo needs the package magika, which `make venv` installs")
    folder = Path(spec.origin).parent / "models" / "standard_v3_3"
    config = json.loads((folder / "config.min.json").read_text("utf-8"))
    return Source(folder / "model.onnx", config["target_labels_space"])


def compile_model(source: Source, file: Path) -> float:
    """Compile the model for one input at a time and save it; return the seconds."""
    start = time.perf_counter()
    schedule = tolk_engine.from_onnx(source.onnx, shapes={"bytes": (1, 2048)})
    tolk_engine.compile(schedule).save(file)
    return time.perf_counter() - start


def samples(run_python: Path) -> list[Path]:
    """Return real files to name: texts and sources of this repository, and what was built from it."""
    names = ["README.md", "LICENSE", "Makefile", "pyproject.toml", "src/rig/errors.py", "native/src/crc32c.cc"]
    names += ["benchmarks/references/pingpong.c", ".ci/run"]
    query = "import rig._core; print(rig._core.__file__)"
    module = subprocess.run([run_python, "-I", "-c", query], check=True, capture_output=True, text=True).stdout.strip()
    return [*(path for name in names if (path := ROOT / name).is_file()), Path(module)]


def reference(source: Source, inputs: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.float32], float]:
    """Run ONNX Runtime on one thread: the answers, and the median of its run in milliseconds."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(source.onnx, options, providers=["CPUExecutionProvider"])
    answers = [session.run(None, {"bytes": row[None]})[0] for row in inputs]
    spent = []
    for _ in range(RUNS):
        start = time.perf_counter()
        session.run(None, {"bytes": inputs[:1]})
        spent.append(time.perf_counter() - start)
    return np.concatenate(answers), 1e3 * statistics.median(spent)


def main() -> int:
    """Run the demonstration; return 1 where the answers differ by more than 1e-5 of the largest output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run-python", type=Path, required=True, help="the Python that has rig and NumPy only")
    parser.add_argument("--out", type=Path, default=Path("build/demo"), help="the folder for what is made")
    given = parser.parse_args()
    out: Path = given.out.absolute()
    run_python: Path = given.run_python.absolute()
    out.mkdir(parents=True, exist_ok=True)
    file, labels = out / "magika.rig", out / "labels.json"

    source = find()
    print(f"compiling {source.onnx.name} of the package magika", flush=True)
    compiled = compile_model(source, file)
    labels.write_text(json.dumps(source.labels), "utf-8")

    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    command = [run_python, HERE / "run.py", file, labels, out, *samples(run_python)]
    done = subprocess.run(command, env=environment, check=False)
    if done.returncode:
        return done.returncode

    inputs, answers = np.load(out / "inputs.npy"), np.load(out / "answers.npy")
    expected, ort = reference(source, inputs)
    difference = float(np.abs(answers - expected).max() / np.abs(expected).max())
    good = answers.shape == expected.shape and difference <= TOLERANCE
    times = json.loads((out / "times.json").read_text("utf-8"))
    rows = (
        ("compile", f"{compiled:.2f} s"),
        ("file", f"{file.stat().st_size / 1e6:.2f} MB"),
        ("load", f"{times['load']:.2f} ms"),
        ("first run", f"{times['first']:.2f} ms"),
        ("median run", f"{times['median']:.2f} ms"),
        ("ONNX Runtime, one thread, median run", f"{ort:.2f} ms"),
    )
    print()
    for name, value in rows:
        print(f"  {name:<38} {value:>12}")
    verdict = "equal" if good else "NOT EQUAL"
    print(f"\n{verdict} to ONNX Runtime: {difference:.1e} of the largest output apart, {TOLERANCE:g} allowed")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
