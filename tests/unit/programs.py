"""Descriptions, and bytes made by hand, that several tests need."""

from __future__ import annotations

import struct
from typing import Any

from rig import _core
from rig.program.description import (
    Access,
    Address,
    Alloc,
    Area,
    Copies,
    Copy,
    Data,
    Entry,
    Fill,
    Fixed,
    Handle,
    Hole,
    Image,
    Input,
    InputSlot,
    Int,
    IntsSlot,
    Kind,
    Launch,
    Loop,
    MemorySlot,
    Move,
    Program,
    Rail,
    Ready,
    Ref,
    Submit,
    Term,
    Use,
    View,
    Width,
    Words,
)  # fmt: skip

PREAMBLE = struct.Struct("<8sIIQQQ24x")


def everything() -> Program:
    """Return a program that has every type of a description in it and keeps every rule."""
    code = Data(b"\x7fcode" * 30, (Hole(8, Width.W64, (Term(Entry(0, "g"), 1),)),))
    init = Data(
        bytes(range(1, 33)) + bytes(16),
        (Hole(32, Width.W32, (Term(Address(1, 1), 1),), 0, 32), Hole(40, Width.W64, (Term(Handle(1), -2),), -7)),
    )
    params = Data(bytes(24), (Hole(8, Width.W64, (Term(Int(0), 64), Term(Fixed(3), 2)), 5, 0),))
    launch = Launch(
        1, "kernel", params, (Ref(0, 0, Use.READ), Ref(1, 16, Use.WRITE)), (Int(1), Fixed(1), Fixed(1)),
        (Fixed(128), Fixed(2), Fixed(1)), Fixed(1024),
    )  # fmt: skip
    fill = Fill(Ready(4), Data(b"\x01" * 8 + bytes(8)), (Ref(2, 8, Use.UNORDERED),))
    copy = Copy(0, (Term(Fixed(8), 2),), 1, (Term(Int(1), 4), Term(Fixed(-1), 4)), 12)
    slots = (MemorySlot(View(0, 8, 40)), InputSlot(0), IntsSlot())
    submit = Submit(1, (launch, fill, copy, Words(View(2, 0, 16))), slots, ((View(1, 0, 64), Access.READ_WRITE),))
    move = Move(InputSlot(1), (), MemorySlot(View(0, 0, 48)), (Term(Int(0), 8),), 8)
    inner = Loop(Int(1), (move, submit), None, (MemorySlot(View(0, 0, 48)), 4))
    return Program(
        ("x86-64-v3", "arm64+crc32"),
        (
            Alloc(0, 48, init, Copies.TWO, Kind.PINNED),
            Alloc(1, 64),
            Rail(4, Area.OUTBOUND),
            Rail(4, Area.INBOUND),
            Rail(4, Area.COUNTS),
        ),
        (Image(0, Data(b"plain")), Image(1, code)),
        (Input(0, 100), Input(1, 0)),
        3,
        (submit, Loop(Fixed(5), (inner, move), 2), Loop(Handle(0), (), None, (MemorySlot(View(0, 0, 48)), 0))),
    )


def nested(loops: int, *parts: Any) -> Program:
    """Return a program with `loops` loops inside each other, around one submit if there are parts."""
    body: tuple[Any, ...] = (Submit(0, parts),) if parts else ()
    for _ in range(loops):
        body = (Loop(Fixed(1), body),)
    return Program(("x86-64-v3",), ints=1, steps=body)


def body_of(encoded: bytes) -> bytes:
    """Return the body inside a program's bytes."""
    return encoded[64 : 64 + PREAMBLE.unpack_from(encoded)[4]]


def sealed(body: bytes, blobs: bytes = b"", *, gap: bytes = b"", reserved: bytes = b"") -> bytes:
    """Return bytes of a program around any body and blobs, with a right preamble."""
    blobs_at = (64 + len(body) + 63) // 64 * 64
    rest = (body + gap).ljust(blobs_at - 64, b"\0") + blobs

    def preamble(crc: int) -> bytes:
        fields = PREAMBLE.pack(b"\x93RIGPRG\n", 1, crc, 64 + len(rest), len(body), blobs_at)
        return fields[:40] + reserved.ljust(24, b"\0")

    return preamble(_core.crc32c(rest, _core.crc32c(preamble(0)))) + rest
