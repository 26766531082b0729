"""Use functions of one's own C library as kernels of a model, beside those that the compiler makes.

`blas.c` holds a matrix product and ``y = s x + y0``. A layer calls both, is saved with the library inside, and opened
again. Run it where a C compiler is: ``python examples/c_kernel/c_kernel.py``.
"""

from __future__ import annotations

import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import rig
import tolk_engine
from tolk_engine import CFunction, Spec

SOURCE = Path(__file__).with_name("blas.c")
FLAGS = ("-O3", "-shared", "-fPIC")


def product(library: Path) -> CFunction:
    """Return the matrix product of (m, k) and (k, n); n and k follow the matrices."""
    return CFunction(
        library,
        "sgemm",
        lambda a, b, n, k: Spec((a.shape[0], n)),
        iterations=lambda a, b, n, k: a.shape[0],
        ops=lambda a, b, n, k: 2 * a.shape[0] * n * k,
        mem=lambda a, b, n, k: 4 * (a.shape[0] * (n + k) + n * k),
    )


def scaled_sum(library: Path) -> CFunction:
    """Return ``s x + y0`` of two vectors of one length; the bits of `s` follow them."""
    return CFunction(library, "saxpy", lambda x, y0, s: Spec(x.shape), iterations=lambda x, y0, s: x.numel())


def main() -> None:
    """Build the library, make the model, and hold it against NumPy."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "blas.so")
        subprocess.run(["gcc", *FLAGS, "-o", library, SOURCE], check=True)
        sgemm, saxpy = product(library), scaled_sum(library)
        half = struct.unpack("<I", struct.pack("<f", 0.5))[0]

        def layer(x: Any, w: Any, bias: Any) -> Any:
            hidden = sgemm(x, w, w.shape[1], w.shape[0]).relu()  # one kernel from C, one from the compiler
            return saxpy(hidden.flatten(), bias, half)

        schedule = tolk_engine.capture(layer, Spec((30, 40)), Spec((40, 50)), Spec((1500,)))
        file = Path(folder, "layer.rig")
        tolk_engine.compile(schedule).save(file)
        library.unlink()  # the file holds it

        chance = np.random.default_rng(0)
        x, w, bias = (chance.standard_normal(shape, "float32") for shape in ((30, 40), (40, 50), 1500))
        found = rig.open(file)(x, w, bias)
        want = 0.5 * np.maximum(x @ w, 0).reshape(-1) + bias
        print(f"largest difference from NumPy: {abs(found - want).max():.1e}")


if __name__ == "__main__":
    main()
