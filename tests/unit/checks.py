"""Devices, and programs made of a few words, for the tests of the check."""

from __future__ import annotations

from typing import Any

import pytest

from rig.errors import FormatError, Invalid
from rig.program import description as d
from rig.program.check import check

W32, W64 = d.Width.W32, d.Width.W64
READ, WRITE, UNORDERED = d.Use.READ, d.Use.WRITE, d.Use.UNORDERED


class FakeDevice:
    """A device as a check sees it."""

    def __init__(self, name: str = "host", arch: str = "x86-64-v3", kind: str = "host", host: Any = None) -> None:
        self.name = name
        self.arch = arch
        self.kind = kind
        self.host = host or self


HOST = FakeDevice()
FAR = FakeDevice("far", kind="memory", host=HOST)
GPU = FakeDevice("gpu", arch="sm_90", kind="cuda", host=HOST)
DEVICES = (HOST, FAR, GPU)


class End:
    """This machine's end of a rail: areas of 256 bytes, counts of 64."""

    def nbytes(self, area: d.Area) -> int:
        return 64 if area == d.Area.COUNTS else 256


def rails(rail: int) -> End | None:
    return End() if rail == 5 else None


def view(memory: int = 0, offset: int = 0, length: int = 64) -> d.View:
    return d.View(memory, offset, length)


def slot(memory: int = 0, offset: int = 0, length: int = 64) -> d.MemorySlot:
    return d.MemorySlot(view(memory, offset, length))


def holes(*items: d.Hole, size: int = 24) -> d.Data:
    return d.Data(bytes(size), items)


def hole(value: Any, at: int = 0, width: d.Width = W64, factor: int = 1, add: int = 0, shift: int = 0) -> d.Hole:
    return d.Hole(at, width, (d.Term(value, factor),), add, shift)


def launch(params: d.Data | bytes = bytes(24), refs: Any = (), **more: Any) -> d.Launch:
    data = d.Data(params) if isinstance(params, bytes) else params
    return d.Launch(**{"image": 0, "name": "f", "params": data, "refs": tuple(refs), **more})


def submit(*parts: Any, device: int = 0, slots: Any = (), fixed: Any = ()) -> d.Submit:
    return d.Submit(device, parts, tuple(slots), tuple((one, d.Access.READ_WRITE) for one in fixed))


def fixed(value: int, factor: int = 1) -> tuple[d.Term, ...]:
    return (d.Term(d.Fixed(value), factor),)


def copy(length: int = 8, src_offset: Any = (), dst_offset: Any = (), src: int = 0, dst: int = 1) -> d.Copy:
    return d.Copy(src, src_offset, dst, dst_offset, length)


def program(*steps: Any, **more: Any) -> d.Program:
    """Return a program of `steps` with memory, images, inputs and ints to name; `more` replaces them."""
    parts: dict[str, Any] = {
        "devices": tuple(one.arch for one in DEVICES),
        "memory": (d.Alloc(0, 64), d.Alloc(1, 64), d.Alloc(0, 64, copies=d.Copies.TWO), d.Rail(5, d.Area.COUNTS)),
        "images": (d.Image(0, d.Data(b"code")), d.Image(1, d.Data(b"code")), d.Image(2, d.Data(b"code"))),
        "inputs": (d.Input(0, 100), d.Input(1, 100)),
        "ints": 4,
    }
    return d.Program(**{**parts, **more}, steps=steps)


def refused(p: Any, place: str, *parts: str, devices: Any = DEVICES, given: Any = rails) -> None:
    """Require that a check of `p` is refused at `place`, with a message that holds `parts`."""
    with pytest.raises(Invalid) as caught:
        check(p, devices, given)
    message = str(caught.value)
    assert message.startswith((place + ":", place + " (")), message
    for part in parts:
        assert part in message, message
    assert not isinstance(caught.value, FormatError)


def accepted(*steps: Any, **more: Any) -> None:
    check(program(*steps, **more), DEVICES, rails)
