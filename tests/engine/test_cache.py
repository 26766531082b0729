"""The cache of compiled kernels: what names an entry, what a hit gives, damage, bounds, places, several writers."""

from __future__ import annotations

import json
import math
import os
import re
import stat
import subprocess
import sys
import time
import tomllib
from argparse import ArgumentParser
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import handmade as made
import hostcode
import pytest

from rig.errors import Invalid
from tolk_engine import cache
from tolk_engine.cache import Cache
from tolk_engine.cli import register_cache
from tolk_engine.compile import compile
from tolk_engine.renderer import Renderer, of_target
from tolk_engine.target import parse

pytest.importorskip("tinygrad")

import corpus
from tinygrad.dtype import dtypes
from tinygrad.helpers import Context
from tinygrad.uop.ops import Ops, UOp

from tolk_engine.frontend import identity
from tolk_engine.frontend.identity import kernel_key

ROOT = Path(__file__).parents[2]
V3 = parse("x86-64-v3")
NAMES = [cache.key("entry", str(i)) for i in range(40)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Switch the cache on, in a folder of the test's own."""
    path = tmp_path / "cache"
    monkeypatch.delenv("RIG_CACHE", raising=False)
    monkeypatch.setenv("RIG_CACHE_DIR", str(path))
    return path


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be written or compiled any more."""

    def work(*_: Any, **__: Any) -> Any:
        raise AssertionError("a hit needs no work")

    monkeypatch.setattr(Renderer, "render", work)
    monkeypatch.setattr(Renderer, "object", work)


# what a hit gives


def test_a_hit_needs_no_work_and_gives_the_same(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = corpus.several()
    without = compile(schedule, V3, cache=False)
    assert files(folder) == []
    miss = compile(schedule, V3)
    assert {file.suffix for file in files(folder)} == {".text", ".object"}
    no_work(monkeypatch)
    hit = compile(corpus.several(), V3)
    assert hit == miss == without
    with pytest.raises(AssertionError, match="needs no work"):
        compile(schedule, V3, cache=False)


def test_what_is_the_same_in_another_target_is_used(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile(corpus.schedule("norm"), "x86-64-v3")
    monkeypatch.setattr(Renderer, "render", lambda *_: pytest.fail("the text does not depend on the tuning"))
    compile(corpus.schedule("norm"), "x86-64-v3,tune=native")
    monkeypatch.undo()


def test_entries_hold_no_pickle_but_text(folder: Path) -> None:
    compile(corpus.schedule("affine"), V3)
    (text,) = (file for file in files(folder) if file.suffix == ".text")
    assert "define internal void @__K__" in json.loads(text.read_bytes()[40:])["text"]
    for name in ("cache", "compile"):
        assert "pickle" not in re.findall(r"^\s*import (\w+)", (ROOT / f"src/tolk_engine/{name}.py").read_text(), re.M)


def test_kernels_that_are_named_by_hand_are_never_mixed_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Renderer, "render", made.render)
    results = []
    for value in (1.0, 2.0):
        kernel = made.kernel("same", hostcode.add_constant(value), 2)
        results.append(compile(replace(made.chain(1), kernels=(kernel,) * 3), V3).image)
    assert results[0] != results[1]
    assert {file.suffix for file in files(folder)} == {".object"}


@pytest.mark.case("C35")
def test_what_was_done_before_a_cancel_is_not_done_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = corpus.several()
    wanted = compile(schedule, V3, cache=False)

    def cancel(done: int, total: int, what: str) -> None:
        if 4 * done >= total:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        compile(schedule, V3, jobs=1, progress=cancel)
    before = len(files(folder))
    assert before >= 2 and all(file.suffix == ".text" for file in files(folder))
    real, left = Renderer.render, []
    monkeypatch.setattr(Renderer, "render", lambda self, kernel: left.append(kernel) or real(self, kernel))
    assert compile(schedule, V3, jobs=1) == wanted
    assert len(left) + before == len(schedule.kernels)


@pytest.mark.parametrize("how", ["flip the start", "flip the middle", "flip the end", "cut", "empty", "longer", "swap"])
def test_a_damaged_entry_is_a_miss_and_is_removed(how: str, folder: Path) -> None:
    schedule = corpus.several()
    wanted = compile(schedule, V3)
    entries = files(folder)
    before = {file: file.read_bytes() for file in entries}
    for i, file in enumerate(entries):
        data = bytearray(before[file])
        if how.startswith("flip"):
            data[{"start": 3, "middle": len(data) // 2, "end": -1}[how.split()[-1]]] ^= 0x10
        elif how == "swap":
            others = [other for other in entries if other.suffix == file.suffix and other != file]
            data = bytearray(before[others[i % len(others)]] if others else b"")
        else:
            data = {"cut": data[:-7], "empty": data[:0], "longer": data + b"x"}[how]
        file.write_bytes(data)
    assert compile(schedule, V3) == wanted
    assert {file: file.read_bytes() for file in files(folder)} == before
    entries[0].write_bytes(b"")
    assert Cache(folder).get("".join(entries[0].parts[-2:]).split(".")[0], entries[0].suffix[1:]) is None
    assert not entries[0].exists()


def test_an_entry_that_is_whole_but_no_kernel_is_a_miss(folder: Path) -> None:
    schedule = corpus.schedule("affine")
    wanted = compile(schedule, V3)
    (text,) = (file for file in files(folder) if file.suffix == ".text")
    name = text.parent.name + text.stem
    for content in (b"not JSON", b"{}", b'{"text": 1}'):
        Cache(folder).put(name, "text", content)
        assert compile(schedule, V3) == wanted
        assert b"define internal" in (Cache(folder).get(name, "text") or b"")


# what names an entry


def consts(*values: Any, dtype: Any = None) -> list[str]:
    return [kernel_key(UOp.const(value, dtype) if dtype else UOp.const(value)) for value in values]


def test_a_kernels_key_tells_all_that_differs() -> None:
    assert len(set(consts(0.0, -0.0, 1.0, 1, True, 2**40, math.inf, -math.inf, math.nan))) == 9
    x = UOp.variable("x", 0, 9)
    y = UOp.variable("y", 0, 9)
    nodes = [x, y, x + y, x * y, x - y, y - x, x + x, (x + y).cast(dtypes.float), (x + y).cast(dtypes.half),
             UOp.variable("x", 0, 8), UOp(Ops.SINK, src=(x, y)), UOp(Ops.SINK, src=(y, x)), UOp(Ops.SINK, src=(x,)),
             (x + y) * (x + y), UOp(Ops.SINK, src=(x, x))]  # fmt: skip
    assert len({kernel_key(node) for node in nodes}) == len(nodes)
    assert all(cache.is_key(kernel_key(node)) for node in nodes)
    keys = [kernel.key for name in corpus.FUNCTIONS for kernel in corpus.schedule(name).kernels]
    assert len(set(keys)) >= len(corpus.FUNCTIONS)


def test_what_no_other_process_could_tell_has_no_lasting_key() -> None:
    odd = UOp(Ops.SINK, arg=lambda: None)
    assert not cache.is_key(kernel_key(odd))
    assert kernel_key(odd) == kernel_key(odd) != kernel_key(UOp(Ops.SINK, arg=lambda: 1))


def test_keys_are_the_same_in_any_process() -> None:
    code = (
        "import corpus; from tolk_engine.renderer import of_target; from tolk_engine.target import parse\n"
        "r = of_target(parse('x86-64-v3'))\n"
        "for n in ('norm', 'casts'):\n"
        "  for k in corpus.schedule(n).kernels: print(k.key, r.text_key(k), r.object_key([r.render(k).text]))"
    )
    path = os.pathsep.join([*filter(None, sys.path), str(ROOT / "tests" / "engine")])
    said = set()
    for seed in ("0", "1"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": path}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stderr
        said.add(done.stdout)
    assert len(said) == 1


def test_a_texts_key_covers_what_decides_the_text(monkeypatch: pytest.MonkeyPatch) -> None:
    (kernel,) = corpus.schedule("norm").kernels[:1]
    renderer = of_target(V3)
    keys = [renderer.text_key(kernel)]
    keys += [of_target(parse(arch)).text_key(kernel) for arch in ("x86-64-v2", "arm64", "arm64+fp16")]
    keys.append(renderer.text_key(replace(kernel, key=cache.key("another"))))
    with Context(DEFAULT_FLOAT="float64"):
        keys.append(renderer.text_key(kernel))
    monkeypatch.setattr("tolk_engine.frontend.adapter.VERSION", "0.14.1")
    keys.append(renderer.text_key(kernel))
    monkeypatch.undo()
    monkeypatch.setattr("tolk_engine.frontend.writing.sources", lambda: "other code")
    keys.append(renderer.text_key(kernel))
    assert None not in keys
    assert len(set(keys)) == len(keys)
    with Context(NOOPT=1, DEBUG=2):  # the first is pinned, the second only prints
        monkeypatch.undo()
        assert renderer.text_key(kernel) == keys[0]
    monkeypatch.setattr("tolk_engine.frontend.writing.sources", lambda: "")
    assert renderer.text_key(kernel) is None
    assert renderer.text_key(replace(kernel, key="by hand")) is None


def test_an_objects_key_covers_what_decides_the_object(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [hostcode.add_constant(1.0), hostcode.add_constant(2.0)]
    renderer = of_target(V3)
    keys = [renderer.object_key(texts), renderer.object_key(texts[::-1]), renderer.object_key(texts, first=1)]
    keys += [of_target(parse(arch)).object_key(texts) for arch in ("x86-64-v2", "x86_64_windows,x86-64-v3", "arm64")]
    tuned = of_target(parse("x86-64-v3,tune=native"))
    keys.append(tuned.object_key(texts))
    monkeypatch.setattr(tuned._compiler, "processor", "another")
    keys.append(tuned.object_key(texts))
    monkeypatch.setattr(tuned._compiler, "version", "llvmlite 99")
    keys.append(tuned.object_key(texts))
    assert None not in keys
    if tuned.processor:
        assert len(set(keys)) == len(keys)
    monkeypatch.setattr("tolk_engine.compiler._digest", lambda _: "")
    assert renderer.object_key(texts) is None


def test_the_code_that_writes_is_read_where_it_is() -> None:
    assert cache.is_key(identity.sources())
    for name in ("lower.py", "renderer.py", "adapter.py"):
        assert (Path(identity.__file__).parent / name).is_file()


def test_all_that_tinygrads_generator_asks_of_the_environment_is_known() -> None:
    import tinygrad

    from tolk_engine.frontend import writing

    # For devices with local memory, for search, and for reports: none decides what a host's kernel is.
    other = {"DEBUG_LINEARIZE", "MV", "MV_BLOCKSIZE", "MV_ROWS_PER_THREAD", "MV_THREADS_PER_ROW", "BEAM_ESTIMATE"}
    asked = set()
    package = Path(str(tinygrad.__file__)).parent
    for file in (package / "codegen").rglob("*.py"):
        if file.name != "search.py":
            asked |= set(re.findall(r"getenv\(\"(\w+)\"", file.read_text("utf-8")))
    assert asked - other == set(writing._ENVIRONMENT)


# the folder


def test_entries_come_back_and_can_be_forgotten(tmp_path: Path) -> None:
    kept = Cache(tmp_path / "a" / "b")
    assert kept.get(NAMES[0], "text") is None
    for kind, data in (("text", b""), ("object", bytes(1000))):
        kept.put(NAMES[0], kind, data)
        assert kept.get(NAMES[0], kind) == data
    kept.put(NAMES[0], "text", b"another")
    assert kept.get(NAMES[0], "text") == b"another"
    assert kept.usage() == cache.Usage(2, 1000 + 7 + 2 * 40, 1, 1)
    assert stat.S_IMODE(files(tmp_path)[0].stat().st_mode) == 0o600
    kept.forget(NAMES[0], "text")
    assert kept.get(NAMES[0], "text") is None
    assert kept.usage().entries == 1


def test_what_was_used_longest_ago_goes_first(tmp_path: Path) -> None:
    kept = Cache(tmp_path, limit=10 * 140)
    for i, name in enumerate(NAMES[:10]):
        kept.put(name, "text", bytes(100))
        os.utime(kept._path(name, "text"), (1000 + i, 1000 + i))
    kept.trim()
    assert kept.usage() == cache.Usage(10, 1400, 10, 0)
    assert kept.get(NAMES[0], "text") is not None  # used just now
    kept.put(NAMES[10], "text", bytes(100))
    kept.trim()
    left = [i for i, name in enumerate(NAMES[:11]) if kept._path(name, "text").exists()]
    assert left == [0, 3, 4, 5, 6, 7, 8, 9, 10]
    assert kept.usage().nbytes <= kept.limit * 0.9
    kept.put(NAMES[11], "text", bytes(1361))  # never fits
    assert kept.get(NAMES[11], "text") is None


def test_a_compile_keeps_the_bound(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIG_CACHE_SIZE", "20K")
    wanted = compile(corpus.several(), V3, cache=False)
    for name in ("norm", "casts", "whole"):
        compile(corpus.schedule(name), V3)
        assert sum(file.stat().st_size for file in files(folder)) <= 20 << 10
    assert files(folder)
    assert compile(corpus.several(), V3) == wanted


def test_nothing_else_is_touched(tmp_path: Path) -> None:
    kept = Cache(tmp_path)
    kept.put(NAMES[0], "text", b"data")
    group = kept._path(NAMES[0], "text").parent
    others = [tmp_path / "notes.txt", tmp_path / "ab.text", group / "notes.text", group / ".new-fresh",
              group / f"{NAMES[0][2:]}.other"]  # fmt: skip
    for other in others:
        other.write_text("mine")
    abandoned = group / ".new-old"
    abandoned.write_text("left by a process that ended")
    os.utime(abandoned, (time.time() - 7200,) * 2)
    assert kept.clear() == cache.Usage(1, 44, 1, 0)
    assert files(tmp_path) == sorted(others)
    kept.limit = 1
    kept._grown = True
    kept.trim()
    assert files(tmp_path) == sorted(others)
    assert Cache(tmp_path / "nowhere").clear() == cache.Usage(0, 0, 0, 0)


def test_a_folder_that_cannot_be_used_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("no folder")
    wanted = compile(corpus.schedule("affine"), V3, cache=False)
    monkeypatch.delenv("RIG_CACHE", raising=False)
    for place in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nowhere"), tmp_path / ("n" * 300)):
        monkeypatch.setenv("RIG_CACHE_DIR", str(place))
        assert compile(corpus.schedule("affine"), V3) == wanted
        assert Cache(place).usage().entries == 0
    assert files(tmp_path) == [tmp_path / "file"]


def test_a_folder_that_can_only_be_read_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile(corpus.schedule("affine"), V3)

    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "read-only")

    for name in ("os.utime", "os.replace", "tempfile.mkstemp", "pathlib.Path.unlink"):
        monkeypatch.setattr(name, refuse)
    real = Renderer.object
    monkeypatch.setattr(Renderer, "render", lambda *_: pytest.fail("a hit needs no work"))
    assert compile(corpus.schedule("affine"), V3).kernels
    monkeypatch.undo()
    assert Renderer.object is real


def test_a_full_disk_leaves_nothing_half_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    wanted = compile(corpus.schedule("affine"), V3, cache=False)
    monkeypatch.setattr("os.replace", full)
    assert compile(corpus.schedule("affine"), V3) == wanted
    assert files(folder) == []

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("os.replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        Cache(folder).put(NAMES[0], "text", b"data")
    assert files(folder) == []


_WRITER = """
import random, sys
from pathlib import Path
from tolk_engine.cache import Cache, key
draw = random.Random(int(sys.argv[2]))
kept = Cache(Path(sys.argv[1]), limit=40_000)
hits = 0
for turn in range(400):
    i = draw.randrange(30)
    name, data = key("entry", str(i)), bytes([i]) * (500 + 97 * i)
    found = kept.get(name, "object")
    assert found is None or found == data, i
    hits += found is not None
    kept.put(name, "object", data)
    if turn % 20 == 0:
        kept.trim()
    if turn % 97 == 0:
        kept.clear()
kept.trim()
print(hits)
"""


def test_many_processes_use_one_folder(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    writers = [
        subprocess.Popen([sys.executable, "-c", _WRITER, str(tmp_path), str(seed)], stdout=subprocess.PIPE,
                         stderr=subprocess.PIPE, text=True, env=environment)
        for seed in range(4)
    ]  # fmt: skip
    for writer in writers:
        out, err = writer.communicate(timeout=100)
        assert writer.returncode == 0, err
        assert int(out) > 0
    assert all(re.fullmatch(r"[0-9a-f]{62}\.object", file.name) for file in files(tmp_path))
    assert Cache(tmp_path).usage().nbytes <= 40_000


def test_two_processes_compile_the_same_at_once(folder: Path) -> None:
    code = (
        "import corpus, hashlib; from tolk_engine import compile\n"
        "print(hashlib.sha256(compile(corpus.several(), 'x86-64-v3').image).hexdigest())"
    )
    path = os.pathsep.join([*filter(None, sys.path), str(ROOT / "tests" / "engine")])
    both = [
        subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True,
                         env={**os.environ, "PYTHONPATH": path})
        for _ in range(2)
    ]  # fmt: skip
    said = {process.communicate(timeout=100)[0] for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert len(said) == 1
    assert not [file for file in files(folder) if file.name.startswith(".")]


# where it is


def test_the_environment_says_where(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RIG_CACHE", "RIG_CACHE_DIR", "RIG_CACHE_SIZE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache.place() == (tmp_path / ".cache" / "rig", "", 1 << 30)
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert cache.place()[0] == tmp_path / ".cache" / "rig"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "x"))
    assert cache.place()[0] == tmp_path / "x" / "rig"
    monkeypatch.setenv("RIG_CACHE_DIR", str(tmp_path / "own"))
    assert cache.place()[0] == tmp_path / "own"
    for off in ("0", "off"):
        monkeypatch.setenv("RIG_CACHE", off)
        assert cache.place()[:2] == (None, "RIG_CACHE switches it off")
        assert cache.of_environment() is None


def test_without_a_home_nothing_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RIG_CACHE", "RIG_CACHE_DIR", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.path.expanduser", lambda path: path)
    assert cache.place()[:2] == (None, "there is no home folder")
    assert compile(corpus.schedule("affine"), V3).kernels


@pytest.mark.parametrize(
    ("text", "nbytes"), [("", 1 << 30), ("4096", 4096), ("512M", 512 << 20), ("2 GiB", 2 << 30), ("64kb", 64 << 10)]
)
def test_sizes(text: str, nbytes: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIG_CACHE_SIZE", text)
    assert cache.place() == (folder, "", nbytes)


def test_a_size_that_is_none_is_refused_and_zero_keeps_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RIG_CACHE_SIZE", "much")
    with pytest.raises(Invalid, match="RIG_CACHE_SIZE is 'much', which is no size; write 512M"):
        compile(corpus.schedule("affine"), V3)
    monkeypatch.setenv("RIG_CACHE_SIZE", "0")
    assert cache.place()[:2] == (None, "RIG_CACHE_SIZE is 0")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
def test_code_that_others_could_have_written_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RIG_CACHE", "RIG_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "rig").mkdir()
    assert cache.place()[0] == tmp_path / "rig"
    (tmp_path / "rig").chmod(0o777)
    assert cache.place()[:2] == (None, f"{tmp_path / 'rig'} can be written by every user")
    (tmp_path / "rig").chmod(0o700)
    if os.geteuid() == 0:
        os.chown(tmp_path / "rig", 12345, -1)
    else:
        mine = os.geteuid()
        monkeypatch.setattr("os.geteuid", lambda: mine + 1)
    assert cache.place()[:2] == (None, f"{tmp_path / 'rig'} belongs to another user")


# the command


@pytest.fixture
def filled(folder: Path) -> Iterator[Path]:
    Cache(folder).put(NAMES[0], "text", bytes(1024 - 40))
    Cache(folder).put(NAMES[0], "object", bytes(2048 - 40))
    yield folder


def command(*args: str) -> int | None:
    parser = ArgumentParser("rig cache")
    run = register_cache(parser)
    return run(parser.parse_args(list(args)))


def test_the_command_shows_and_clears(filled: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert not command()
    assert capsys.readouterr().out == f"{filled}: 2 entries (1 texts of kernels, 1 objects), 3 KiB of 1 GiB\n"
    assert not command("show", "--json")
    shown = json.loads(capsys.readouterr().out)
    assert shown == {
        "folder": str(filled), "entries": 2, "texts": 1, "objects": 1, "bytes": 3072, "limit": 1 << 30,
    }  # fmt: skip
    assert not command("clear")
    assert capsys.readouterr().out == f"{filled}: removed 2 entries, 3 KiB\n"
    assert files(filled) == []
    assert not command("clear", "--json")
    assert json.loads(capsys.readouterr().out)["removed_entries"] == 0


def test_the_command_says_why_there_is_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RIG_CACHE", "0")
    assert not command("clear")
    assert capsys.readouterr().out == "no cache: RIG_CACHE switches it off\n"
    assert not command("--json")
    assert json.loads(capsys.readouterr().out)["folder"] is None


def test_the_command_is_registered() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["entry-points"]["rig.commands"]["cache"] == "tolk_engine.cli:register_cache"
