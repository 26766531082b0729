"""What tells one kernel from another, in this process and in any other."""

from __future__ import annotations

import dataclasses
import functools
import struct
from collections.abc import Iterator
from enum import Enum
from hashlib import blake2b
from pathlib import Path
from typing import Any

import tinygrad
from tinygrad.dtype import Invalid as NoValue

__all__ = ["kernel_key", "sources"]

_OF_TINYGRAD = ("codegen/**/*.py", "uop/**/*.py", "renderer/*.py", "dtype.py", "helpers.py")
"""The files of tinygrad that decide what a kernel's text is."""


class _NotPlain(Exception):
    """A value that only this process can tell from another."""


def kernel_key(ast: Any) -> str:
    """Return a name for the kernel that is the same for equal kernels in any process.

    It is a digest of 64 hexadecimal digits over every node, with floats by their bits. A description that holds more
    than numbers, texts and records of them gets a name that means nothing outside this process.
    """
    digest = blake2b(digest_size=32)
    numbers: dict[Any, int] = {}
    try:
        for node in ast.toposort():
            parts = (node.op, node.dtype, node.arg, node.tag, tuple(numbers[source] for source in node.src))
            for piece in _plain(parts):
                digest.update(piece)
            numbers[node] = len(numbers)
    except (_NotPlain, KeyError):
        return f"local-{ast.key.hex()}-{id(ast):x}"
    return digest.hexdigest()


def _plain(value: Any) -> Iterator[bytes]:
    """Write a value so that two that differ are written differently."""
    kind = type(value)
    if isinstance(value, Enum):
        yield _text("e", f"{kind.__name__}.{value.name}")
    elif value is None or value is NoValue or kind in (bool, int):
        yield _text("v", repr(value))
    elif isinstance(value, float):
        yield b"f" + struct.pack("<d", value)
    elif kind is str:
        yield _text("s", value)
    elif kind is bytes:
        yield b"b" + struct.pack("<Q", len(value)) + value
    elif kind is tuple:
        yield b"t" + struct.pack("<Q", len(value))
        for item in value:
            yield from _plain(item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = dataclasses.fields(value)
        yield _text("d", kind.__name__) + struct.pack("<Q", len(fields))
        for field in fields:
            yield from _plain(getattr(value, field.name))
    else:
        raise _NotPlain


def _text(mark: str, text: str) -> bytes:
    raw = text.encode("utf-8", "surrogatepass")
    return mark.encode() + struct.pack("<Q", len(raw)) + raw


@functools.cache
def sources() -> str:
    """Return a digest of the code that writes kernels, ours and tinygrad's; empty where it cannot be read."""
    here, there = Path(__file__).parent, Path(str(tinygrad.__file__)).parent
    files = [(file.name, file) for file in here.glob("*.py")]
    files += [(str(file.relative_to(there)), file) for names in _OF_TINYGRAD for file in there.glob(names)]
    files.append(("schedule", here.parent / "schedule.py"))
    digest = blake2b(digest_size=32)
    try:
        for name, file in sorted(files):
            digest.update(_text("n", name))
            digest.update(b"".join(_plain(file.read_bytes())))
    except OSError:
        return ""
    return digest.hexdigest() if len(files) > len(_OF_TINYGRAD) else ""
