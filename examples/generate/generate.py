"""Compile the small GPT of `gpt.py` to one file, open it, and generate from it: one run for all tokens.

``python examples/generate/generate.py``
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import gpt
import numpy as np

import rig
import tolk_engine


def main() -> None:
    """Generate twice, and hold the tokens against NumPy's."""
    given = gpt.weights()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "gpt.rig"
        tolk_engine.compile(gpt.schedule(given)).save(file)
        model = rig.open(file)  # from here on neither the compiler nor tinygrad is needed
    print(model)
    for text, length in ((b"Once", 40), (b"a loop ", 100)):
        tokens = np.zeros(gpt.CONTEXT, np.int32)
        tokens[: len(text)] = list(text)
        start = time.perf_counter()
        found = model(tokens, prompt=len(text), length=length)[:length].tolist()
        took = time.perf_counter() - start
        same = found == gpt.reference(given, list(text), length)
        speed = (length - 1) / took
        print(f"{text!r}: {length - len(text)} tokens, {speed:.0f} a second, {'as' if same else 'NOT as'} NumPy's")


if __name__ == "__main__":
    main()
