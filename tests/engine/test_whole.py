"""Real tensor functions through the whole way, for each level that this machine runs."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import rig
from rig.errors import Refused
from rig.program.codec import of_bytes, to_bytes
from tolk_engine import Storage, capture, compile, image, link, run, slots
from tolk_engine.target import X86_LEVELS

numpy = pytest.importorskip("numpy")
tinygrad = pytest.importorskip("tinygrad")

MINE = rig.host().arch
LEVELS = [level for level in X86_LEVELS if MINE.startswith("x86") and level <= MINE]
ABOVE = {
    "x86-64-v1": r"\bv?p?(shufb|blendvb?|extrd|insrd)\b|\broundps|\bv(add|mul|mov)|ymm|zmm|\bpopcnt|\bvfmadd",
    "x86-64-v2": r"\bv(add|mul|sub|mov)[a-z]*\b|ymm|zmm|\bvfmadd|\b(andn|shlx|sarx|mulx)\b",
    "x86-64-v3": r"zmm|\{%?k[0-7]\}|[xy]mm(1[6-9]|2\d|3[01])",
    "x86-64-v4": r"\btile|\bvdpbf16|\bvp4dp|%tmm|\bvpdpb",
}


def network(x: Any, w: Any, b: Any) -> Any:
    """Return a network with a matmul, a reduction, exponentials, halves and whole numbers."""
    h = (x @ w + b).relu().half().float()
    n = (h.softmax(-1) * 100).int()
    return h.softmax(-1), n.sum(-1), h.max(-1).sqrt().floor()


def expected(x: Any, w: Any, b: Any) -> Any:
    h = numpy.maximum(x @ w + b, 0).astype(numpy.float16).astype(numpy.float32)
    e = numpy.exp(h - h.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True), numpy.floor(numpy.sqrt(h.max(-1)))


def numbers(seed: int) -> Any:
    """Return small numbers, so that a half that is rounded the other way is no large step."""
    r = numpy.random.default_rng(seed)
    return [r.standard_normal(s, dtype=numpy.float32) * numpy.float32(0.2) for s in ((8, 32), (32, 64), (64,))]


@pytest.fixture(scope="module")
def schedule() -> Any:
    empty = [tinygrad.Tensor.empty(*shape, device="CPU") for shape in ((8, 32), (32, 64), (64,))]
    return capture(network, *empty)


@pytest.mark.spec("E-target-portable")
@pytest.mark.case("C18")
@pytest.mark.parametrize("tune", ["", ",tune=native"])
@pytest.mark.parametrize("level", LEVELS)
def test_each_level_computes_the_same_with_its_own_instructions(
    level: str, tune: str, schedule: Any, tmp_path: Path
) -> None:
    compiled = compile(schedule, level + tune)
    compiled.save(tmp_path / "model.rig")
    model = rig.open(tmp_path / "model.rig")
    x, w, b = numbers(0)
    soft, _, roots = model(x, w, b)
    want_soft, want_roots = expected(x, w, b)
    numpy.testing.assert_allclose(soft, want_soft, rtol=2e-3, atol=1e-5)
    numpy.testing.assert_allclose(roots, want_roots, atol=0)
    objdump = shutil.which("objdump")
    if objdump is None:
        return
    flat = image.parse(compiled.image)
    code = tmp_path / "body"
    code.write_bytes(flat.body[min(flat.exports.values()) :])
    command = [objdump, "-D", "--no-show-raw-insn", "-b", "binary", "-m", "i386:x86-64", str(code)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert re.search(ABOVE[level], text) is None
    if level == "x86-64-v3":  # the patterns do find what they look for
        assert re.search(ABOVE["x86-64-v2"], text)


@pytest.mark.parametrize("storage", Storage)
def test_linked_and_through_bytes_agree(schedule: Any, storage: Storage) -> None:
    compiled = compile(schedule)
    assert of_bytes(to_bytes(compiled.to_program())) == compiled.to_program()
    linked = link(compiled, {"CPU": rig.host()}, storage=storage)
    given = slots(linked)
    data = numbers(1)
    for buffer, values in zip(given, data, strict=False):
        assert buffer is not None
        buffer.write(values)
    for _ in range(2):
        run(linked, given)
        assert given[3] is not None
        soft = numpy.frombuffer(given[3].read(), numpy.float32).reshape(8, 64)
        numpy.testing.assert_allclose(soft, expected(*data)[0], rtol=2e-3, atol=1e-5)


def children() -> set[int]:
    """Return the processes that this one started and that are not gone."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == os.getpid():
                found.add(int(entry.name))
    return found


@pytest.mark.case("C35")
def test_processes_write_the_same_kernels_and_are_gone_afterwards(schedule: Any) -> None:
    before = children()
    seen: list[int] = []
    assert compile(schedule, jobs=2, progress=lambda done, *_: seen.append(done)) == compile(schedule, jobs=1)
    assert seen == sorted(seen) and seen[-1] == 2 * len(schedule.kernels) + 1
    assert children() == before

    def stop(done: int, total: int, what: str) -> None:
        if children() != before:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compile(schedule, jobs=2, progress=stop)
    assert children() == before


def test_what_goes_wrong_in_a_process_is_told(schedule: Any) -> None:
    broken = replace(schedule, kernels=tuple(replace(k, ast="nothing") for k in schedule.kernels))
    with pytest.raises(Refused, match=r"kernel \S+: \w+"):
        compile(broken, jobs=2)
    before = children()

    def kill(done: int, total: int, what: str) -> None:
        for process in children() - before:
            os.kill(process, signal.SIGKILL)

    with pytest.raises(Refused, match=r"kernel \S+: its compiler's process (ended|cannot be reached)"):
        compile(schedule, jobs=2, progress=kill)
    assert children() == before


def test_arm64_code_of_a_real_network_resolves(schedule: Any) -> None:
    flat = image.parse(compile(schedule, "arm64+fp16").image)
    assert flat.requires == "arm64+fp16"
    assert set(flat.imports) <= image.IMPORTS
    assert len(flat.exports) == len(compile(schedule, "x86-64-v3").kernels)
