"""From a schedule to code: each kernel once, one image, progress, cancelling, equal bytes."""

from __future__ import annotations

import pickle
import threading
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import handmade as made
import hostcode
import pytest

import rig
from rig.errors import Invalid, Refused
from rig.model.signature import check as check_signature
from rig.program.description import Access, Alloc, Launch, Submit
from tolk_engine import image
from tolk_engine.assemble import SMALL, assemble
from tolk_engine.compile import compile
from tolk_engine.renderer import Renderer, of_target, renderer
from tolk_engine.schedule import Arg, Schedule
from tolk_engine.target import parse


@pytest.fixture(autouse=True)
def _by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Renderer, "render", made.render)


def many(n: int) -> Schedule:
    """Return a chain of `n` different kernels."""
    kernels = [made.kernel(f"k{i}", hostcode.add_constant(float(i)), 2) for i in range(n)]
    s = made.chain(n)
    return replace(s, kernels=tuple(kernels), calls=tuple(replace(c, kernel=i) for i, c in enumerate(s.calls)))


def test_equal_kernels_are_compiled_once_into_one_image() -> None:
    text = hostcode.add_constant(2.0)
    kernels = [made.kernel("a", text, 2), made.kernel("unused", text, 2), made.kernel("a", text, 2),
               made.kernel("b", text, 2), made.kernel("c", hostcode.add_constant(3.0), 2)]  # fmt: skip
    calls = [made.call(0, made.STORAGE(0), made.SLOT(0)), made.call(2, made.STORAGE(1), made.STORAGE(0)),
             made.call(3, made.STORAGE(2), made.STORAGE(1)), made.call(4, made.SLOT(1), made.STORAGE(2))]  # fmt: skip
    s = made.schedule([made.slot("x"), made.slot("y")], [made.storage()] * 3, calls, kernels=kernels)
    compiled = compile(s, "x86-64-v3")
    assert [code.symbol for code in compiled.kernels] == ["f0", "f1"]
    assert [c.kernel for c in compiled.schedule.calls] == [0, 0, 0, 1]
    assert list(image.parse(compiled.image).exports) == ["f0", "f1"]
    program = compiled.to_program()
    assert len(program.images) == 1
    (step,) = program.steps
    assert isinstance(step, Submit)
    assert [p.name for p in step.parts if isinstance(p, Launch)] == ["f0", "f0", "f0", "f1"]


@pytest.mark.case("C22")
@pytest.mark.parametrize("n", [1, 40])
def test_equal_schedules_give_equal_bytes_whatever_the_jobs(n: int, tmp_path: Path) -> None:
    first, second = compile(many(n), jobs=1), compile(many(n))
    assert first.image == second.image
    assert first == second
    first.save(tmp_path / "a")
    second.save(tmp_path / "b")
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


@pytest.mark.case("C35")
@pytest.mark.parametrize("jobs", [1, None])
def test_progress_never_falls_and_ends_at_the_total(jobs: int | None) -> None:
    seen: list[tuple[int, int, str]] = []
    compile(many(40), jobs=jobs, progress=lambda *now: seen.append(now))
    done = [now[0] for now in seen]
    assert done == sorted(done)
    assert {now[1] for now in seen} == {81}
    assert (done[0], done[-1]) == (0, 81)
    assert {"k0", "making machine code"} <= {now[2] for now in seen}


class Enough(Exception):
    """An exception of the caller's."""


@pytest.mark.case("C35")
@pytest.mark.parametrize("at", [0, 20, 41, 80, 81])
def test_an_exception_of_progress_ends_the_work_unchanged(at: int) -> None:
    before = threading.active_count()
    error = Enough("stop")

    def progress(done: int, total: int, what: str) -> None:
        if done >= at:
            raise error

    start = time.monotonic()
    with pytest.raises(Enough) as caught:
        compile(many(40), progress=progress)
    assert caught.value is error
    assert time.monotonic() - start < 10
    assert threading.active_count() == before
    assert len(compile(many(3)).kernels) == 3


def test_progress_shows_a_sign_of_life_while_one_step_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Renderer.object

    def slow(self: Renderer, texts: list[str], **given: Any) -> bytes:
        time.sleep(1.0)
        return real(self, texts, **given)

    monkeypatch.setattr(Renderer, "object", slow)
    times = []
    compile(many(2), progress=lambda *_: times.append(time.monotonic()))
    assert max(b - a for a, b in pairwise(times)) < 0.9


def test_what_is_no_schedule_is_refused() -> None:
    with pytest.raises(Invalid, match="compile takes a schedule, not str"):
        compile("model.onnx")  # type: ignore[arg-type]
    with pytest.raises(Invalid, match="jobs is 0"):
        compile(many(1), jobs=0)
    with pytest.raises(Invalid, match="arch 'x86-64-v9' is unknown"):
        compile(many(1), "x86-64-v9")


def test_a_kernel_that_does_not_compile_is_refused_from_either_thread() -> None:
    bad = made.kernel("bad", hostcode.add_constant(1.0).replace("fadd", "nonsense"), 2)
    s = replace(made.chain(1), kernels=(bad,) * 3)
    for jobs in (1, None):
        with pytest.raises(Refused, match="kernels f0 to f0"):
            compile(s, jobs=jobs)


