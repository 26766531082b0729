"""clang as a backend: which one is found, what it refuses, and that its code computes what llvmlite's does."""

from __future__ import annotations

import ctypes
import shutil
import sys
import threading
import time
from pathlib import Path

import handmade as made
import hostcode
import pytest

import rig
from rig.errors import Cancelled, Invalid, Refused
from tolk_engine import clang, elf, image
from tolk_engine.compile import Compiled, compile
from tolk_engine.compiler import compiler
from tolk_engine.renderer import Renderer, of_target, renderer
from tolk_engine.schedule import Schedule
from tolk_engine.target import parse

np = pytest.importorskip("numpy")

TEXTS = [hostcode.binary("fadd"), hostcode.binary("fmul"), hostcode.add_constant(0.5)]


@pytest.fixture
def found() -> clang.Command:
    """Return the clang that is here; without one the test is skipped."""
    try:
        return clang.command()
    except Refused as e:
        pytest.skip(str(e))


def outputs(compiled: Compiled, path: Path, arrays: list[np.ndarray]) -> list[np.ndarray]:
    compiled.save(path)
    got = rig.open(path)(*arrays)
    return [np.asarray(value) for value in (got if isinstance(got, tuple) else (got,))]


def both(schedule: Schedule, target: str) -> list[Compiled]:
    return [compile(schedule, target, backend=backend) for backend in ("llvmlite", "clang")]


# what it computes


@pytest.mark.parametrize("level", ["x86-64-v2", "x86-64-v3"])
def test_equal_results_on_the_corpus(level: str, found: clang.Command, tmp_path: Path) -> None:
    pytest.importorskip("tinygrad")
    import corpus

    if rig.host().instruction_set != "x86_64" or rig.host().arch < level:
        pytest.skip(f"this machine does not run {level}")
    # From the third level on a product and a sum may become one operation that rounds once, and which products do is
    # each LLVM's choice: before 19 it is another than llvmlite's in some kernels.
    exact = level < "x86-64-v3" or found.major >= 19
    for name in corpus.FUNCTIONS:
        arrays = corpus.arrays(name)
        wanted, got = (outputs(c, tmp_path / "model", arrays) for c in both(corpus.schedule(name), level))
        assert len(wanted) == len(got) > 0
        for a, b in zip(wanted, got, strict=True):
            if exact:
                assert a.tobytes() == b.tobytes(), name
            else:
                np.testing.assert_allclose(a.astype("f8"), b.astype("f8"), rtol=0, atol=1e-5 * np.abs(a).max())


@pytest.mark.usefixtures("found")
def test_equal_results_of_a_model_of_several_kernels(tmp_path: Path) -> None:
    pytest.importorskip("tinygrad")
    import corpus

    draw = np.random.default_rng(3)
    arrays = [draw.standard_normal(shape).astype("float32") for shape in ((1, 3, 16, 16), (6, 3, 3, 3), (384, 24))]
    compiled = both(corpus.several(), "x86-64-v3,tune=native")
    assert len(compiled[1].kernels) > 3
    wanted, got = (outputs(c, tmp_path / "model", arrays) for c in compiled)
    for a, b in zip(wanted, got, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-5 * np.abs(a).max())


@pytest.mark.usefixtures("found")
def test_it_makes_code_for_each_target() -> None:
    for arch in ("x86-64-v1", "x86-64-v2", "x86-64-v3", "x86-64-v4", "arm64", "arm64+dotprod+fp16+sve"):
        target = parse(arch)
        made_ = compiler(target, "clang")
        data = made_.object(TEXTS)
        assert data == made_.object(TEXTS)
        assert elf.parse(data).machine == target.instruction_set
        flat = image.parse(image.flat(data, target.requires))
        assert list(flat.exports) == ["f0", "f1", "f2"] and not flat.imports
    windows = parse("x86_64_windows,x86-64-v3")
    assert list(image.parse(image.flat(compiler(windows, "clang").object(TEXTS), "x86-64-v3")).exports)


@pytest.mark.usefixtures("found")
def test_its_code_runs_and_calls_what_it_has_to_import() -> None:
    if rig.host().instruction_set != "x86_64":
        pytest.skip("the code is for x86-64")
    data = compiler(parse("x86-64-v1"), "clang").object([hostcode.calls("truncf"), hostcode.add_constant(0.5)])
    flat = image.flat(data, "x86-64-v1")
    assert list(image.parse(flat).imports) == ["truncf"]
    loaded = hostcode.Loaded(flat)
    x, y = hostcode.floats([1.5, -2.75, 3.0]), hostcode.floats([0.0] * 3)
    loaded.call("f0", [ctypes.addressof(y), ctypes.addressof(x)], 0, 3)
    assert list(y) == [1.0, -2.0, 3.0]
    loaded.call("f1", [ctypes.addressof(y), ctypes.addressof(x)], 1, 3)
    assert list(y) == [1.0, -2.25, 3.5]


