"""docs/cli.md is what the commands' parsers say, and says all of it."""

from __future__ import annotations

import importlib.util

from tree import ROOT


def test_the_manual_is_in_step() -> None:
    spec = importlib.util.spec_from_file_location("cli_docs", ROOT / "tools" / "cli_docs.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    text = module.text()
    assert (ROOT / "docs" / "cli.md").read_text("utf-8") == text, "run: python tools/cli_docs.py"
    for command in ("bench", "cache", "compile", "completion", "devices", "inspect", "run", "verify"):
        assert f"\n## rig {command}\n" in text
    assert text.count("```") % 2 == 0
