"""What `import rig` costs: no foreign module, no device, no driver library, and a bound on the modules it pulls in."""

from __future__ import annotations

import json
import subprocess
import sys

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


def test_the_public_names_come_without_their_modules() -> None:
    found = fresh("import rig, json; print(json.dumps([n for n in rig.__all__ if not hasattr(rig, n)]))")
    assert found == []
