"""What changes how the engine reports, read where it is used."""

from __future__ import annotations

import os

__all__ = ["debug"]


def _number(name: str) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isdecimal() else 0


debug: int = _number("TOLK_DEBUG")
"""How much the engine tells: 0 nothing; 1 prints how many calls a run makes, from ten on; 2 makes each kernel a
submission of its own at `link` and prints a line for each at `run`. Starts as the environment's ``TOLK_DEBUG``."""
