"""The import rules of the architecture: nothing knows what lies above it."""

from __future__ import annotations

import re

import pytest
from tree import ROOT, imports, modules, within

# package -> what no module in it may import, under TYPE_CHECKING neither
FORBIDDEN = {
    "rig": ("tolk_engine", "tinygrad", "onnx", "llvmlite", "onnxruntime"),
    "rig.program": ("rig.model", "rig.cli", "rig.remote"),
    "rig.drivers": ("rig.program", "rig.model", "rig.cli", "rig.remote"),
    "rig.errors": ("rig.program", "rig.model", "rig.cli", "rig.drivers"),
}
# `rig bench --against onnx` times ONNX Runtime beside a model, where it is installed
ALLOWED = {("rig.cli.onnx", "onnxruntime")}
NOUNS = ("rig.device", "rig.buffer", "rig.image", "rig.submission", "rig.point", "rig.claim")


def crossings(package: str, forbidden: tuple[str, ...]) -> list[str]:
    return [
        f"{name}:{found.line} imports {found.module}"
        for name in modules()
        if within(name, package)
        for found in imports(name, typing=True)
        if any(within(found.module, other) for other in forbidden) and (name, found.module) not in ALLOWED
    ]


def test_the_tree_is_read() -> None:
    assert {"rig", "rig.errors", "rig.program.description"} <= modules().keys()
    assert "msgspec" in {found.module for found in imports("rig.program.description")}


@pytest.mark.parametrize("package", FORBIDDEN)
def test_nothing_imports_what_lies_above_it(package: str) -> None:
    assert crossings(package, FORBIDDEN[package]) == []


@pytest.mark.parametrize("noun", NOUNS)
def test_the_nouns_load_no_programs_and_know_no_models(noun: str) -> None:
    assert crossings(noun, ("rig.program.load", "rig.program.codec", "rig.program.run", "rig.model", "rig.cli")) == []


def test_only_the_frontend_imports_tinygrad() -> None:
    allowed = "tolk_engine.frontend"
    found = [
        f"{name}:{line.line}"
        for name in modules()
        if not within(name, allowed)
        for line in imports(name, typing=True)
        if within(line.module, "tinygrad")
    ]
    assert found == []


def test_the_native_core_knows_no_python() -> None:
    sources = sorted(p for p in (ROOT / "native").rglob("*") if p.suffix in (".cc", ".h") and "bindings" not in p.parts)
    assert sources, "native/ has no sources"
    python = re.compile(r"#\s*include\s*[<\"](Python\.h|nanobind/|pybind11/|structmember\.h)")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in sources
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if python.search(line)
    ]
    assert found == []


def test_vendor_libraries_are_never_linked() -> None:
    text = (ROOT / "CMakeLists.txt").read_text("utf-8")
    linked = " ".join(re.findall(r"target_link_libraries\(([^)]*)\)", text)).lower()
    assert not re.search(r"cuda|opencl|hip|hsa|metal|zmq|ucx", linked)
