"""The second load of one file in a process, against the first: what a process keeps makes it no slower."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measure import Result, Spread
from benchmarks.works.load2000 import KERNELS, save

_BOTH = """
import sys, time
import rig
for _ in range(2):
    start = time.perf_counter_ns()
    model = rig.open(sys.argv[1])
    print((time.perf_counter_ns() - start) / 1e6)
    del model
"""


def measure() -> Result:
    """Measure both loads in each of fifteen fresh processes; a file of 2000 kernels and 20 weights."""
    first: list[float] = []
    second: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "model.rig"
        save(path, KERNELS, [1_000_000] * 20)
        for _ in range(17):
            command = [sys.executable, "-c", _BOTH, str(path)]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            a, b = done.stdout.split()
            first.append(float(a))
            second.append(float(b))
    return Result("load_warm", "a second rig.open", "ms", Spread.of(second[2:]), Spread.of(first[2:]), 1.0, 15)