def test_functions_of_llvm_are_declared_for_those_that_want_it() -> None:
    module = (
        "declare float @llvm.floor.f32(float)\n"
        "  %a = call float @llvm.sqrt.f32(float %x)\n"
        "  %b = tail call nnan <4 x float> @llvm.fma.v4f32(<4 x float> %x, <4 x float> %y, <4 x float> %z)\n"
        "  %c = call float @llvm.sqrt.f32(float %a)\n  %d = call float @llvm.floor.f32(float %c)\n"
    )
    assert clang._declarations(module).splitlines() == [
        "declare float @llvm.sqrt.f32(float)",
        "declare <4 x float> @llvm.fma.v4f32(<4 x float>, <4 x float>, <4 x float>)",
    ]


# choosing it


def test_the_backend_is_chosen_by_argument_or_environment(
    found: clang.Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Renderer, "render", made.render)
    assert compile(made.chain(2)).compiler.startswith("by hand, llvmlite ")
    by_clang = compile(made.chain(2), backend="clang")
    assert by_clang.compiler == by_clang.signature.compiler == f"by hand, clang {found.version}"
    monkeypatch.setenv("RIG_COMPILER", "clang")
    assert compile(made.chain(2)) == by_clang
    assert compile(made.chain(2), backend="llvmlite").compiler.startswith("by hand, llvmlite ")
    host = rig.host()
    assert renderer(host, "clang") is renderer(host) is not renderer(host, "llvmlite")
    monkeypatch.setenv("RIG_COMPILER", "gcc")
    with pytest.raises(Invalid, match="RIG_COMPILER: compiler 'gcc' is unknown; known are llvmlite, clang"):
        compile(made.chain(2))
    with pytest.raises(Invalid, match=r"^compiler 'nvcc' is unknown"):
        compile(made.chain(2), backend="nvcc")


@pytest.mark.usefixtures("found")
def test_keys_tell_backends_apart() -> None:
    target = parse("x86-64-v3")
    keys = [of_target(target, backend).object_key(TEXTS) for backend in ("llvmlite", "clang")]
    assert None not in keys and keys[0] != keys[1]


