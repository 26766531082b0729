"""Files, and devices over them, for the tests of file devices."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from rig.program import description as d
from tests.unit import kernels as k

pytestmark = pytest.mark.spec("R-device-io")

MIB = 1 << 20
OTHERS: dict[str, dict[str, Any] | None] = {
    "host": None,
    "memory": {},
    "memory without borrow": {"borrows": False},
    "memory without copy": {"copies": False},
    "memory with neither": {"borrows": False, "copies": False},
}
on_every_other = pytest.mark.parametrize("other", OTHERS)


def opened(other: str) -> Any:
    options = OTHERS[other]
    return k.opened("host") if options is None else k.opened("memory", **options)


def handles_open() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


def noise(nbytes: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(nbytes)


def images() -> tuple[d.Image, ...]:
    return (d.Image(0, d.Data(k.binary())),)
