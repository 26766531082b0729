"""Scripts that run in a Python process of their own, for what a process does as a whole: signals, forks, its end."""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from tests.unit import kernels

PRELUDE = """
import os, signal, sys, threading, time
import rig
from rig.program import description as d, load
LIBRARY = open(sys.argv[1], "rb").read()
ONE = d.Fixed(1)
def call(name, *words, refs=(), n=1, blocks=1):
    data = b"".join((word % 2**64).to_bytes(8, "little") for word in words)
    return d.Launch(0, name, d.Data(data), refs, (d.Fixed(blocks), ONE, ONE), (d.Fixed(n), ONE, ONE))
def submit(*parts, slots=()):
    return d.Submit(0, parts, slots)
def loaded(device, *steps, **more):
    return load(d.Program((device.arch,), images=(d.Image(0, d.Data(LIBRARY)),), steps=steps, **more), [device])
def run(program, inputs=(), ints=()):
    return program.run(program.frame(inputs, ints))
WRITES = (d.Ref(0, 0, d.Use.WRITE),)
def counter(device):
    "A program that adds 1 to its input in each of as many trips as its first int says."
    bump = submit(call("bump", 0, refs=WRITES), slots=(d.InputSlot(0),))
    return loaded(device, d.Loop(d.Int(0), (bump,)), ints=1, inputs=(d.Input(0, 8),))
def word(buffer):
    return buffer.read().cast("Q")[0]
"""


@cache
def _library() -> str:
    folder = tempfile.mkdtemp(prefix="rig-test-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = Path(folder, "kernels.so")
    path.write_bytes(kernels.binary())
    return str(path)


def start(script: str, *, mode: str = "run", **environment: str) -> subprocess.Popen[str]:
    """Start a script after the prelude."""
    command = [sys.executable, "-c", PRELUDE + script, _library(), mode]
    variables = {**os.environ, **environment}
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables)


def finish(process: subprocess.Popen[str], seconds: float = 20) -> tuple[int, str, str]:
    """Give a script's code, output and errors; a script that does not end in time fails the test."""
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"the script did not end in {seconds} s; output {out!r}, errors {err!r}") from None
    return process.returncode, out, err


def check(script: str, expected: str = "", *, code: int = 0, seconds: float = 20, **environment: str) -> None:
    """Run a script, which must end with `code`, write `expected` and no errors."""
    found = finish(start(script, **environment), seconds)
    assert found == (code, expected, ""), f"code {found[0]}, output {found[1]!r}, errors:\n{found[2]}"