@pytest.mark.spec("E-link-align")
def test_kernels_that_access_a_parameter_at_two_phases_are_refused() -> None:
    eight = made.kernel("eight", hostcode.add_constant(1.0), 2, align=8)
    off = Arg(made.SLOT(0), 4, 60)
    calls = [made.call(0, made.STORAGE(0), made.SLOT(0)), made.call(0, made.SLOT(1), off, made.STORAGE(0))]
    calls[1] = made.call(0, made.SLOT(1), off)
    s = made.schedule([made.slot("x"), made.slot("y")], [made.storage()], calls, kernels=[eight])
    with pytest.raises(
        Invalid, match=r"call 1 \(eight\) needs input slot 0 \('x'\) to start 4 bytes past a multiple of 8"
    ):
        compile(s)


@pytest.mark.spec("E-link-align")
def test_an_accessed_slot_starts_as_its_strictest_kernel_needs() -> None:
    eight = made.kernel("eight", hostcode.add_constant(1.0), 2, align=8)
    calls = [made.call(0, made.STORAGE(0), made.SLOT(0)), made.call(1, made.SLOT(1), made.SLOT(0))]
    s = made.schedule([made.slot("x"), made.slot("y")], [made.storage()], calls, kernels=[made.ONE, eight])
    tensors = compile(s).signature
    assert (tensors.inputs[0].align, tensors.outputs[0].align) == (8, 8)
    copied = made.schedule([made.slot("x"), made.slot("y")], [], [made.copy(made.SLOT(1), made.SLOT(0))])
    assert compile(copied).signature.inputs[0].align == 1


def test_the_signature_names_what_the_program_takes() -> None:
    compiled = compile(made.chain(3), "x86-64-v2")
    signature = compiled.signature
    check_signature(signature, compiled.to_program())
    assert [(t.name, t.dtype, t.shape, t.slot) for t in signature.inputs] == [("x", "float32", (16,), 0)]
    assert [(t.name, t.slot) for t in signature.outputs] == [("y", 1)]
    assert (signature.target, signature.name) == ("x86-64-v2", "made")
    assert signature.compiler.startswith("by hand, llvmlite ")


# what becomes memory


def with_constants() -> Schedule:
    small = [made.storage(init=bytes([i]) * 64, name=f"small{i}") for i in range(3)]
    big = [made.storage(n=2048, init=bytes([i]) * 8192, name="big") for i in range(2)]
    state = [made.storage(init=bytes(64), name="state")]
    storages = [*small, *big, *state, made.storage(init=bytes(64), name="never used")]
    calls = [made.call(2, made.STORAGE(5), made.STORAGE(5))]
    calls += [made.call(0, made.SLOT(i), made.STORAGE(i), made.STORAGE(5)) for i in range(5)]
    return made.schedule([made.slot(f"y{i}") for i in range(5)], storages, calls, outputs=range(5))


def test_small_constants_share_one_memory_and_large_ones_and_state_have_their_own() -> None:
    made_ = assemble(compile(with_constants()))
    sizes = [m.nbytes for m in made_.program.memory if isinstance(m, Alloc)]
    assert sizes == [192, 8192, 8192, 64]
    (step,) = made_.program.steps
    assert isinstance(step, Submit)
    assert [access for _, access in step.fixed] == [Access.READ, Access.READ, Access.READ, Access.READ_WRITE]


def test_large_constants_are_weights_of_the_file(tmp_path: Path) -> None:
    compiled = compile(with_constants())
    compiled.save(tmp_path / "m.rig")
    program, _, initial = rig.model.read(tmp_path / "m.rig")
    assert sorted(initial) == [1, 2]
    assert {w.name for w in initial.values()} == {"big", "storage4"}
    assert [len(m.init.bytes) for m in program.memory if isinstance(m, Alloc)] == [192, 0, 0, 64]
    assert all(s.nbytes > SMALL for s in compiled.schedule.storages if s.name == "big")


def test_a_compiled_schedule_is_plain_data() -> None:
    compiled = compile(with_constants())
    assert pickle.loads(pickle.dumps(compiled)) == compiled
    assert compiled.schedule.kernels == ()
    with pytest.raises(AttributeError):
        compiled.image = b""  # type: ignore[misc]


# renderers


@pytest.mark.spec("E-renderer")
def test_one_renderer_per_target() -> None:
    host = rig.host()
    device = rig.memory_device("renders")
    assert renderer(host) is renderer(host) is renderer(device)
    assert renderer(host).target.arch.startswith(f"{host.instruction_set},")
    assert of_target(parse("x86-64-v2")) is not of_target(parse("x86-64-v3"))
    device.close()


@pytest.mark.spec("E-renderer")
def test_a_target_that_nothing_writes_for_is_refused_with_the_reason() -> None:
    from test_target import X86, Record

    with pytest.raises(Refused, match=r"programs for CUDA \(sm_90\) cannot be written"):
        renderer(Record("cuda", "sm_90", of=X86))
    with pytest.raises(Invalid, match="io device"):
        renderer(Record("file", ""))


@pytest.mark.spec("E-renderer")
def test_a_missing_tensor_compiler_is_refused_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "tolk_engine.frontend", None)
    with pytest.raises(Refused, match=r"tinygrad.*pip install 'rig-runtime\[tolk\]'"):
        compile(many(1))
