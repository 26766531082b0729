"""C18: code for a processor that is not here is refused by name, and never runs; code for a lower one runs.

`RIG_ARCH` lowers what the host says of itself, so that this machine stands for a weaker one.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import made
import msgspec
import pytest

import rig
from rig import _core
from rig.cli import main
from rig.errors import Invalid, Refused
from rig.model import save
from rig.program.description import Data, Image

np = pytest.importorskip("numpy")

MINE = rig.host().arch
LEVELS = ("x86-64-v1", "x86-64-v2", "x86-64-v3", "x86-64-v4")
REACHED = [level for level in LEVELS if MINE.startswith("x86") and level <= MINE]

pytestmark = [
    pytest.mark.case("C18"), pytest.mark.skipif(not REACHED, reason="the levels are those of x86-64 processors")
]  # fmt: skip

FOREIGN = ("arm64", "arm64+fp16", "arm64+nonsense", "riscv64", "x86-64-v9", "x86-64-v2+amx", "X86-64-v2", "x86-64", "")
"""What no x86-64 machine is: other instruction sets, and names that nobody gave."""

CHILD = """
import sys
sys.path[:0] = eval(sys.argv[1])
import numpy as np
import rig
for path in sys.argv[2:]:
    try:
        model = rig.open(path)
    except rig.Error as error:
        print("refused:", error)
    else:
        print(rig.host().arch, "gives", model(np.arange(4, dtype="float32")).tolist())
