"""The example with kernels from C runs and is right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "c_kernel" / "c_kernel.py"


def test_it_equals_numpy() -> None:
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("largest difference from NumPy: ")
    assert float(done.stdout.split()[-1]) < 1e-4
