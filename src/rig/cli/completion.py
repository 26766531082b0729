"""`rig completion`: a script with which a shell completes the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable

__all__ = ["register"]

_EPILOG = """\
The script is made from the commands that are installed; make it again after installing others.

examples:
  source <(rig completion bash)
  rig completion bash > ~/.local/share/bash-completion/completions/rig
"""


def register(parser: ArgumentParser) -> Callable[[Namespace], int | None]:
    """Print a script that completes command lines in a shell."""
    parser.description = "Print a script with which a shell completes commands, options and files."
    parser.epilog = _EPILOG
    parser.add_argument("shell", choices=("bash",), help="the shell: bash")
    return _run


def _run(space: Namespace) -> None:
    from rig.cli import commands
    from rig.cli.manual import bash, parser_of

    print(bash({name: parser_of(name, register) for name, register in commands().items()}), end="")
