"""Print what pip must install for some extras of pyproject.toml, one requirement a line.

Usage: ``python tools/requirements.py build dev``. The word ``build`` stands for the build system's requirements and
``base`` for the run-time ones; every other word names an extra, whose references to this distribution are followed.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

OWN = re.compile(r"rig-runtime\[([a-z,]+)\]$")


def requirements(project: dict[str, Any], word: str) -> list[str]:
    """Return the requirements that `word` stands for; an unknown extra is a KeyError."""
    if word == "build":
        return list(project["build-system"]["requires"])
    if word == "base":
        return list(project["project"]["dependencies"])
    found: list[str] = []
    for line in project["project"]["optional-dependencies"][word]:
        own = OWN.match(line)
        for name in own[1].split(",") if own else ():
            found += requirements(project, name)
        if not own:
            found.append(line)
    return found


if __name__ == "__main__":
    description = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text("utf-8"))
    print("\n".join(dict.fromkeys(r for word in sys.argv[1:] for r in requirements(description, word))))
