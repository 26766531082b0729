"""What a device's code is compiled for."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from rig.errors import Invalid
from tolk_engine.target import Target, _target, default, parse, target


@dataclass(frozen=True)
class Record:
    """A device of our making."""

    kind: str
    arch: str
    instruction_set: str = ""
    runs_on_host: bool = False
    of: Record | None = None
    local: bool = True
    name: str = "d0"

    @property
    def host(self) -> Record:
        return self.of or self


X86 = Record("host", "x86-64-v4", "x86_64", True)
FAR = Record("host", "x86-64-v2", "x86_64", True, local=False)
ARM = Record("host", "arm64+dotprod+fp16", "arm64", True)
FAR_ARM = Record("host", "arm64+fp16", "arm64", True, local=False)


@pytest.mark.spec("E-target")
@pytest.mark.parametrize(
    ("device", "expected"),
    [
        (X86, "x86_64,x86-64-v4,tune=native"),
        (FAR, "x86_64,x86-64-v2"),
        (ARM, "arm64,generic,dotprod,fp16,tune=native"),
        (FAR_ARM, "arm64,generic,fp16"),
        (Record("memory", "x86-64-v4", "x86_64", True, X86), "x86_64,x86-64-v4,tune=native"),
        (Record("memory", "", "", True, FAR), None),
    ],
)
def test_host_code_is_for_the_level_of_its_host(device: Record, expected: str | None) -> None:
    if expected is None:
        with pytest.raises(Invalid, match="io device"):
            target(device)
        return
    assert target(device) == Target("CPU", "CLANG", expected)


@pytest.mark.spec("E-target")
@pytest.mark.parametrize(
    ("kind", "device", "arch"),
    [("cuda", "CUDA", "sm_90"), ("amd", "AMD", "gfx1100"), ("nv", "NV", "sm_89"), ("metal", "METAL", "apple9")],
)
def test_a_vendors_device_keeps_its_kind_and_arch(kind: str, device: str, arch: str) -> None:
    assert target(Record(kind, arch, of=X86)) == Target(device, None, arch)


@pytest.mark.spec("E-target")
def test_windows_is_named_for_this_machine_only() -> None:
    assert _target(X86, "win32").arch == "x86_64_windows,x86-64-v4,tune=native"
    assert _target(FAR, "win32").arch == "x86_64,x86-64-v2"
    assert _target(ARM, "win32").arch == "arm64,generic,dotprod,fp16,tune=native"


@pytest.mark.spec("E-target")
def test_a_device_that_runs_no_program_is_named() -> None:
    with pytest.raises(Invalid, match=r"device 'disk' is an io device.* host, memory, amd"):
        target(Record("file", "", name="disk"))
    with pytest.raises(Invalid, match="device 'odd' is of kind 'fpga', which no vendor claims"):
        target(Record("fpga", "x1", name="odd"))


@pytest.mark.spec("E-target")
def test_an_arch_that_is_unknown_is_named() -> None:
    with pytest.raises(Invalid, match="device 'd0': arch 'riscv64' is unknown"):
        target(Record("host", "riscv64", "riscv64", True))
    with pytest.raises(Invalid, match="arm64 feature 'warp' is unknown; known are bf16, crc"):
        target(Record("host", "arm64+warp", "arm64", True))


@pytest.mark.parametrize(
    ("text", "arch", "requires"),
    [
        ("x86-64-v3", "x86_64,x86-64-v3", "x86-64-v3"),
        ("x86-64-v3,tune=native", "x86_64,x86-64-v3,tune=native", "x86-64-v3"),
        ("x86_64,x86-64-v1", "x86_64,x86-64-v1", "x86-64-v1"),
        ("x86_64_windows,x86-64-v3,tune=native", "x86_64_windows,x86-64-v3,tune=native", "x86-64-v3"),
        ("arm64", "arm64,generic", "arm64"),
        ("arm64+fp16+dotprod", "arm64,generic,dotprod,fp16", "arm64+dotprod+fp16"),
        ("arm64,generic,fp16", "arm64,generic,fp16", "arm64+fp16"),
    ],
)
def test_text_names_a_target(text: str, arch: str, requires: str) -> None:
    t = parse(text)
    assert (t.device, t.renderer, t.arch, t.requires) == ("CPU", "CLANG", arch, requires)
    assert parse(t.arch) == t
    assert t.instruction_set == ("arm64" if "arm64" in text else "x86_64")
    assert t.windows is ("windows" in text)
    assert t.tuned is ("tune" in text)


@pytest.mark.parametrize(
    "text", ["", "x86-64-v5", "sm_90", "x86_64", "native", "arm64,fp16", "x86-64-v3,avx512f", "arm64_windows,generic"]
)
def test_text_that_names_no_target_is_refused(text: str) -> None:
    with pytest.raises(Invalid, match="x86-64-v3"):
        parse(text)


def test_the_default_travels() -> None:
    assert default().requires in ("x86-64-v3", "arm64")
    assert default().tuned
