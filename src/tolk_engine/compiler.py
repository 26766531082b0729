"""Compile kernels' LLVM IR for a host: what every backend does alike, and which one is used.

The instruction level bounds what is emitted; tuning for this machine's processor chooses among those instructions and
adds none. A backend is ``llvmlite``, LLVM in this process, or ``clang``, a compiler that is installed; equal texts
compute equal results with either.
"""

from __future__ import annotations

import functools
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, ClassVar

from rig.errors import Invalid, Refused
from tolk_engine.target import ARM64_FEATURES, Target

if TYPE_CHECKING:
    from tolk_engine.clang import Command

__all__ = ["BACKENDS", "Compiler", "backend_name", "compiler"]

BACKENDS = ("llvmlite", "clang")
"""What may make objects; the first is used where nobody says which."""

_TRIPLES = {"x86_64": "x86_64-none-unknown-elf", "arm64": "aarch64-none-unknown-elf"}
_WINDOWS_TRIPLE = "x86_64-pc-windows-msvc-elf"  # an ELF object whose functions follow Windows' calling convention
_DEFINE = re.compile(r"^(define .*?)\s*\{\s*$", re.M)
_DECLARE = re.compile(r"^declare .*\n?", re.M)
_RAISES_LEVEL = re.compile(
    r"\basm\b|\"target-(?:cpu|features)\"|\"tune-cpu\"|@llvm\.(?:x86|aarch64|arm)\.|^module asm", re.M
)


def backend_name(backend: str | None = None) -> str:
    """Return the backend to use: `backend`, else what ``RIG_COMPILER`` says, else llvmlite.

    Raises `Invalid` if there is none of that name.
    """
    name = backend or os.environ.get("RIG_COMPILER") or BACKENDS[0]
    if name not in BACKENDS:
        where = "" if backend else "RIG_COMPILER: "
        raise Invalid(f"{where}compiler {name!r} is unknown; known are {', '.join(BACKENDS)}")
    return name


def compiler(target: Target, backend: str | None = None) -> Compiler:
    """Return the compiler of `target`, made once per target and backend. Raises as `Compiler` and `backend_name`."""
    if backend_name(backend) == "clang":
        from tolk_engine.clang import command

        return _clang(target, command())
    return _llvmlite(target)


@functools.cache
def _clang(target: Target, command: Command) -> Compiler:
    from tolk_engine.clang import Clang

    return Clang(target, command)


@functools.cache
def _llvmlite(target: Target) -> Compiler:
    from tolk_engine.llvm import Llvmlite

    return Llvmlite(target)


class Compiler(ABC):
    """Compiles LLVM IR to relocatable objects for one host target.

    `target` is what it compiles for, `version` names the backend, and `processor` the resolved processor that code is
    tuned for, empty without tuning; these three are what its output depends on besides its input.

    Raises `Invalid` if the target is no host's, and `Refused` with the reason if the backend is not there.
    """

    version: str
    processor: str
    _sources: ClassVar[tuple[str, ...]] = (__file__,)

    def __init__(self, target: Target) -> None:
        if not target.on_host:
            raise Invalid(f"{target.device} {target.arch!r} is no host target; this compiler makes host code")
        self.target = target
        self.triple = _WINDOWS_TRIPLE if target.windows else _TRIPLES[target.instruction_set]

    def object(self, texts: Sequence[str], *, first: int = 0, stop: Event | None = None) -> bytes:
        """Return the relocatable object of kernels `texts`; text i's wrapper is the global function ``f{first + i}``.

        The kernel itself is inlined into its wrapper. Equal texts give equal bytes. Once `stop` is set it may end early
        with `Cancelled`.

        Raises `Refused` with LLVM's reason if a text does not compile, and if one asks for instructions by itself
        (inline assembly, a processor's own operations, target attributes), which could be above the level.
        """
        what = f"{self.version}: kernels f{first} to f{first + len(texts) - 1}"
        return self._compile(self.module(texts, first=first), what, stop)

    def module(self, texts: Sequence[str], *, first: int = 0) -> str:
        """Return the module of `texts` as `object` compiles it. Raises as `object` for texts that raise the level."""
        declared: dict[str, None] = {}
        bodies = []
        for i, text in enumerate(texts, first):
            found = _RAISES_LEVEL.search(text)
            if found:
                raise Refused(f"kernel f{i} uses {found[0]!r}, which may need instructions above {self.target.level}")
            declared.update(dict.fromkeys(line.strip() for line in _DECLARE.findall(text)))
            bodies.append(_DECLARE.sub("", text).replace("__K__", f"k{i}").replace("__W__", f"f{i}"))
        body = "\n".join((*declared, *bodies))
        if self.processor:
            body = _DEFINE.sub(rf'\1 "target-cpu"="{self._cpu}" "tune-cpu"="{self.processor}" {{', body)
        return f'target triple = "{self.triple}"\n{body}\n'

    @property
    def recipe(self) -> tuple[str, ...]:
        """Return all that an object depends on besides its module; empty where that cannot be said."""
        code = _digest(self._sources)
        parts = (self.version, self.triple, self._cpu, ",".join(self._features), self.processor, *self._flags)
        return (code, *parts) if code else ()

    @abstractmethod
    def _compile(self, source: str, what: str, stop: Event | None) -> bytes:
        """Return the object of a module; `what` begins the message of what is raised."""

    @property
    def _flags(self) -> tuple[str, ...]:
        return ()

    @property
    def _cpu(self) -> str:
        return {"x86-64-v1": "x86-64"}.get(self.target.level, self.target.level)

    @property
    def _features(self) -> tuple[str, ...]:
        # Gathers are legal from level 3 on, but several times slower than single loads on many processors: not chosen.
        if self.target.instruction_set == "x86_64":
            return ("+prefer-no-gather",)
        return tuple(f"+{ARM64_FEATURES[f]}" for f in self.target.features)


@functools.cache
def _digest(files: tuple[str, ...]) -> str:
    """Return a digest of the code that makes objects, empty where it cannot be read."""
    digest = blake2b(digest_size=16)
    try:
        for file in files:
            digest.update(Path(file).read_bytes())
    except OSError:
        return ""
    return digest.hexdigest()