@pytest.mark.usefixtures("found")
def test_the_command_compiles_with_it(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    from argparse import ArgumentParser

    from graphs import model, node

    from tolk_engine.cli import register

    (tmp_path / "m.onnx").write_bytes(model([node("Add", "x x", "y")], {"x": [3]}, {"y": [3]}, {}))
    parser = ArgumentParser()
    run = register(parser)
    out = tmp_path / "m.rig"
    assert not run(parser.parse_args([str(tmp_path / "m.onnx"), "-o", str(out), "--compiler", "clang", "-q"]))
    opened = rig.open(out)
    assert ", clang " in opened.signature.compiler
    assert opened(np.float32([1, 2, 3])).tolist() == [2, 4, 6]


def script(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def says(version: str) -> str:
    return f'[ "$1" = --version ] && echo "Some clang version {version} (build)" && exit 0'


@pytest.fixture
def nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """Hide every clang; return the only folder that is searched."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.delenv("RIG_CLANG", raising=False)
    monkeypatch.setattr("tolk_engine.clang.find_spec", lambda _: None)
    return folder


@pytest.mark.spec("E-renderer")
def test_a_missing_clang_is_refused_with_what_to_install(nothing: Path) -> None:
    with pytest.raises(Refused, match=r"clang compiler is not there; install clang 15 or later \(apt-get install "):
        clang.Clang(parse("x86-64-v3"))


def test_an_old_clang_is_refused_by_its_version(nothing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = script(nothing / "clang", says("14.0.6"))
    with pytest.raises(Refused, match=rf"too old: {old} is clang 14\.0\.6; install clang 15 or later"):
        clang.command()
    good = script(nothing / "clang-17", says("17.0.6"))
    script(nothing / "clang-16", says("16.0.6"))
    clang._command.cache_clear()
    assert clang.command() == clang.Command((good,), "Some clang version 17.0.6 (build)", 17, "17.0.6")
    monkeypatch.setenv("RIG_CLANG", old)
    with pytest.raises(Refused, match=r"is clang 14\.0\.6"):
        clang.command()
    for other in (str(nothing / "none"), script(nothing / "cc", "echo gcc 13"), script(nothing / "bad", "exit 1")):
        monkeypatch.setenv("RIG_CLANG", other)
        with pytest.raises(Refused, match=r"RIG_CLANG is .*, which is no clang; install"):
            clang.command()


@pytest.mark.usefixtures("found")
def test_a_command_of_several_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words = clang.command().words
    wrapper = script(tmp_path / "run me", 'shift; exec "$@"')
    monkeypatch.setenv("RIG_CLANG", " ".join([f"'{wrapper}'", "--", *words]))
    assert clang.command().words == (wrapper, "--", *words)
    assert clang.Clang(parse("x86-64-v2")).object(TEXTS) == compiler(parse("x86-64-v2"), "clang").object(TEXTS)


# what goes wrong


def test_a_text_that_does_not_compile_is_refused_with_the_reason(found: clang.Command) -> None:
    c = compiler(parse("x86-64-v3"), "clang")
    with pytest.raises(Refused, match=rf"clang {found.version}: kernels f4 to f4: .*error: expected instruction"):
        c.object([TEXTS[0].replace("fadd", "nonsense")], first=4)
    with pytest.raises(Refused, match=r"kernel f0 uses 'asm', which may need instructions above x86-64-v3"):
        c.object([TEXTS[0].replace("  %s = fadd", '  call void asm "vzeroall", ""()\n  %s = fadd')])
    assert c.object(TEXTS)


def test_a_command_that_breaks_later_is_refused(nothing: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = nothing / "clang"
    script(path, says("19.1.7") + "\ncat > /dev/null; echo broken >&2; exit 3")
    monkeypatch.setenv("PATH", f"{nothing}:/usr/bin:/bin")
    c = clang.Clang(parse("x86-64-v3"))
    with pytest.raises(Refused, match="kernels f0 to f2: broken"):
        c.object(TEXTS)
    script(path, says("19.1.7") + "\nexit 0")
    with pytest.raises(Refused, match="kernels f0 to f2: status 0"):
        c.object(TEXTS)
    path.unlink()
    with pytest.raises(Refused, match="clang does not start"):
        c.object(TEXTS)


def test_variables_that_change_code_do_not_reach_it(found: clang.Command, monkeypatch: pytest.MonkeyPatch) -> None:
    c = compiler(parse("x86-64-v3"), "clang")
    wanted = c.object(TEXTS)
    monkeypatch.setenv("CCC_OVERRIDE_OPTIONS", "+-O0")
    assert c.object(TEXTS) == wanted


def slow_clang(folder: Path, *, wrapped: bool = False) -> Path:
    """Write a clang that takes half a minute; it writes its number to the path that is returned.

    With `wrapped` it is a command that starts the one that does the work, whose number it is.
    """
    noted = folder / "number"
    work = f"sleep 30 & echo $! > {noted}; wait" if wrapped else f"echo $$ > {noted}; exec sleep 30"
    script(folder / "slow", f"{says('19.1.7')}\n[ \"$1\" = '-###' ] && exit 0\n{work}")
    return noted


def gone(number: int) -> bool:
    """Whether a process has ended, or does so at once; nobody may have waited for it yet."""
    for _ in range(20):
        try:
            if Path(f"/proc/{number}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX":
                return True
        except OSError:
            return True
        time.sleep(0.02)
    return False


@pytest.mark.timeout(30)
@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell")
def test_one_that_is_slow_to_read_gets_all_of_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = hostcode.add_constant(0.5) + ";" + "x" * 300_000 + "\n"  # more than a pipe holds
    script(tmp_path / "late", f"{says('19.1.7')}\nsleep 0.5\nexec wc -c")
    monkeypatch.setenv("RIG_CLANG", str(tmp_path / "late"))
    late = clang.Clang(parse("x86-64-v3"))
    for stop in (None, threading.Event()):
        assert int(late.object([text], stop=stop)) == len(late.module([text]).encode())


@pytest.mark.timeout(30)
@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell")
def test_one_that_ends_without_reading_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = threading.active_count()
    script(tmp_path / "deaf", f"{says('19.1.7')}\necho no >&2\nexit 4")
    monkeypatch.setenv("RIG_CLANG", str(tmp_path / "deaf"))
    deaf = clang.Clang(parse("x86-64-v3"))
    for stop in (None, threading.Event()):
        with pytest.raises(Refused, match="kernels f0 to f0: no"):
            deaf.object([hostcode.add_constant(0.5) + ";" + "x" * 300_000 + "\n"], stop=stop)
    assert threading.active_count() == before


@pytest.mark.case("C35")
@pytest.mark.skipif(shutil.which("sleep") is None, reason="needs the command sleep")
def test_what_is_cancelled_leaves_no_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted = slow_clang(tmp_path)
    monkeypatch.setenv("RIG_CLANG", str(tmp_path / "slow"))
    monkeypatch.setattr(Renderer, "render", made.render)
    error = ZeroDivisionError("enough")

    def progress(done: int, total: int, what: str) -> None:
        if noted.exists() and noted.read_text().strip():
            raise error

    start = time.monotonic()
    with pytest.raises(ZeroDivisionError) as caught:
        compile(made.chain(3), "x86-64-v3", backend="clang", progress=progress)
    assert caught.value is error
    assert time.monotonic() - start < 3
    assert gone(int(noted.read_text()))


@pytest.mark.skipif(sys.platform == "win32", reason="needs a shell")
@pytest.mark.parametrize("wrapped", [False, True])
def test_stop_ends_it_soon(wrapped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noted = slow_clang(tmp_path, wrapped=wrapped)
    monkeypatch.setenv("RIG_CLANG", str(tmp_path / "slow"))
    stop = threading.Event()
    threading.Timer(0.3, stop.set).start()
    start = time.monotonic()
    with pytest.raises(Cancelled, match="kernels f0 to f2: cancelled"):
        clang.Clang(parse("x86-64-v3")).object(TEXTS, stop=stop)
    assert 0.2 < time.monotonic() - start < 2
    assert gone(int(noted.read_text()))