"""


def on(arch: str, *paths: Path) -> list[str]:
    """Open models in a fresh process on a host that says it is `arch`, run them, and return a line for each."""
    done = subprocess.run(
        [sys.executable, "-c", CHILD, repr(sys.path), *map(str, paths)],
        capture_output=True, text=True, check=False, timeout=60, env={**os.environ, "RIG_ARCH": arch},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, ""), "the process lives"
    return done.stdout.splitlines()


def flat(requires: str, calling: int = 0) -> bytes:
    """Return a flat image that requires an arch, or whatever name, and is called in one of the two ways."""
    image = bytearray(made.flat_image(requires))
    image[44:48] = calling.to_bytes(4, "little")
    return bytes(image)


def written(path: Path, arch: str, image: bytes | None = None) -> Path:
    """Write a model that says it is for `arch`, with another image if one is given."""
    model = made.add_one(4)
    program = msgspec.structs.replace(model.program, devices=(arch,))
    if image is not None:
        program = msgspec.structs.replace(program, images=(*program.images, Image(0, Data(image))))
    save(path, program, model.signature, ())
    return path


@pytest.mark.parametrize("here", REACHED)
def test_each_level_on_each_machine(tmp_path: Path, here: str) -> None:
    """Models that were compiled for each level: those above are refused with both names, the others run."""
    pytest.importorskip("tinygrad")
    from tolk_engine import Spec, capture, compile

    schedule = capture(lambda x: x * 2 + 1, Spec((4,)))
    paths = [tmp_path / f"{level}.rig" for level in LEVELS]
    for level, path in zip(LEVELS, paths, strict=True):
        compile(schedule, level, jobs=1).save(path)
    for level, line in zip(LEVELS, on(here, *paths), strict=True):
        if level <= here:
            assert line == f"{here} gives [1.0, 3.0, 5.0, 7.0]"
        else:
            assert (
                line.startswith("refused:") and f"'{level}'" in line and f"host runs x86-64 levels up to {here}" in line
            )


def test_what_a_program_says_and_what_its_image_needs(tmp_path: Path) -> None:
    """The image is asked itself: a program that claims less than its code needs is refused as well."""
    needs = (*LEVELS, *FOREIGN)
    paths = [written(tmp_path / f"{i}.rig", "x86-64-v1", flat(need)) for i, need in enumerate(needs)]
    for here in {REACHED[0], REACHED[-1]}:
        for need, line in zip(needs, on(here, *paths), strict=True):
            if need in LEVELS and need <= here:
                assert line == f"{here} gives [1.0, 2.0, 3.0, 4.0]"
            else:
                assert line == f"refused: host: flat image that needs {need}, this machine is {here}"


@pytest.mark.parametrize("arch", FOREIGN)
def test_another_instruction_set_or_an_unknown_name(tmp_path: Path, arch: str) -> None:
    path = written(tmp_path / "model.rig", arch)
    for open_ in (lambda: rig.open(path), lambda: rig.open(path.read_bytes()), lambda: rig.open(path, mmap=True)):
        with pytest.raises(
            (Invalid, Refused), match=rf"the code is for '{arch.replace('+', '.')}', but host runs .*{MINE}"
        ):
            open_()
    with pytest.raises(
        Refused, match=rf"^host: flat image that needs {arch.replace('+', '.')}, this machine is {MINE}$"
    ):
        rig.Image.load(rig.host(), flat(arch))


def test_another_system_s_calling_convention(tmp_path: Path) -> None:
    match = "flat image of the Windows calling convention, this machine has System V's"
    with pytest.raises(Refused, match=f"^host: {match}$"):
        rig.Image.load(rig.host(), flat("x86-64-v1", calling=1))
    with pytest.raises(Refused, match=match):
        rig.open(written(tmp_path / "model.rig", "x86-64-v1", flat("x86-64-v1", calling=1)))
    pytest.importorskip("tinygrad")
    from tolk_engine import Spec, capture, compile

    compile(capture(lambda x: x + 1, Spec((4,))), "x86_64_windows,x86-64-v1", jobs=1).save(tmp_path / "windows.rig")
    with pytest.raises(Refused, match=match):
        rig.open(tmp_path / "windows.rig")


def test_arm64_code_of_a_real_function(tmp_path: Path) -> None:
    pytest.importorskip("tinygrad")
    from tolk_engine import Spec, capture, compile, link

    compiled = compile(capture(lambda x: (x.half() * 2).float(), Spec((4,))), "arm64+fp16", jobs=1)
    compiled.save(tmp_path / "arm.rig")
    for attempt in (lambda: rig.open(tmp_path / "arm.rig"), lambda: link(compiled, {"CPU": rig.host()})):
        with pytest.raises((Invalid, Refused), match=rf"arm64\+fp16.*{MINE}"):
            attempt()


def test_memory_devices_run_what_the_host_runs(tmp_path: Path) -> None:
    device = rig.memory_device("weak")
    try:
        assert device.arch == MINE
        with pytest.raises((Invalid, Refused), match=rf"the code is for 'arm64', but weak .*{MINE}"):
            rig.open(written(tmp_path / "model.rig", "arm64"), device=device)
        with pytest.raises(Refused, match=r"^weak: flat image that needs x86-64-v9"):
            rig.Image.load(device, flat("x86-64-v9"))
    finally:
        device.close()


@pytest.mark.parametrize("arch", [*LEVELS, *FOREIGN, "x86-64-v5"])
def test_the_host_can_be_lowered_and_never_raised(arch: str) -> None:
    from tests.unit import processes

    said = arch if arch in REACHED else MINE
    processes.check("print(rig.host().arch, rig.host().instruction_set)", f"{said} x86_64\n", RIG_ARCH=arch)


def test_the_command_says_it_and_still_looks_inside(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path / "model.rig", "arm64", flat("arm64"))
    x = tmp_path / "x.npy"
    np.save(x, np.zeros(4, "float32"))
    assert main(("run", str(path), "--input", f"x={x}")) != 0
    said = capsys.readouterr().err
    assert "'arm64'" in said and MINE in said and "Traceback" not in said
    for command in ("inspect", "verify"):
        assert main((command, str(path))) == 0
        capsys.readouterr()


def test_a_damaged_demand_is_no_smaller_demand() -> None:
    """Bits of what an image requires that are flipped make it another name, which is refused, or a lower level's."""
    image = flat(REACHED[-1])
    at = image.index(REACHED[-1].encode())
    for bit in range(8 * len(REACHED[-1])):
        other = bytearray(image)
        other[at + bit // 8] ^= 1 << bit % 8
        with pytest.raises(Refused):
            rig.Image.load(rig.host(), bytes(other))
        assert _core.crc32c(other[64:]) != int.from_bytes(image[48:52], "little")
