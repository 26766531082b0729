"""Write addresses into code that stays where it is relative to itself.

Only position independent kinds are known: whatever needs an absolute address is refused, since the image has none.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from rig.errors import Refused

__all__ = ["STUB_BYTES", "apply", "is_call", "stub"]

STUB_BYTES = 16
"""The size of an import's stub; its slot is the last 8 bytes, aligned to 8."""

_STUBS = {
    "x86_64": b"\xff\x25\x02\x00\x00\x00\xcc\xcc",  # jmp *2(%rip)
    "arm64": b"\x50\x00\x00\x58\x00\x02\x1f\xd6",  # ldr x16, .+8; br x16
}
_X86_NAMES = {
    1: "R_X86_64_64", 9: "R_X86_64_GOTPCREL", 10: "R_X86_64_32", 11: "R_X86_64_32S", 41: "R_X86_64_GOTPCRELX",
    42: "R_X86_64_REX_GOTPCRELX",
}  # fmt: skip
_ARM_NAMES = {
    257: "R_AARCH64_ABS64", 258: "R_AARCH64_ABS32", 311: "R_AARCH64_ADR_GOT_PAGE", 312: "R_AARCH64_LD64_GOT_LO12_NC",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Low12:
    shift: int  # the immediate counts units of 1 << shift bytes


_ARM_LOW = {277: _Low12(0), 278: _Low12(0), 284: _Low12(1), 285: _Low12(2), 286: _Low12(3), 299: _Low12(4)}


def stub(machine: str) -> bytes:
    """Return the code that jumps to the address in the 8 bytes behind it, with those bytes zero."""
    return _STUBS[machine] + bytes(8)


def is_call(machine: str, kind: int) -> bool:
    """Tell whether a relocation of `kind` is a call or jump, which a stub can stand in for."""
    return kind == 4 if machine == "x86_64" else kind in (282, 283)


def apply(machine: str, kind: int, body: bytearray, at: int, to: int, name: str) -> None:
    """Write into `body` at `at` what a relocation of `kind` needs to reach offset `to`, the addend included.

    Offsets count from the body's start, which lies on a page of 4096 bytes when mapped. `name` is for messages.

    Raises `Refused` if the kind is not position independent or unknown, or if `to` is out of its reach.
    """
    if machine == "x86_64":
        _x86(kind, body, at, to, name)
    else:
        _arm(kind, body, at, to, name)


def _x86(kind: int, body: bytearray, at: int, to: int, name: str) -> None:
    if kind in (2, 4):  # PC32, PLT32
        struct.pack_into("<i", body, at, _fit(to - at, 32, name))
    elif kind == 24:  # PC64
        struct.pack_into("<q", body, at, to - at)
    else:
        raise Refused(f"relocation {_X86_NAMES.get(kind, kind)} of {name!r} is not position independent or unknown")


def _arm(kind: int, body: bytearray, at: int, to: int, name: str) -> None:
    if kind == 261:  # PREL32
        struct.pack_into("<i", body, at, _fit(to - at, 32, name))
    elif kind == 260:  # PREL64
        struct.pack_into("<q", body, at, to - at)
    elif kind == 275:  # ADR_PREL_PG_HI21
        pages = _fit((to >> 12) - (at >> 12), 21, name)
        _insert(body, at, (pages & 3) << 29 | (pages >> 2 & 0x7FFFF) << 5, 0x60FFFFE0)
    elif kind in _ARM_LOW:
        shift = _ARM_LOW[kind].shift
        if to & ((1 << shift) - 1):
            raise Refused(f"{name!r} at {to} is not aligned to {1 << shift}, as its load needs")
        _insert(body, at, (to & 0xFFF) >> shift << 10, 0x003FFC00)
    elif kind in (282, 283):  # JUMP26, CALL26
        if (to - at) & 3:
            raise Refused(f"{name!r} at {to} is not the start of an instruction")
        _insert(body, at, _fit(to - at >> 2, 26, name) & 0x3FFFFFF, 0x03FFFFFF)
    else:
        raise Refused(f"relocation {_ARM_NAMES.get(kind, kind)} of {name!r} is not position independent or unknown")


def _fit(value: int, bits: int, name: str) -> int:
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise Refused(f"{name!r} is out of reach: {value} does not fit in {bits} bits")
    return value


def _insert(body: bytearray, at: int, value: int, mask: int) -> None:
    (word,) = struct.unpack_from("<I", body, at)
    struct.pack_into("<I", body, at, (word & ~mask & 0xFFFFFFFF) | value)
