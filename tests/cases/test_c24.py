"""C24: a model opens from any path and from plain bytes, and leaves nothing on the disk."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import threading
from pathlib import Path

import made
import numpy as np
import pytest

import rig

pytestmark = pytest.mark.case("C24")
COMMAND = "import sys; sys.path[:0] = eval(sys.argv.pop(1)); from rig.cli import main; sys.exit(main())"
FOUR = np.array([1, 2, 3, 4], "float32")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("c24") / "model.rig"
    made.add_one(4).save(path)
    return path.read_bytes()


@pytest.mark.parametrize(
    "name", ["é à", "模型", "😀", 'it\'s "that"', "100%s %d", "n" * 250, "d" * 150 + "/" + "e" * 150]
)
def test_any_folder(tmp_path: Path, whole: bytes, name: str) -> None:
    path = tmp_path / name / "model.rig"
    path.parent.mkdir(parents=True)
    path.write_bytes(whole)
    link = tmp_path / "link"
    link.symlink_to(path)
    for source in (path, str(path), link):
        assert rig.open(source)(FOUR).tolist() == [2, 3, 4, 5]


@pytest.mark.parametrize(
    "name", ["é à 模型 😀", 'it\'s "that" $HOME', "100%s {x} \\n", "-dash", "line\nbreak", b"\xff\xfe"]
)
def test_every_command_takes_any_path(tmp_path: Path, whole: bytes, name: str | bytes) -> None:
    folder = tmp_path / os.fsdecode(name)
    folder.mkdir()
    path = folder / "model.rig"
    path.write_bytes(whole)
    np.save(folder / "x.npy", FOUR)
    np.savez(folder / "all.npz", x=FOUR)
    for args in (
        ("verify", path), ("inspect", path, "--svg", folder / "picture.svg"), ("bench", path, "--runs", "1"),
        ("run", path, "-i", f"x={folder / 'x.npy'}", "--output-dir", folder / "results"),
        ("run", path, "-i", folder / "all.npz", "-o", f"y={folder / 'y.npy'}"),
    ):  # fmt: skip
        done = subprocess.run(
            [sys.executable, "-c", COMMAND, repr(sys.path), *args],
            cwd=tmp_path, capture_output=True, check=False, timeout=60,
            env={"LC_ALL": "C", "PYTHONIOENCODING": "ascii"},
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, b""), args
    assert np.load(folder / "results" / "y.npy").tolist() == np.load(folder / "y.npy").tolist() == [2, 3, 4, 5]
    assert rig.open(path, mmap=True)(FOUR).tolist() == [2, 3, 4, 5]


def test_files_without_a_name(whole: bytes, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", FOUR)
    command = [sys.executable, "-c", COMMAND, repr(sys.path)]
    for args in (("verify", "/dev/stdin"), ("run", "/proc/self/fd/0", "-i", f"x={tmp_path / 'x.npy'}")):
        done = subprocess.run([*command, *args], input=whole, capture_output=True, check=False, timeout=60)
        assert (done.returncode, done.stderr) == (0, b"")
    deleted = tmp_path / "model.rig"
    deleted.write_bytes(whole)
    with deleted.open("rb") as file:
        deleted.unlink()
        assert rig.open(f"/proc/self/fd/{file.fileno()}")(FOUR).tolist() == [2, 3, 4, 5]


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")
def test_in_a_read_only_place_with_a_full_temporary_folder(tmp_path: Path, whole: bytes) -> None:
    """On a file system that is mounted read-only, and with a temporary folder that is one full page."""
    script = """
set -e
mount -t tmpfs -o size=64k none "$1/place"
cp "$1/model.rig" "$1/place/"
mount -o remount,ro "$1/place"
mount -t tmpfs -o size=4k none "$1/tmp"
head -c 4096 /dev/zero > "$1/tmp/full"
cd "$1/place"
TMPDIR="$1/tmp" HOME=/nowhere "$2" -B -c "$3" "$4" model.rig exit
ls "$1/tmp" "$1/place"
"""
    for name in ("place", "tmp"):
        (tmp_path / name).mkdir()
    (tmp_path / "model.rig").write_bytes(whole)
    done = subprocess.run(
        ["unshare", "-m", "bash", "-c", script, "-", str(tmp_path), sys.executable, BARE, repr(sys.path)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    if "mount" in done.stderr or "unshare" in done.stderr:
        pytest.skip(f"no mounts here: {done.stderr.strip()[:80]}")
    assert done.returncode == 0, done.stderr
    assert "(2.0, 3.0, 4.0, 5.0)" in done.stdout
    assert done.stdout.split("\n")[1:] == [f"{tmp_path}/place:", "model.rig", "", f"{tmp_path}/tmp:", "full", ""]


def test_a_pipe(tmp_path: Path, whole: bytes) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(whole,))
    writer.start()
    try:
        assert rig.open(pipe)(FOUR).tolist() == [2, 3, 4, 5]
    finally:
        writer.join()


def test_bytes(tmp_path: Path, whole: bytes) -> None:
    path = tmp_path / "model.rig"
    path.write_bytes(whole)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        models = [rig.open(source) for source in (whole, bytearray(whole), memoryview(whole), mapped)]
    for model in models:
        assert model(FOUR).tolist() == [2, 3, 4, 5]


BARE = """
import sys
sys.path[:0] = eval(sys.argv[1])
import os, signal, struct, rig
model = rig.open(sys.argv[2])
y = bytearray(16)
model.bind({"x": struct.pack("4f", 1, 2, 3, 4)}, {"y": y}).run()
print(struct.unpack("4f", y), flush=True)
if sys.argv[3] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("end", ["exit", "kill"])
@pytest.mark.parametrize("room", [True, False])
def test_without_a_home_and_without_temporary_files(tmp_path: Path, whole: bytes, end: str, room: bool) -> None:
    work, temporary, path = tmp_path / "work", tmp_path / "tmp", tmp_path / "model.rig"
    work.mkdir()
    work.chmod(0o555)
    if room:
        temporary.mkdir()
    path.write_bytes(whole)
    path.chmod(0o444)
    done = subprocess.run(
        [sys.executable, "-B", "-c", BARE, repr(sys.path), str(path), end],
        cwd=work, env={"TMPDIR": str(temporary)}, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.stdout == "(2.0, 3.0, 4.0, 5.0)\n", done.stderr
    assert done.returncode == (0 if end == "exit" else -9)
    assert list(work.iterdir()) == []
    assert temporary.exists() == room
    assert not room or list(temporary.iterdir()) == []
