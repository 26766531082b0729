"""The commands' parsers turned into other things: a manual, and a shell's completions."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import Action, ArgumentParser
    from collections.abc import Iterable, Mapping

    from rig.cli import Register

__all__ = ["bash", "markdown", "parser_of"]

_FILES = ("FILE", "DIR", "NAME=FILE")


def parser_of(name: str, register: Register) -> ArgumentParser:
    """Return the parser of command `name`."""
    from argparse import ArgumentParser, RawDescriptionHelpFormatter

    parser = ArgumentParser(f"rig {name}", formatter_class=RawDescriptionHelpFormatter, allow_abbrev=False)
    register(parser)
    parser.add_argument("--debug", action="store_true", help="show a traceback where something fails")
    return parser


def markdown(parsers: Mapping[str, ArgumentParser]) -> str:
    """Return the manual of the commands."""
    lines = [
        "# The `rig` command", "",
        "Made from the commands' own parsers by `python tools/cli_docs.py`; `rig COMMAND --help` shows the same.", "",
        "Exit codes: 0, 1 (it failed: one line on standard error, or a traceback with `--debug`), 2 (it was called",
        "wrongly), 130 (interrupted).",
    ]  # fmt: skip
    for name, parser in sorted(parsers.items()):
        lines += ["", f"## rig {name}", "", parser.description or "", "", f"    {_synopsis(name, parser)}", ""]
        lines += ["| argument | meaning |", "|---|---|"]
        for action in _arguments(parser):
            lines.append(f"| `{_spelling(action)}` | {_cell(action.help or '')} |")
        lines += ["", *_prose(parser.epilog or "")]
    return "\n".join(lines).rstrip() + "\n"


def _arguments(parser: ArgumentParser) -> list[Action]:
    """Return what a command takes: first what has no option, then the options, help last."""
    actions = [a for a in parser._actions if a.dest != "help"]
    return sorted(actions, key=lambda a: bool(a.option_strings))


def _spelling(action: Action) -> str:
    value = _value(action)
    if not action.option_strings:
        return value
    return ", ".join(action.option_strings) + (f" {value}" if value else "")


def _value(action: Action) -> str:
    """Return how the manual writes the value that an argument takes, "" if it takes none."""
    if action.nargs == 0:
        return ""
    if isinstance(action.metavar, tuple):
        return " ".join(action.metavar)
    if action.choices is not None and action.metavar is None:
        return "{" + ",".join(map(str, action.choices)) + "}"
    return action.metavar or action.dest.upper()


def _synopsis(name: str, parser: ArgumentParser) -> str:
    words = ["rig", name]
    for action in _arguments(parser):
        if not action.option_strings:
            words.append(_value(action))
        elif action.required:
            words.append(f"{action.option_strings[0]} {_value(action)}")
    return " ".join([*words, "[OPTION ...]"])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("%%", "%")


def _prose(epilog: str) -> list[str]:
    """Keep paragraphs, and put what is indented into blocks."""
    lines: list[str] = []
    inside = False
    for line in epilog.strip().splitlines():
        indented = line.startswith("  ")
        if indented != inside and (indented or line):
            lines += [""] if indented and lines and lines[-1] else []
            lines.append("```")
            inside = indented
        lines.append(line[2:] if indented else line.replace("*", "\\*").replace("<", "&lt;"))
    return [*lines, "```"] if inside else lines


def bash(parsers: Mapping[str, ArgumentParser]) -> str:
    """Return a script that completes the commands, their options and what these take, in bash."""
    values: list[str] = []
    options: list[str] = []
    words: list[str] = []
    for name, parser in sorted(parsers.items()):
        spelled = sorted(o for a in parser._actions for o in a.option_strings if o.startswith("--"))
        options.append(f'    {name}) _rig_words "{" ".join(spelled)}" ;;')
        for action in parser._actions:
            if action.nargs == 0:
                continue
            choices = " ".join(map(str, action.choices or ()))
            if isinstance(action.metavar, tuple) and action.metavar[0].islower():
                choices = action.metavar[0]  # a word as it is
            if not action.option_strings:
                words += [f'    {name}) _rig_words "{choices}" ;;'] if choices else []
            elif choices or action.metavar not in _FILES:
                cases = "|".join(f'"{name} {option}"' for option in action.option_strings)
                values.append(f'    {cases}) _rig_words "{choices}"; return ;;')
    commands = " ".join([*sorted(parsers), "--help", "--version"])
    return _SCRIPT.format(
        commands=commands,
        values=_block(values),
        options=_block(options),
        words=_block([*words, "    *) _rig_files ;;"]),
    )


def _block(lines: Iterable[str]) -> str:
    return "\n".join(lines)


_SCRIPT = """\
# Completion of the rig command for bash. For this shell: source <(rig completion bash)
# For all: rig completion bash > ~/.local/share/bash-completion/completions/rig

_rig_words() {{
  mapfile -t COMPREPLY < <(compgen -W "$1" -- "$cur")
}}

_rig_files() {{
  compopt -o filenames 2>/dev/null
  mapfile -t COMPREPLY < <(compgen -f -- "$cur")
}}

_rig() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}}
  COMPREPLY=()
  if [ "$COMP_CWORD" -eq 1 ]; then
    _rig_words "{commands}"
    return
  fi
  case "${{COMP_WORDS[1]}} $prev" in
{values}
  esac
  if [ "$cur" = "=" ]; then  # bash takes NAME=FILE apart
    cur=""
    _rig_files
    return
  fi
  case "$cur" in -*)
    case "${{COMP_WORDS[1]}}" in
{options}
    esac
    return ;;
  esac
  case "${{COMP_WORDS[1]}}" in
{words}
  esac
}}

complete -F _rig rig
"""
