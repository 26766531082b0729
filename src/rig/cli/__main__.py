"""``python -m rig.cli`` is the `rig` command."""

from __future__ import annotations

import sys

from rig.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
