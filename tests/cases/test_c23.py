"""C23: saving and loading stream: no second copy of the weights, and no limit but the disk's."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.case("C23")

COMMON = """
import sys
sys.path[:0] = eval(sys.argv[1])
import made
from rig.model import Artifact, Signature, Weight, save
from rig.program.description import Alloc, Program
path, nbytes = sys.argv[2], int(sys.argv[3])
import rig
from rig.program.codec import of_bytes, to_bytes

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("VmHWM"))

program = Program(devices=(made.ARCH,), memory=(Alloc(0, nbytes),))
weight = Weight("large", 0, "uint8", (nbytes,))
pattern = bytes(i % 251 for i in range(251 * 64))
"""

SAVE = """
data = bytearray(nbytes)
for at in range(0, nbytes, len(pattern)):
    data[at : at + len(pattern)] = pattern[: nbytes - at]
save(path, Program(devices=(made.ARCH,)), Signature((), ()))  # what a first save imports
before = peak()
save(path, program, Signature((), ()), [(weight, data)])
print(peak() - before)
"""

LOAD = """
from rig.program.load import load
before = peak()
with Artifact(path) as artifact:
    loaded = load(artifact.program, [rig.host()], initial=artifact.initial)
print(peak() - before)

class Check:
    def __init__(self, initial):
        self.initial, self.nbytes = initial, initial.nbytes
    def read_into(self, view):
        self.initial.read_into(view)
        for at in {0, 1, 1 << 31, 1 << 32, nbytes // 2, nbytes - 1} | {(1 << 31) - 1, (1 << 32) - 1}:
            if at < nbytes:
                assert view[at] == at % 251, at

del loaded
with Artifact(path) as artifact:
    load(artifact.program, [rig.host()], initial={0: Check(artifact.initial[0])})
"""


def grown(code: str, path: Path, nbytes: int) -> int:
    done = subprocess.run(
        [sys.executable, "-c", COMMON + code, repr(sys.path), str(path), str(nbytes)],
        capture_output=True, text=True, check=False, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return int(done.stdout)


def check(path: Path, nbytes: int) -> None:
    assert grown(SAVE, path, nbytes) <= nbytes // 4
    assert nbytes < path.stat().st_size < nbytes + 4096
    assert nbytes <= grown(LOAD, path, nbytes) <= nbytes * 5 // 4


def test_a_weight_of_100_mib(tmp_path: Path) -> None:
    check(tmp_path / "large.rig", (100 << 20) + 3)


@pytest.mark.skipif(
    not os.environ.get("RIG_TEST_LARGE"), reason="needs 10 GB of memory and 5 GB of disk: RIG_TEST_LARGE=1"
)
@pytest.mark.timeout(600)
def test_a_weight_of_more_than_4_gib(tmp_path: Path) -> None:
    check(tmp_path / "large.rig", (1 << 32) + 4096)
