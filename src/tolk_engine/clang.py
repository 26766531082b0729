"""clang as an installed command: the same LLVM IR, compiled by another LLVM than the one that llvmlite brings along.

Used where it is asked for. ``RIG_CLANG`` names the command; else it is ``clang`` on the path, else the newest
``clang-N``, else the one in PyPI's ziglang.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Thread
from typing import IO, ClassVar

from rig.errors import Cancelled, Refused
from tolk_engine.compiler import Compiler
from tolk_engine.target import Target

__all__ = ["OLDEST", "Clang", "Command", "command"]

OLDEST = 15
"""The first clang whose LLVM IR has pointers without a type, as the kernels' text has."""

_NEWEST = 40  # the highest N of clang-N that is looked for
_INSTALL = "install clang 15 or later (apt-get install clang-16, or pip install ziglang), or name one in RIG_CLANG"
_VERSION = re.compile(r"clang version (\d+)([.\d]*)")
_TUNED = re.compile(r'"-tune-cpu" "([^"]+)"')
_DECLARES = 19  # the first that needs no declaration of LLVM's own functions
_OWN = re.compile(r"= (?:\w+ )*?call (?:\w+ )*?(<[^>]+>|\w+) @(llvm\.[\w.]+)\(([^)]*)\)")
_PATIENCE = 0.05  # seconds between two looks at what may stop it
_SECONDS = 60.0  # how long a question to the command may take
_INHERITED = ("CCC_OVERRIDE_OPTIONS", "CCC_ADD_ARGS")  # variables that add to any clang's command line


@dataclass(frozen=True, slots=True)
class Command:
    """A clang: the words that start it, the first line of its ``--version``, and its version as numbers."""

    words: tuple[str, ...]
    line: str
    major: int
    version: str


def command() -> Command:
    """Return the clang to use, looked up once per environment.

    Raises `Refused` if there is none, naming what to install, or if all that are there are too old.
    """
    return _command(os.environ.get("RIG_CLANG", ""), os.environ.get("PATH", ""))


@functools.cache
def _command(named: str, path: str) -> Command:
    old: list[str] = []
    for words in [tuple(shlex.split(named))] if named.strip() else _candidates(path):
        found = _ask(words)
        if found is None:
            continue
        if found.major >= OLDEST:
            return found
        old.append(f"{shlex.join(words)} is clang {found.version}")
    if old:
        raise Refused(f"the clang compiler is too old: {', '.join(old)}; {_INSTALL}")
    where = f"RIG_CLANG is {named!r}, which is no clang" if named.strip() else "the clang compiler is not there"
    raise Refused(f"{where}; {_INSTALL}")


def _candidates(path: str) -> Iterator[tuple[str, ...]]:
    for name in ("clang", *(f"clang-{n}" for n in range(_NEWEST, OLDEST - 1, -1))):
        found = shutil.which(name, path=path)
        if found:
            yield (found,)
    spec = find_spec("ziglang")
    if spec is not None and spec.origin:
        yield (str(Path(spec.origin).with_name("zig.exe" if sys.platform == "win32" else "zig")), "clang")


def _ask(words: tuple[str, ...]) -> Command | None:
    try:
        done = subprocess.run(
            [*words, "--version"], capture_output=True, text=True, timeout=_SECONDS, env=_environment()
        )
    except (OSError, subprocess.SubprocessError):
        return None
    match = _VERSION.search(done.stdout)
    if done.returncode or match is None:
        return None
    return Command(words, done.stdout.splitlines()[0], int(match[1]), match[1] + match[2])


def _environment() -> dict[str, str]:
    """Return our environment without what would change the code behind our back."""
    kept = {name: value for name, value in os.environ.items() if name not in _INHERITED}
    return {**kept, "CLANG_NO_DEFAULT_CONFIG": "1"}


