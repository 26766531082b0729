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
