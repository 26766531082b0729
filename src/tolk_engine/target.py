"""What a device's programs are compiled for.

A `Target` is a device kind, a renderer and an architecture, spelled as the compiler spells them. `target` derives it
from a device alone; `parse` reads one that a person wrote. Nothing here opens a device or imports a compiler.
"""

from __future__ import annotations

import platform
import sys
from dataclasses import dataclass
from typing import Protocol

from rig.errors import Invalid

__all__ = ["ARM64_FEATURES", "X86_LEVELS", "DeviceRecord", "Target", "default", "parse", "target"]

X86_LEVELS = ("x86-64-v1", "x86-64-v2", "x86-64-v3", "x86-64-v4")

ARM64_FEATURES = {
    "bf16": "bf16", "crc": "crc", "dotprod": "dotprod", "fhm": "fp16fml", "fp16": "fullfp16", "i8mm": "i8mm",
    "lse": "lse", "rdm": "rdm", "sve": "sve", "sve2": "sve2",
}  # fmt: skip
"""The arm64 features that an arch may name, and what LLVM calls each."""

_VENDORS = {"metal": "METAL", "cuda": "CUDA", "amd": "AMD", "nv": "NV", "opencl": "CL"}
_DEFAULT_LEVEL = "x86-64-v3"
_TUNE = "tune=native"


class DeviceRecord(Protocol):
    """What `target` reads of a device; `rig.Device` has it all.

    A host of another machine also has an attribute ``local`` that is false.
    """

    @property
    def name(self) -> str:
        """Its name, for messages."""
        ...

    @property
    def kind(self) -> str:
        """What drives it: ``host``, ``memory``, ``cuda``, …"""
        ...

    @property
    def arch(self) -> str:
        """What code it runs; empty if it runs none."""
        ...

    @property
    def instruction_set(self) -> str:
        """``x86_64`` or ``arm64`` where the host runs its work."""
        ...

    @property
    def runs_on_host(self) -> bool:
        """Whether its work is this process's code."""
        ...

    @property
    def host(self) -> DeviceRecord:
        """Its machine's host."""
        ...


@dataclass(frozen=True, slots=True)
class Target:
    """What code is compiled for.

    `device` is the compiler's device kind (``CPU``, ``CUDA``, …). `renderer` is ``CLANG`` for host code, whichever
    backend makes the object, and None where the device's kind decides. `arch` is the vendor's own name, or for host
    code the instruction set, the processor and the rest, joined by commas: ``x86_64,x86-64-v3,tune=native``,
    ``arm64,generic,fp16``.
    """

    device: str
    renderer: str | None
    arch: str

    @property
    def on_host(self) -> bool:
        """Tell whether this is code that a host runs."""
        return self.device == "CPU"

    @property
    def instruction_set(self) -> str:
        """Return ``x86_64`` or ``arm64`` for host code, else an empty string."""
        return self.arch.split(",")[0].removesuffix("_windows") if self.on_host else ""

    @property
    def windows(self) -> bool:
        """Tell whether host code follows Windows' calling convention."""
        return self.on_host and self.arch.split(",")[0].endswith("_windows")

    @property
    def level(self) -> str:
        """Return the processor that bounds the instructions: an x86-64 level, or ``generic`` on arm64."""
        return self.arch.split(",")[1] if self.on_host else ""

    @property
    def features(self) -> tuple[str, ...]:
        """Return the features beyond `level` that code may use, sorted."""
        return tuple(part for part in self.arch.split(",")[2:] if part != _TUNE) if self.on_host else ()

    @property
    def tuned(self) -> bool:
        """Tell whether code is tuned for this machine's processor; that adds no instructions."""
        return self.on_host and _TUNE in self.arch.split(",")[2:]

    @property
    def requires(self) -> str:
        """Return the arch, as `rig.Device.arch` spells it, that a device must run: ``x86-64-v3``, ``arm64+fp16``."""
        if not self.on_host:
            return self.arch
        return self.level if self.instruction_set == "x86_64" else "+".join(("arm64", *self.features))


def target(d: DeviceRecord) -> Target:
    """Return what `d`'s programs are compiled for, a function of `d` alone.

    A vendor's device keeps its kind and arch and names no renderer. A host, of this machine or another, and a device
    whose work is this process's code run host programs of that host's arch; on this machine they are also tuned for its
    processor.

    Raises `Invalid` if `d` runs no program: an io device, or a device that no vendor claims.
    """
    return _target(d, sys.platform)


def _target(d: DeviceRecord, system: str) -> Target:
    if d.kind in _VENDORS:
        return Target(_VENDORS[d.kind], None, d.arch)
    if d.arch == "" or not (d.kind == "host" or d.runs_on_host):
        what = "an io device: it holds bytes" if d.arch == "" else f"of kind {d.kind!r}, which no vendor claims,"
        allowed = ", ".join(("host", "memory", *sorted(_VENDORS)))
        raise Invalid(f"device {d.name!r} is {what} and runs no program; programs run on devices of kind {allowed}")
    host = d.host
    local = bool(getattr(host, "local", True))
    return _host_target(host.arch, tuned=local, windows=local and system == "win32", where=f"device {d.name!r}: ")


def default() -> Target:
    """Return the target of `compile` when none is given: code that travels, tuned for this machine's processor.

    That is level v3 on x86-64, whatever this processor has beyond it, and the base architecture on arm64.
    """
    arm = platform.machine().lower() in ("aarch64", "arm64")
    return _host_target("arm64" if arm else _DEFAULT_LEVEL, tuned=True, windows=sys.platform == "win32")


def parse(text: str) -> Target:
    """Return the target that `text` names.

    `text` is an arch (``x86-64-v3``, ``arm64+fp16``), with ``,tune=native`` where code is to be tuned for this machine,
    or a whole architecture (``x86_64,x86-64-v3,tune=native``, ``arm64,generic,fp16``).

    Raises `Invalid` if it is none of these, naming what is allowed.
    """
    first, *rest = [part.strip() for part in text.split(",")]
    tuned, rest = _TUNE in rest, [part for part in rest if part != _TUNE]
    windows = first.endswith("_windows")
    if first.removesuffix("_windows") == "x86_64" and len(rest) == 1:
        return _host_target(rest[0], tuned=tuned, windows=windows)
    if first == "arm64" and rest and rest[0] == "generic":
        return _host_target("+".join(("arm64", *rest[1:])), tuned=tuned, windows=False)
    if rest or windows:
        raise Invalid(f"target {text!r} is not an arch; write one such as x86-64-v3, arm64+fp16 or x86-64-v3,{_TUNE}")
    return _host_target(first, tuned=tuned, windows=False)


def _host_target(arch: str, *, tuned: bool, windows: bool, where: str = "") -> Target:
    tune = (_TUNE,) if tuned else ()
    if arch in X86_LEVELS:
        return Target("CPU", "CLANG", ",".join(("x86_64_windows" if windows else "x86_64", arch, *tune)))
    base, *features = arch.split("+")
    if base != "arm64":
        raise Invalid(f"{where}arch {arch!r} is unknown; known are {', '.join(X86_LEVELS)} and arm64 with features")
    unknown = [feature for feature in features if feature not in ARM64_FEATURES]
    if unknown:
        raise Invalid(f"{where}arm64 feature {unknown[0]!r} is unknown; known are {', '.join(ARM64_FEATURES)}")
    return Target("CPU", "CLANG", ",".join(("arm64", "generic", *sorted(set(features)), *tune)))
