"""Read an ELF relocatable object: 64 bit, little-endian, x86-64 or arm64.

`parse` checks every offset against the file before it follows one, so that a damaged object is an error and never a
wrong image. It knows nothing of what is done with the sections.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NoReturn

from rig.errors import FormatError

__all__ = [
    "ALLOC", "EXEC", "FUNC", "GLOBAL", "MACHINES", "NOBITS", "TLS", "WRITE", "Object", "Relocation", "Section",
    "Symbol", "machine", "parse",
]  # fmt: skip

MACHINES = {62: "x86_64", 183: "arm64"}

WRITE, ALLOC, EXEC, TLS = 0x1, 0x2, 0x4, 0x400  # section flags
NOBITS = 8  # the type of a section that has no bytes in the file
GLOBAL, FUNC = 1, 2  # a symbol's binding and type

_SYMTAB, _RELA, _REL = 2, 4, 9
_SHARED = 3  # the type of a shared library's file
_RESERVED = 0xFF00  # section numbers from here on mean something else: absolute, common, extended
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QQq")


def machine(library: bytes) -> str:
    """Return the instruction set of a shared library, empty for what is none that this engine knows."""
    kind = int.from_bytes(library[16:18], "little")
    if len(library) < 64 or library[:7] != b"\x7fELF\x02\x01\x01" or kind != _SHARED:
        return ""
    return MACHINES.get(int.from_bytes(library[18:20], "little"), "")


@dataclass(frozen=True, slots=True)
class Section:
    """A section; `data` is empty where `type` is NOBITS."""

    name: str
    type: int
    flags: int
    size: int
    align: int
    data: memoryview


@dataclass(frozen=True, slots=True)
class Symbol:
    """A symbol: `value` bytes into section number `section`, which is 0 if the object does not define it."""

    name: str
    section: int
    value: int
    bind: int
    type: int


@dataclass(frozen=True, slots=True)
class Relocation:
    """A place, `offset` bytes into section number `section`, that wants `symbol`'s address plus `addend`."""

    section: int
    offset: int
    kind: int
    symbol: Symbol
    addend: int


@dataclass(frozen=True, slots=True)
class Object:
    """An object file: its machine (``x86_64``, ``arm64``), sections by number, symbols and relocations."""

    machine: str
    sections: tuple[Section, ...]
    symbols: tuple[Symbol, ...]
    relocations: tuple[Relocation, ...]


def parse(data: bytes) -> Object:
    """Return the object in `data`; it shares `data`'s memory.

    Raises `FormatError`, naming the section or the byte, if it is not a relocatable object of a known machine or if
    anything in it lies outside it.
    """
    if len(data) < _HEADER.size or data[:4] != b"\x7fELF":
        _bad("not an ELF object", 0)
    ident, kind, machine, _, _, _, start, _, _, _, _, entry, count, names = _HEADER.unpack_from(data)
    if ident[4:7] != b"\x02\x01\x01":
        _bad(f"class, byte order and version are {tuple(ident[4:7])}, need (2, 1, 1)", 4)
    if kind != 1:
        _bad(f"type is {kind}, need 1, a relocatable object", 16)
    if machine not in MACHINES:
        _bad(f"machine is {machine}, known are {sorted(MACHINES)}", 18)
    if entry != _SECTION.size or count == 0 or start + count * entry > len(data) or names >= count:
        _bad(f"{count} section headers of {entry} bytes at {start} do not fit in {len(data)} bytes", 40)
    raw = [_SECTION.unpack_from(data, start + i * entry) for i in range(count)]
    view = memoryview(data)
    parts = [_part(view, i, row) for i, row in enumerate(raw)]
    sections = tuple(
        Section(_string(parts[names], row[0], i), row[1], row[2], row[5], max(row[8], 1), part)
        for i, (row, part) in enumerate(zip(raw, parts, strict=True))
    )
    tables = [i for i, row in enumerate(raw) if row[1] == _SYMTAB]
    if len(tables) > 1:
        _bad(f"has {len(tables)} symbol tables, need at most one", start)
    symbols = _symbols(parts, raw, tables[0], sections) if tables else ()
    return Object(MACHINES[machine], sections, symbols, _relocations(parts, raw, tables, sections, symbols))


def _bad(message: str, position: int) -> NoReturn:
    raise FormatError(message, f"object file byte {position}")


def _part(view: memoryview, index: int, row: tuple[int, ...]) -> memoryview:
    kind, offset, size, align = row[1], row[4], row[5], row[8]
    if align & (align - 1):
        raise FormatError(f"alignment {align} is no power of two", f"object file section {index}")
    if kind in (0, NOBITS):
        return view[:0]
    if offset + size > len(view):
        raise FormatError(f"bytes {offset} to {offset + size} lie outside the file", f"object file section {index}")
    return view[offset : offset + size]


def _string(table: memoryview, at: int, index: int) -> str:
    raw = bytes(table[at : at + 4096])
    end = raw.find(b"\0")
    if at >= len(table) or end < 0:
        raise FormatError(f"name at {at} lies outside the string table", f"object file section {index}")
    return raw[:end].decode("utf-8", "replace")


def _rows(part: memoryview, layout: struct.Struct, index: int) -> list[tuple[int, ...]]:
    if len(part) % layout.size:
        raise FormatError(f"{len(part)} bytes are no whole number of {layout.size}", f"object file section {index}")
    return list(layout.iter_unpack(part))


def _symbols(
    parts: list[memoryview], raw: list[tuple[int, ...]], table: int, sections: tuple[Section, ...]
) -> tuple[Symbol, ...]:
    link = raw[table][6]
    if link >= len(parts):
        raise FormatError(f"names are in section {link}, which is not there", f"object file section {table}")
    out = []
    for name, info, _, section, value, size in _rows(parts[table], _SYMBOL, table):
        text = _string(parts[link], name, link)
        if section >= _RESERVED:
            section = -1  # absolute or common: only an error if something wants it
        elif section >= len(sections):
            raise FormatError(f"symbol {text!r} is in section {section}, which is not there", f"section {table}")
        elif section and value + size > sections[section].size:
            raise FormatError(f"symbol {text!r} ends past section {sections[section].name}", f"section {table}")
        out.append(Symbol(text, section, value, info >> 4, info & 15))
    return tuple(out)


def _relocations(
    parts: list[memoryview],
    raw: list[tuple[int, ...]],
    tables: list[int],
    sections: tuple[Section, ...],
    symbols: tuple[Symbol, ...],
) -> tuple[Relocation, ...]:
    out = []
    for index, row in enumerate(raw):
        if row[1] == _REL:
            raise FormatError("relocations without addends are not used on this machine", f"section {index}")
        if row[1] != _RELA:
            continue
        target = row[7]
        if row[6] not in tables or not 0 < target < len(sections):
            raise FormatError(f"relocates section {target} by symbols of {row[6]}", f"object file section {index}")
        for offset, info, addend in _rows(parts[index], _RELOCATION, index):
            if info >> 32 >= len(symbols) or offset >= max(sections[target].size, 1):
                raise FormatError(f"relocation at {offset} lies outside {sections[target].name}", f"section {index}")
            out.append(Relocation(target, offset, info & 0xFFFFFFFF, symbols[info >> 32], addend))
    return tuple(out)
