"""C23: saving and loading stream: no second copy of the weights, and no limit but the disk's."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import made
import pytest

from rig.errors import Invalid

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


VERIFY = """
from rig.model.verify import verify
before = peak()
verify(path)
print(peak() - before)
"""

MAPPED = """
from rig.program.load import load
def private():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) << 10 for line in status if line.startswith("RssAnon"))
before = private()
with Artifact(path, mmap=True, verify=False) as artifact:
    loaded = load(artifact.program, [rig.host()], initial=artifact.initial)
print(private() - before)
"""

FULL = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[4]), resource.RLIM_INFINITY))
try:
    save(path, program, Signature((), ()), [(weight, bytes(nbytes))])
except OSError as error:
    print(error.strerror)
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


@pytest.mark.big
@pytest.mark.timeout(900)
def test_a_weight_of_more_than_4_gib(tmp_path: Path) -> None:
    path = tmp_path / "large.rig"
    nbytes = (1 << 32) + 4096
    check(path, nbytes)
    verified = grown(VERIFY, path, nbytes)
    assert verified < 64 << 20
    assert grown(MAPPED, path, nbytes) < 64 << 20  # private memory: the file's pages are the system's
    with zipfile.ZipFile(path) as archive, archive.open("weights.safetensors") as member:  # zip64, as others read it
        member.seek((1 << 32) + 192)
        assert len(member.read()) == nbytes - (1 << 32) - 192 + member_header(path)


def member_header(path: Path) -> int:
    with zipfile.ZipFile(path) as archive, archive.open("weights.safetensors") as member:
        return int.from_bytes(member.read(8), "little") + 8


@pytest.mark.parametrize("room", [0, 1, 1000, 5000, 40_000])
def test_a_full_disk(tmp_path: Path, room: int) -> None:
    """The disk is as full as a limit on files' sizes makes it: the save fails, and what was there stays."""
    path = tmp_path / "model.rig"
    made.add_one(4).save(path)
    before = path.read_bytes()
    done = subprocess.run(
        [sys.executable, "-c", COMMON + FULL, repr(sys.path), str(path), "100000", str(room)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "File too large\n"
    assert path.read_bytes() == before
    assert [one.name for one in tmp_path.iterdir()] == ["model.rig"]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_device_that_is_full_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="/dev/full: an artifact is written to a regular file"):
        made.add_one(4).save(Path("/dev/full"))
