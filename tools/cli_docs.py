"""Write docs/cli.md from the commands' parsers: the runtime's own, and those that pyproject.toml registers."""

from __future__ import annotations

import sys
import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def text() -> str:
    """Return what docs/cli.md must hold."""
    from rig.cli import own_command, own_commands
    from rig.cli.manual import markdown, parser_of

    registers = {name: own_command(name) for name in own_commands()}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for name, value in project["entry-points"]["rig.commands"].items():
        registers[name] = EntryPoint(name, value, "rig.commands").load()
    return markdown({name: parser_of(name, register) for name, register in registers.items()})


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT / "src"))
    (ROOT / "docs" / "cli.md").write_text(text(), "utf-8")
