"""The `rig` command.

A subcommand is a function ``register(parser) -> run``: it adds its arguments and description to an
`argparse.ArgumentParser` and returns what is called with the parsed namespace, which returns the exit code (None is 0).
The first line of its docstring is its line in ``rig --help``. Other packages add subcommands through the entry-point
group ``rig.commands``, whose entries name such functions; they are looked up only where no own command is meant.

Exit codes: 0, 1 (it failed: one line on standard error, or a traceback with ``--debug``), 2 (it was called wrongly),
130 (interrupted).
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Iterable, Sequence
    from importlib.metadata import EntryPoint
    from typing import TypeAlias

    Run: TypeAlias = Callable[[Namespace], int | None]
    Register: TypeAlias = Callable[[ArgumentParser], Run]

__all__ = ["commands", "main", "own_command", "own_commands"]

_OWN = ("bench", "completion", "devices", "inspect", "run", "verify")

_EXAMPLES = """\
examples:
  rig run model.rig --input image=image.npy
  rig inspect model.rig
  rig bench model.rig
  rig run --help
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (the process's by default) and return its exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    first = args[0] if args else ""
    if first == "--version":
        from rig import __version__

        return _guarded(lambda: print("rig", __version__), debug=False)
    if first in ("-h", "--help", "help"):
        return _guarded(lambda: print(_help()), debug="--debug" in args)
    if not first or first.startswith("-"):
        what = f"unknown option {first}" if first else "a command is needed"
        print(f"rig: {what}; try rig --help", file=sys.stderr)
        return 2
    return _guarded(lambda: _command(first, args[1:]), debug="--debug" in args)


def _command(name: str, args: list[str]) -> int | None:
    register = _register(name)
    if register is None:
        print(_unknown(name), file=sys.stderr)
        return 2
    from argparse import ArgumentParser, RawDescriptionHelpFormatter

    parser = ArgumentParser(f"rig {name}", formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False)
    run = register(parser)
    parser.add_argument("--debug", action="store_true", help="show a traceback where something fails")
    try:
        space = parser.parse_args(args)
    except SystemExit as ended:  # argparse has written the help, or what is wrong
        return ended.code if isinstance(ended.code, int) else 2
    return run(space)


def _register(name: str) -> Register | None:
    if name == "run":
        from rig.cli.run import register

        return register
    if name in _OWN:
        return own_command(name)
    for entry in _entries():
        if entry.name == name:
            found: Register = entry.load()
            return found
    return None


def own_commands() -> tuple[str, ...]:
    """Return the names of the commands that rig brings along."""
    return _OWN


def own_command(name: str) -> Register:
    """Return the function that registers one of rig's own commands."""
    from importlib import import_module

    found: Register = import_module(f"rig.cli.{name}").register
    return found


def commands() -> dict[str, Register]:
    """Return all commands that can be used here, by name."""
    found = {name: own_command(name) for name in _OWN}
    for entry in _entries():
        try:
            found.setdefault(entry.name, entry.load())
        except Exception:  # another package's command must not take the others along
            continue
    return found


def _entries() -> Iterable[EntryPoint]:
    from importlib.metadata import entry_points

    return entry_points(group="rig.commands")


def _unknown(name: str) -> str:
    from rig.model.arrays import nearest

    names = sorted({*_OWN, *(entry.name for entry in _entries())})
    close = nearest(name, names)
    hint = f"did you mean {close!r}? " if close else ""
    return f"rig: {name!r} is no command; {hint}The commands are {', '.join(names)}"


def _help() -> str:
    rows = []
    for name in sorted({*_OWN, *(entry.name for entry in _entries())}):
        try:
            register = _register(name)
            lines = (register.__doc__ or "").strip().splitlines() if register else []
            rows.append((name, lines[0] if lines else ""))
        except Exception as error:  # another package's command must not take the others along
            rows.append((name, f"(not usable: {_line(error)})"))
    width = max(len(name) for name, _ in rows)
    commands = "\n".join(f"  {name:<{width}}  {text}" for name, text in rows)
    return (
        "usage: rig [--version] [--help] COMMAND ...\n\n"
        "Run compiled tensor programs: files that load once and run many times.\n\n"
        f"commands:\n{commands}\n\n"
        "rig COMMAND --help says more about a command.\n\n"
        f"{_EXAMPLES}"
    ).rstrip()


def _guarded(call: Callable[[], int | None], *, debug: bool) -> int:
    """Call `call` and turn every exception into an exit code and one line on standard error."""
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(errors="backslashreplace")  # names of files and tensors that the terminal has not
    try:
        code = call()
        sys.stdout.flush()
    except BrokenPipeError:
        # Who reads has gone, which is no failure to talk about; Python must not flush into the pipe at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        if debug:
            from traceback import print_exc

            print_exc()
        else:
            print(f"rig: {_line(error)}", file=sys.stderr)
        return 1
    return code or 0


def _line(error: Exception) -> str:
    """Say an error in one line."""
    from rig.errors import Error

    text = str(error)
    if isinstance(error, OSError) and error.strerror:
        name = error.filename
        where = "" if name is None else f"{os.fsdecode(name) if isinstance(name, (str, bytes)) else name}: "
        text = f"{where}{error.strerror}"
    elif not isinstance(error, (Error, OSError, ImportError)):
        text = f"{type(error).__name__}: {text} (--debug shows where)"
    return " ".join(text.splitlines())
