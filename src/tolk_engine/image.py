"""Turn compiled objects into one flat image: a header, tables of exports and imports, and a body that runs anywhere.

The body is read-only data, then code, then a stub for each imported function. It is position independent and mapped as
a whole, on a page, readable and executable; the loader writes only the imports' slots, before that. All integers are
little-endian::

    0   magic, 8 bytes                  32  bytes of the string table
    8   version                         36  place and length in it of the arch that the code needs
    12  the body's offset, 64-aligned   44  calling convention: 0 System V or AAPCS64, 1 Windows
    16  the body's size, 8 bytes        48  CRC-32C of everything from byte 64 to the end
    24  exports, imports: two counts    52  zeros
    64  export records, sorted by name, import records, strings, zeros, the body

A record is the name's place and length in the strings and an offset in the body.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from rig.errors import FormatError, Invalid, Refused
from tolk_engine import elf, relocate

__all__ = ["IMPORTS", "MAGIC", "VERSION", "Flat", "flat", "parse"]

MAGIC = b"\x93RIGIMG\n"
VERSION = 1

IMPORTS = frozenset((
    "truncf", "trunc", "floorf", "floor", "ceilf", "ceil", "sqrtf", "sqrt", "fmaf", "fma", "fmodf", "fmod",
    "__truncsfhf2", "__extendhfsf2", "__truncdfhf2", "__truncsfbf2", "__truncdfbf2", "memcpy", "memset", "memmove",
))  # fmt: skip
"""The functions that an image may import; every loader has them."""

_HEADER = struct.Struct("<8sIIQIIIIIII12x")
_RECORD = struct.Struct("<IIQ")
_DROPPED = (".eh_frame", ".pdata", ".xdata")  # unwind tables: no kernel raises


@dataclass(frozen=True, slots=True)
class Flat:
    """A flat image, taken apart: `exports` and `imports` map names to offsets in `body`."""

    requires: str
    calling: int
    exports: dict[str, int]
    imports: dict[str, int]
    body: bytes


def flat(objects: bytes | Sequence[bytes], requires: str, *, calling: int = 0) -> bytes:
    """Return the flat image of relocatable ELF `objects` that needs an arch of `requires` (``x86-64-v3``).

    The bytes depend on the arguments alone. Every global function of the objects is exported.

    Raises `FormatError` if an object is damaged; `Refused`, naming it, for writable data, for an import that loaders
    do not have, and for code that is not position independent; `Invalid` if two objects define one name or if an
    object is of another machine than `requires`.
    """
    objects = [objects] if isinstance(objects, bytes) else objects
    parsed = [elf.parse(o) for o in objects]
    machine = "arm64" if requires.startswith("arm64") else "x86_64"
    for i, o in enumerate(parsed):
        if o.machine != machine:
            raise Invalid(f"object {i} is code for {o.machine}, but the image is to need {requires!r}")
    body, places = _lay_out(parsed)
    stubs = _stubs(parsed, places, body, machine)
    _resolve(parsed, places, stubs, body, machine)
    imports = {name: at + relocate.STUB_BYTES - 8 for name, at in stubs.items()}
    return _write(Flat(requires, calling, _exports(parsed, places), imports, bytes(body)))


def parse(image: bytes) -> Flat:
    """Return the parts of the flat image `image`.

    Raises `FormatError` if it is none, is of another version, or is damaged.
    """
    if len(image) < 64 or image[:8] != MAGIC:
        raise FormatError("not a flat image", "byte 0")
    _, version, start, size, n_exports, n_imports, n_strings, req, req_len, calling, crc = _HEADER.unpack_from(image)
    if version != VERSION:
        raise FormatError(f"version is {version}, known is {VERSION}", "byte 8")
    strings = 64 + _RECORD.size * (n_exports + n_imports)
    if start % 64 or strings + n_strings > start or start + size != len(image):
        raise FormatError(f"tables and a body of {size} bytes do not make {len(image)} bytes", "byte 12")
    if _crc32c(image[64:]) != crc:
        raise FormatError("checksum differs: the image is damaged", "byte 48")

    def text(at: int, n: int) -> str:
        if at + n > n_strings:
            raise FormatError(f"name at {at} lies outside the strings", f"byte {strings}")
        return image[strings + at : strings + at + n].decode()

    records = [_RECORD.unpack_from(image, 64 + _RECORD.size * i) for i in range(n_exports + n_imports)]
    named = [(text(at, n), offset) for at, n, offset in records]
    return Flat(text(req, req_len), calling, dict(named[:n_exports]), dict(named[n_exports:]), image[start:])


def _kept(section: elf.Section) -> bool:
    return bool(section.flags & elf.ALLOC) and section.size > 0 and not section.name.startswith(_DROPPED)


_Places = dict[tuple[int, int], int]  # (object, section number) -> offset in the body


def _lay_out(objects: list[elf.Object]) -> tuple[bytearray, _Places]:
    body = bytearray()
    places: _Places = {}
    for code in (False, True):
        body += bytes(-len(body) % 64)
        for i, o in enumerate(objects):
            for j, section in enumerate(o.sections):
                if not _kept(section) or bool(section.flags & elf.EXEC) is not code:
                    continue
                if section.flags & (elf.WRITE | elf.TLS) or section.type == elf.NOBITS:
                    raise Refused(f"section {section.name} holds {section.size} bytes that may be written; "
                                  "an image has read-only data and code")  # fmt: skip
                if section.align > 4096:
                    raise Refused(f"section {section.name} needs alignment {section.align}; at most 4096 is kept")
                body += bytes(-len(body) % section.align)
                places[i, j] = len(body)
                body += section.data
    return body, places


def _stubs(objects: list[elf.Object], places: _Places, body: bytearray, machine: str) -> dict[str, int]:
    wanted: set[str] = set()
    defined = _exports(objects, places)
    for i, o in enumerate(objects):
        for r in o.relocations:
            if (i, r.section) not in places or r.symbol.section != 0 or r.symbol.name in defined:
                continue
            if r.symbol.name not in IMPORTS:
                known = ", ".join(sorted(IMPORTS))
                raise Refused(f"code calls {r.symbol.name!r}, which no loader has; known are {known}")
            if not relocate.is_call(machine, r.kind):
                raise Refused(f"code takes the address of {r.symbol.name!r} (relocation {r.kind}); it may only call it")
            wanted.add(r.symbol.name)
    stubs = {}
    for name in sorted(wanted):
        body += bytes(-len(body) % relocate.STUB_BYTES)
        stubs[name] = len(body)
        body += relocate.stub(machine)
    return stubs


def _resolve(objects: list[elf.Object], places: _Places, stubs: dict[str, int], body: bytearray, machine: str) -> None:
    shared = _exports(objects, places)
    for i, o in enumerate(objects):
        for r in o.relocations:
            if (i, r.section) not in places:
                continue
            s = r.symbol
            if s.section == 0:
                to = shared[s.name] if s.name in shared else stubs[s.name]
            elif (i, s.section) in places:
                to = places[i, s.section] + s.value
            else:
                where = o.sections[s.section].name if s.section > 0 else "no section"
                raise Refused(f"code uses {s.name!r} in {where}, which is not part of an image")
            at = places[i, r.section] + r.offset
            relocate.apply(machine, r.kind, body, at, to + r.addend, s.name or "a constant")


def _exports(objects: list[elf.Object], places: _Places) -> dict[str, int]:
    out: dict[str, int] = {}
    for i, o in enumerate(objects):
        for s in o.symbols:
            if s.bind != elf.GLOBAL or s.type != elf.FUNC or (i, s.section) not in places:
                continue
            if s.name in out:
                raise Invalid(f"two objects define {s.name!r}")
            out[s.name] = places[i, s.section] + s.value
    return dict(sorted(out.items(), key=lambda item: item[0].encode()))


def _write(image: Flat) -> bytes:
    strings = bytearray()
    records = bytearray()
    for name, offset in (*image.exports.items(), *image.imports.items()):
        raw = name.encode()
        records += _RECORD.pack(len(strings), len(raw), offset)
        strings += raw
    requires = len(strings)
    strings += image.requires.encode()
    tables = bytes(records + strings)
    tables += bytes(-(64 + len(tables)) % 64)
    rest = tables + image.body
    header = _HEADER.pack(
        MAGIC, VERSION, 64 + len(tables), len(image.body), len(image.exports), len(image.imports), len(strings),
        requires, len(image.requires.encode()), image.calling, _crc32c(rest),
    )  # fmt: skip
    return header + rest


def _crc32c(data: bytes) -> int:
    from rig._core import crc32c

    return int(crc32c(data))
