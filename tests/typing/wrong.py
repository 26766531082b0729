"""Mistakes of users; a comment names the code of the error that mypy reports for the line."""

from __future__ import annotations

import rig
import rig.program


def mistakes(device: rig.Device, buffer: rig.Buffer, program: rig.program.Program) -> None:
    rig.host(threads="two")  # error: arg-type
    rig.Buffer.create(device, 64.0)  # error: arg-type
    buffer.nbytes = 3  # error: misc
    buffer.view(0)  # error: call-arg
    rig.program.load(program, device)  # error: arg-type
    rig.program.to_bytes(b"")  # error: arg-type
    device.threads_of_the_pool()  # error: attr-defined
    rig.Point().wait(timeout=b"")  # error: arg-type
