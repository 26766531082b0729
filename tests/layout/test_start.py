"""What `import rig` costs: no foreign module, no device, no driver library, and a bound on the modules it pulls in."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import made
import pytest

# Modules that the run path does without; importing one costs a fresh process milliseconds.
HEAVY = (
    "msgspec", "numpy", "tinygrad", "tolk_engine", "llvmlite", "onnx", "onnxruntime", "zmq", "dataclasses", "pathlib",
    "re", "zipfile", "typing", "inspect", "importlib.metadata", "argparse", "ctypes", "json", "logging", "asyncio",
    "subprocess",
)  # fmt: skip
LIBRARIES = ("libcuda", "libOpenCL", "libamdhip", "libhsa", "libze", "libnvrtc", "libzmq", "libucp")


def fresh(code: str) -> object:
    """Run `code` in a fresh process that imports nothing by itself, and return what it prints as JSON."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def imported() -> list[str]:
    code = """
import sys
before = set(sys.modules)
import rig
after = sorted(set(sys.modules) - before)
import json
print(json.dumps(after))
"""
    found = fresh(code)
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize("module", HEAVY)
def test_import_brings_in_no(module: str, imported: list[str]) -> None:
    assert "rig" in imported
    assert module not in imported


def test_import_opens_no_device_and_no_driver_library() -> None:
    code = """
import rig, threading, os, json
maps = {line.split()[-1] for line in open("/proc/self/maps") if "/" in line}
print(json.dumps([sorted(maps), len(os.listdir("/proc/self/task"))]))
"""
    found = fresh(code)
    assert isinstance(found, list)
    maps, threads = found
    assert any("_core" in path for path in maps), "the native module is not mapped"
    assert [path for path in maps if any(name in path for name in LIBRARIES)] == []
    assert threads == 1


# What a process imports on its way from nothing to a model's first result, beside what every process has.
RUN_PATH = {
    "__future__", "_struct", "atexit", "rig", "rig._core", "rig.buffer", "rig.device", "rig.errors", "rig.model",
    "rig.model.arrays", "rig.model.artifact", "rig.model.model", "rig.model.notes", "rig.model.ports",
    "rig.model.record", "rig.model.safetensors", "rig.model.signature", "rig.model.sources", "rig.model.zip",
    "rig.program", "rig.program.arch", "rig.program.check", "rig.program.load", "rig.program.packed",
    "rig.program.run", "rig.version", "struct",
}  # fmt: skip


@pytest.mark.parametrize("way", ["", ", mmap=True"])
def test_a_first_result_needs_few_modules(tmp_path: Path, way: str) -> None:
    """Each module costs a fresh process a part of a millisecond, msgspec and typing twenty together."""
    made.times_weight(bytes(256), b"more").save(tmp_path / "model.rig")
    code = f"""
import sys
before = set(sys.modules)
import rig
model = rig.open({str(tmp_path / "model.rig")!r}{way})
inputs = {{t.name: bytes(t.nbytes) for t in model.signature.inputs}}
outputs = {{t.name: bytearray(t.nbytes) for t in model.signature.outputs}}
model.bind(inputs, outputs).run()
after = sorted(set(sys.modules) - before)
import json
print(json.dumps(after))
"""
    found = fresh(code)
    assert isinstance(found, list)
    assert "rig.model.model" in found
    assert set(found) - RUN_PATH - ({"mmap"} if way else set()) == set()


@pytest.mark.parametrize("package", ["rig", "rig.program", "rig.model"])
def test_the_public_names_come_without_their_modules(package: str) -> None:
    code = f"import {package} as p, json; print(json.dumps([n for n in p.__all__ if not hasattr(p, n)]))"
    assert fresh(code) == []


def test_names_are_what_they_are_called_whatever_is_imported_first() -> None:
    """A package's function that is called as its module stays a function."""
    code = """
import rig.program.check, rig.program.load, rig.program.codec, rig.program, json
p = rig.program
print(json.dumps([callable(f) for f in (p.check, p.load, p.of_bytes, p.to_bytes, p.Program, p.Initial)]))
"""
    assert fresh(code) == [True] * 6


def test_the_names_of_a_program_are_those_of_its_description() -> None:
    code = """
import rig.program, rig.program.description as d, json
print(json.dumps([sorted(set(d.__all__) - set(rig.program.__all__)), hasattr(rig.program, "absent")]))
"""
    assert fresh(code) == [[], False]
