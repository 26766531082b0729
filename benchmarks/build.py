"""Compiling the references and the kernels with gcc, once for each text, into build/bench."""

from __future__ import annotations

import ctypes
import hashlib
import os
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
OUT = HERE.parent / "build" / "bench"
FLAGS = ("-O2", "-std=c11", "-Wall", "-Wextra", "-Werror")


def compiled(name: str, text: str, *flags: str, suffix: str = ".so") -> Path:
    """Compile C `text` with gcc -O2 and `flags`; a text that was compiled before is taken from the folder."""
    compiler = os.environ.get("CC", "gcc")
    command = (compiler, *FLAGS, *flags)
    key = hashlib.sha256("\0".join((*command, text)).encode()).hexdigest()[:16]
    path = OUT / f"{name}-{key}{suffix}"
    if not path.exists():
        OUT.mkdir(parents=True, exist_ok=True)
        source = path.with_suffix(".c")
        source.write_text(text, "utf-8")
        part = path.with_suffix(".part")
        subprocess.run([*command, str(source), "-o", str(part)], check=True)
        part.replace(path)
    return path


def shared(name: str, text: str) -> Path:
    """Compile C `text` into a shared library."""
    return compiled(name, text, "-shared", "-fPIC", "-pthread")


def reference(name: str) -> ctypes.CDLL:
    """Compile and open ``references/NAME.c``."""
    return ctypes.CDLL(str(shared(name, (HERE / "references" / f"{name}.c").read_text("utf-8"))))


def object_file(name: str, text: str) -> bytes:
    """Compile C `text` into an object file, with code only: no unwind tables, no notes of the compiler."""
    flags = ("-c", "-fPIC", "-fno-asynchronous-unwind-tables", "-fno-ident", "-fcf-protection=none")
    return compiled(name, text, *flags, suffix=".o").read_bytes()
