"""What the demo's model looks at: the first and the last bytes of a file, as 2048 integers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

BLOCK = 4096
"""Bytes read from either end."""
HALF = 1024
"""Bytes kept of either end, once white space is cut off there."""
NOTHING = 256
"""What stands where a file has no byte."""


def features(path: Path) -> npt.NDArray[np.int32]:
    """Return the model's input for a file: int32 of shape (1, 2048).

    The first half holds the file's start without leading white space, filled up behind; the second half its end without
    trailing white space, filled up in front.
    """
    with path.open("rb") as file:
        start = file.read(BLOCK).lstrip()[:HALF]
        file.seek(max(0, path.stat().st_size - BLOCK))
        end = file.read(BLOCK).rstrip()[-HALF:]
    found = np.full((1, 2 * HALF), NOTHING, np.int32)
    found[0, : len(start)] = np.frombuffer(start, np.uint8)
    if end:
        found[0, -len(end) :] = np.frombuffer(end, np.uint8)
    return found