class Clang(Compiler):
    """An installed clang of version 15 or later, `using` or the one that is found. Raises `Refused` as `command`."""

    _sources: ClassVar[tuple[str, ...]] = (*Compiler._sources, __file__)

    def __init__(self, target: Target, using: Command | None = None) -> None:
        super().__init__(target)
        self._command = command() if using is None else using
        self.version = f"clang {self._command.version}"
        self.processor = self._processor() if target.tuned else ""

    @property
    def recipe(self) -> tuple[str, ...]:
        """Return all that an object depends on besides its module, the builder's line of the version included."""
        made = super().recipe
        return (*made, self._command.line) if made else ()

    @property
    def _features(self) -> tuple[str, ...]:
        if self.target.instruction_set == "x86_64" and self._command.major < 18:
            return ("-fast-gather",)  # what says the same there
        return super()._features

    @property
    def _flags(self) -> tuple[str, ...]:
        given = ["-target", self.triple, "-x", "ir", "-c", "-O2", "-Wno-override-module"]
        if not self.target.windows:  # code for Windows is, and the option is refused there
            given.append("-fPIC")
        for word in ("-target-cpu", self._cpu, *(w for f in self._features for w in ("-target-feature", f))):
            given += ["-Xclang", word]
        return tuple(given)

    def module(self, texts: Sequence[str], *, first: int = 0) -> str:
        """Return the module of `texts` as `object` compiles it. Raises as `object` for texts that raise the level."""
        made = super().module(texts, first=first)
        return made + _declarations(made) if self._command.major < _DECLARES else made

    def _compile(self, source: str, what: str, stop: Event | None) -> bytes:
        try:
            process = subprocess.Popen(
                [*self._command.words, *self._flags, "-o", "-", "-"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=_environment(),
                start_new_session=True,  # an interrupt of the terminal is ours to handle
            )
        except OSError as e:
            raise Refused(f"{what}: {self._command.words[0]} does not start: {e}") from e
        out, said = _finish(process, source.encode(), stop)
        if out is None:
            raise Cancelled(f"{what}: cancelled")
        if process.returncode or not out:
            raise Refused(f"{what}: {said.decode(errors='replace').strip() or f'status {process.returncode}'}")
        return out

    def _processor(self) -> str:
        """Return what this clang calls this machine's processor, empty where it is of another kind than the target."""
        words = [*self._command.words, "-###", "-mtune=native", "-x", "c", "-c", "-o", "-", "-"]
        try:
            done = subprocess.run(
                words, capture_output=True, text=True, timeout=_SECONDS, stdin=subprocess.DEVNULL, env=_environment()
            )
        except (OSError, subprocess.SubprocessError):
            return ""
        mine = "x86_64" if re.search(r'"-triple" "x86_64', done.stderr) else "arm64"
        match = _TUNED.search(done.stderr)
        return match[1] if match and mine == self.target.instruction_set else ""


def _declarations(module: str) -> str:
    """Return the declarations of LLVM's own functions that `module` calls and does not declare."""
    declared = "".join(line for line in module.splitlines() if line.startswith("declare "))
    found: dict[str, str] = {}
    for kind, name, given in _OWN.findall(module):
        types = ", ".join(argument.rsplit(" ", 1)[0] for argument in given.split(", ") if argument)
        if f"@{name}(" not in declared:
            found[name] = f"declare {kind} @{name}({types})\n"
    return "".join(found.values())


def _finish(process: subprocess.Popen[bytes], data: bytes, stop: Event | None) -> tuple[bytes | None, bytes]:
    """Return what the process wrote to its two outputs; no output if `stop` came first."""
    # A thread writes: `communicate` that ran out of time once forgets what was not written yet.
    pipe, process.stdin = process.stdin, None
    assert pipe is not None
    writing = Thread(target=_write, args=(pipe, data), name="tolk-clang", daemon=True)
    writing.start()
    try:
        while stop is None or not stop.is_set():
            try:
                return process.communicate(timeout=_PATIENCE)
            except subprocess.TimeoutExpired:
                continue
        return None, b""
    finally:
        if process.poll() is None:
            _kill(process)  # and nobody reads any more, so that the thread ends
            process.communicate()
        writing.join()


def _kill(process: subprocess.Popen[bytes]) -> None:
    """End the process and what it started: a command may be a wrapper around the one that works."""
    try:
        if sys.platform == "win32":
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)  # it leads a session, and a group, of its own
    except ProcessLookupError:
        pass


def _write(pipe: IO[bytes], data: bytes) -> None:
    try:
        with pipe:
            pipe.write(data)
    except OSError:  # it ended without reading; its status and its words say why
        pass
