"""`rig devices`: what this machine has."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable

    from rig.device import Device

__all__ = ["register"]


def register(parser: ArgumentParser) -> Callable[[Namespace], int | None]:
    """List the devices of this machine."""
    parser.description = (
        "List the devices of this machine, one to a line: what a program for each must be made for. "
        "For each known kind of accelerator that is not there, a line says why."
    )
    parser.epilog = "example:\n  rig devices"
    return _run


def _run(space: Namespace) -> None:
    from rig.device import devices
    from rig.drivers import missing

    for device in devices():
        print(_line(device))
    for kind, why in missing():
        print(f"no {kind}: {why}")


def _line(device: Device) -> str:
    parts = [f"{device.name}: {device.kind}"]
    if device.arch:
        parts.append(f"{device.arch} ({device.instruction_set})" if device.instruction_set else device.arch)
    if device.cores:
        parts.append(f"{device.cores} core{'s' if device.cores != 1 else ''}")
    if device.cache_bytes:
        parts.append(f"{size(device.cache_bytes)} last-level cache")
    parts.append(f"memory aligned to {device.alignment} bytes")
    return ", ".join(parts)


def size(nbytes: int) -> str:
    """Say a number of bytes in the largest unit that it has at least one of."""
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes >= unit:
            return f"{nbytes / unit:.1f}".removesuffix(".0") + f" {name}"
    return f"{nbytes} B"
