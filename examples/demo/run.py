"""Name the types of files with a compiled model, in a process that has rig and NumPy and no compiler.

Usage: ``python run.py MODEL LABELS OUT FILE...``. MODEL is a file of rig, LABELS a JSON list. What the model was given
and what it answered go to OUT/inputs.npy and OUT/answers.npy, the times in milliseconds to OUT/times.json.
"""

from __future__ import annotations

import importlib.util
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from features import features

import rig

ABSENT = ("tinygrad", "llvmlite", "onnx", "onnxruntime")
RUNS = 50


def main(model_file: str, labels_file: str, out: str, *files: str) -> int:
    """Run the model on every file and print its answers; return 1 where a compiler is at hand."""
    there = [name for name in ABSENT if importlib.util.find_spec(name)]
    if there:
        print(f"this environment has {', '.join(there)}; the demo wants one without", file=sys.stderr)
        return 1
    print(f"{sys.executable}: none of {', '.join(ABSENT)} can be imported here")
    labels = json.loads(Path(labels_file).read_text("utf-8"))
    inputs = [features(Path(file)) for file in files]

    start = time.perf_counter()
    model = rig.open(model_file)
    loaded = time.perf_counter()
    answers = [model(inputs[0])]
    first = time.perf_counter()
    answers += [model(x) for x in inputs[1:]]
    spent = []
    for _ in range(RUNS):
        began = time.perf_counter()
        model(inputs[0])
        spent.append(time.perf_counter() - began)

    for file, answer in zip(files, answers, strict=True):
        best = int(answer[0].argmax())
        print(f"  {Path(file).name:<42.42} {labels[best]:<14} {answer[0, best]:.4f}")
    np.save(Path(out) / "inputs.npy", np.concatenate(inputs))
    np.save(Path(out) / "answers.npy", np.concatenate(answers))
    times = {"load": loaded - start, "first": first - loaded, "median": statistics.median(spent)}
    (Path(out) / "times.json").write_text(json.dumps({name: 1e3 * value for name, value in times.items()}), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
