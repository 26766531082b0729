"""A reader of model files that uses no code of rig: written from docs/format.md alone. Prints what a file holds."""

from __future__ import annotations

import json
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

TABLE = []
for byte in range(256):
    for _ in range(8):
        byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
    TABLE.append(byte)


def crc32c(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ TABLE[(crc ^ byte) & 255]
    return crc ^ 0xFFFFFFFF


def members(file: bytes) -> tuple[dict[str, bytes], bytes]:
    """Walk the local headers of a zip of stored members under 4 GiB; return them and the zip's comment."""
    found, at = {}, 0
    while file[at : at + 4] == b"PK\3\4":
        method, crc, size, _, name_size, extra_size = struct.unpack_from("<8xH4xIIIHH", file, at)
        name_at = at + 30
        start = name_at + name_size + extra_size
        name, data = file[name_at : name_at + name_size].decode(), file[start : start + size]
        assert method == 0 and start % 64 == 0 and zlib.crc32(data) == crc, name
        found[name] = data
        at = start + size
    end = file.rindex(b"PK\5\6")
    return found, file[end + 22 :]


def msgpack(data: bytes, at: int) -> tuple[Any, int]:
    """Read one value; return it and where the next begins."""
    b = data[at]
    if b < 0x80 or b >= 0xE0:
        return (b if b < 0x80 else b - 256), at + 1
    if 0x90 <= b < 0xA0 or b in (0xDC, 0xDD):
        width = {0xDC: 2, 0xDD: 4}.get(b, 0)
        count = int.from_bytes(data[at + 1 : at + 1 + width], "big") if width else b & 15
        at, items = at + 1 + width, []
        for _ in range(count):
            item, at = msgpack(data, at)
            items.append(item)
        return items, at
    if 0xA0 <= b < 0xC0 or b in (0xD9, 0xDA, 0xDB):
        width = {0xD9: 1, 0xDA: 2, 0xDB: 4}.get(b, 0)
        size = int.from_bytes(data[at + 1 : at + 1 + width], "big") if width else b & 31
        return data[at + 1 + width : at + 1 + width + size].decode(), at + 1 + width + size
    if b == 0xC0:
        return None, at + 1
    width = 1 << (b & 3)  # 0xCC to 0xCF unsigned, 0xD0 to 0xD3 signed
    assert 0xCC <= b <= 0xD3, hex(b)
    return int.from_bytes(data[at + 1 : at + 1 + width], "big", signed=b >= 0xD0), at + 1 + width


def launches(steps: list[Any], times: int = 1) -> list[tuple[str, int, int, int]]:
    """Give name, blocks, iterations and how often, of launches whose numbers are all fixed."""
    found = []
    for step in steps:
        if step[0] == 2:  # a loop
            found += launches(step[2], times * step[1][1])
        elif step[0] == 0:
            found += [(p[2], p[5][0][1], p[6][0][1], times) for p in step[2] if p[0] == 3]
    return found


def read(file: bytes) -> dict[str, Any]:
    """Return the signature, the program's memory and launches, and the weights, all checksums checked."""
    parts, comment = members(file)
    assert comment == b"rig artifact format 1 manifest crc32c %08x" % crc32c(parts["manifest.json"])
    manifest, signature = json.loads(parts["manifest.json"]), json.loads(parts["signature.json"])
    assert manifest["format"] == signature["format"] == 1
    assert crc32c(parts["signature.json"]) == manifest["signature"]
    program, tensors = parts["program.rig"], parts["weights.safetensors"]
    assert crc32c(program) == manifest["program"] and program[:8] == b"\x93RIGPRG\n"
    version, crc, size, body_size, blobs = struct.unpack_from("<IIQQQ", program, 8)
    assert version == 1 and size == len(program) and blobs == (64 + body_size + 63) // 64 * 64
    assert crc32c(program[:12] + bytes(4) + program[16:]) == crc
    (devices, memory, images, _, _, steps), end = msgpack(program, 64)
    assert end == 64 + body_size
    start = 8 + int.from_bytes(tensors[:8], "little")
    assert crc32c(tensors[:start]) == manifest["header"]
    header, weights = json.loads(tensors[8:start]), {}
    for item in manifest["weights"]:
        first, last = header[item["name"]]["data_offsets"]
        weights[item["name"]] = tensors[start + first : start + last]
        assert crc32c(weights[item["name"]]) == item["crc32c"] and memory[item["memory"]][2] == last - first
    return {
        "signature": signature, "devices": devices, "memory": [(m[2], m[3][0][1]) for m in memory if m[0] == 0],
        "images": [program[blobs + at : blobs + at + n] for (at, n), _ in (i[1] for i in images)],
        "launches": launches(steps), "weights": weights, "notes": manifest.get("notes", {}),
    }  # fmt: skip


if __name__ == "__main__":
    for key, value in read(Path(sys.argv[1]).read_bytes()).items():
        print(f"{key}: {value}")
