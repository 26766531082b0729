"""Code as users write it; mypy finds nothing to say about it."""

from __future__ import annotations

from typing import assert_type

import rig
import rig.program


def devices() -> None:
    host = rig.host(threads=1)
    assert_type(host, rig.Device)
    assert_type(rig.devices(), tuple[rig.Device, ...])
    memory = rig.memory_device("m", nbytes=1 << 20, alignment=64, borrows=True, copies=True, delay=0.0, fail_at=None)
    assert_type(memory.name, str)
    assert_type(memory.host, rig.Device)
    memory.close()


def buffers(device: rig.Device) -> bytes:
    buffer = rig.Buffer.create(device, 64)
    assert_type(buffer, rig.Buffer)
    buffer.write(bytes(64))
    part = buffer.view(0, 16)
    assert_type(part.read(), memoryview)
    point = buffer.submit_copy(rig.Buffer.create(device, 64))
    assert_type(point, rig.Point)
    assert_type(point.wait(timeout=1.0), bool)
    return bytes(part.read())


def programs(data: bytes, device: rig.Device, buffer: rig.Buffer) -> None:
    program = rig.program.of_bytes(data)
    assert_type(rig.program.to_bytes(program), bytes)
    loaded = rig.program.load(program, [device])
    ends = loaded.run(loaded.frame([buffer], [1, 2]))
    assert_type(ends, tuple[rig.Point, ...])


def models(path: str, x: bytes, y: bytearray) -> None:
    model = rig.open(path)
    assert_type(model, rig.Model)
    bound = model.bind({"x": x}, {"y": y})
    bound.run()


def failures() -> str:
    try:
        rig.host(threads=0)
    except rig.Invalid as error:
        return str(error)
    except rig.OutOfMemory as error:
        return f"{error.device} {error.nbytes}"
    return ""
