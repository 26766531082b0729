"""C35: a long compile or load says how far it is, can be ended at any time, and leaves nothing half done behind."""

from __future__ import annotations

import gc
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import handmade
import pytest

import rig

np = pytest.importorskip("numpy")
pytest.importorskip("tinygrad")

from tolk_engine import Spec, capture, compile  # noqa: E402
from tolk_engine.renderer import Renderer  # noqa: E402
from tolk_engine.schedule import Schedule  # noqa: E402

pytestmark = [
    pytest.mark.case("C35"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks for processes in /proc"),
]
KERNELS = 200
SOON = 2.0
"""Seconds: the longest that nothing is said, and the longest that ending takes."""

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def program() -> Schedule:
    """Return a program of 200 kernels, no two of which are equal."""

    def function(x: Any) -> Any:
        for i in range(KERNELS):
            x = (x * (1 + i / 512) + i).contiguous()
        return x

    made = capture(function, Spec((64,), "float32"))
    assert len(made.kernels) == len({kernel.key for kernel in made.kernels}) == KERNELS
    return made


def marked(mark: str) -> set[int]:
    """Return the processes whose environment holds `mark`, this one not."""
    found = set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            try:
                if mark.encode() in (folder / "environ").read_bytes():
                    found.add(int(folder.name))
            except OSError:  # it has ended, or is another user's
                continue
    return found


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    """Mark all processes that are started from here."""
    text = uuid.uuid4().hex
    monkeypatch.setenv("RIG_TEST_MARK", text)
    return text


@dataclass
class Told:
    """Notes each call of a progress callback, and raises `error` once half is done."""

    error: BaseException | None = None
    calls: list[tuple[float, int, int]] = field(default_factory=list)
    during: set[int] = field(default_factory=set)
    look: Callable[[], set[int]] = set
    raised: float = 0.0

    def __call__(self, done: int, total: int, *what: str) -> None:
        self.calls.append((time.monotonic(), done, total))
        if self.error is not None and 2 * done >= total:
            self.during = self.look()
            self.raised = time.monotonic()
            raise self.error

    def check(self, start: float, end: float) -> None:
        """Hold the calls to what is promised."""
        counts = [done for _, done, _ in self.calls]
        assert counts == sorted(counts)
        assert len({total for _, _, total in self.calls}) == 1
        assert counts[-1] == self.calls[-1][2]
        times = [start, *(at for at, _, _ in self.calls), end]
        assert max(b - a for a, b in pairwise(times)) < SOON


# compile


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2])
def test_progress_is_steady_and_ends_at_the_total(program: Schedule, jobs: int) -> None:
    told = Told()
    start = time.monotonic()
    compiled = compile(program, jobs=jobs, progress=told)
    told.check(start, time.monotonic())
    assert len(compiled.kernels) == KERNELS
    assert told.calls[0][1] == 0
    assert len({done for _, done, _ in told.calls}) > KERNELS  # each kernel counts


class Enough(Exception):
    """An exception of the caller's own."""


class Stop(BaseException):
    """One that is no `Exception`."""


@pytest.mark.slow
@pytest.mark.parametrize("jobs", [1, 2, None])
@pytest.mark.parametrize("kind", [Enough, Stop])
def test_raising_ends_a_compile(
    program: Schedule, jobs: int | None, kind: type[BaseException], tmp_path: Path, mark: str
) -> None:
    threads = threading.active_count()
    told = Told(kind("at half"), look=lambda: marked(mark))
    path = tmp_path / "model.rig"
    with pytest.raises(kind) as caught:
        compile(program, jobs=jobs, progress=told).save(path)
    assert time.monotonic() - told.raised < SOON
    assert caught.value is told.error
    assert not caught.value.__cause__ and not caught.value.__context__
    assert bool(told.during) is (jobs != 1 and (jobs is not None or len(os.sched_getaffinity(0)) > 1))
    assert marked(mark) == set()
    assert threading.active_count() == threads
    assert list(tmp_path.iterdir()) == []
    # The next one works.
    compile(capture(lambda x: x + 1, Spec((4,), "float32")), jobs=jobs).save(path)
    assert rig.open(path)(np.float32([1, 2, 3, 4])).tolist() == [2, 3, 4, 5]


def test_raising_in_every_step_ends_a_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Renderer, "render", handmade.render)
    total = []
    compile(handmade.chain(5), progress=lambda *now: total.append(now))
    for jobs in (1, None):
        for at in range(len(total)):
            error = Enough(at)
            left = [at]

            def progress(*_: Any, left: list[int] = left, error: Enough = error) -> None:
                left[0] -= 1
                if left[0] < 0:
                    raise error

            before = threading.active_count()
            try:
                compile(handmade.chain(5), jobs=jobs, progress=progress)
            except Enough as e:
                assert e is error
            assert threading.active_count() == before


# the command

_COMMAND = """
import sys
from importlib.metadata import EntryPoint
import rig.cli
rig.cli._entries = lambda: (EntryPoint("compile", "tolk_engine.cli:register", "rig.commands"),)
sys.exit(rig.cli.main(["compile", *sys.argv[1:]]))
"""


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write an ONNX file of some 80 kernels, no two of which are equal."""
    pytest.importorskip("onnx")
    from graphs import model, node

    sizes = [8 + i for i in range(80)]
    draw = np.random.default_rng(1)
    weights = {f"w{i}": draw.standard_normal(pair).astype("float32") for i, pair in enumerate(pairwise(sizes))}
    nodes = [node("MatMul", f"h{i} w{i}", f"h{i + 1}") for i in range(len(weights))]
    path = tmp_path_factory.mktemp("graph") / "model.onnx"
    path.write_bytes(model(nodes, {"h0": [1, 8]}, {f"h{len(weights)}": [1, sizes[-1]]}, weights))
    return path


class Terminal:
    """`rig compile` in a process of its own with a terminal for its standard error."""

    def __init__(self, *args: str) -> None:
        self.text = ""
        self._ours, theirs = pty.openpty()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        self.process = subprocess.Popen(
            [sys.executable, "-c", _COMMAND, *args], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=theirs,
            env=environment,
        )  # fmt: skip
        os.close(theirs)

    def read_until(self, pattern: str, seconds: float = 60) -> bool:
        """Read what it writes until it fits `pattern`; False if it ended or took too long."""
        end = time.monotonic() + seconds
        while not re.search(pattern, self.text):
            ready, _, _ = select.select([self._ours], [], [], 0.2)
            try:
                self.text += os.read(self._ours, 4096).decode() if ready else ""
            except OSError:  # nobody writes to it any more
                return False
            if time.monotonic() > end:
                return False
        return True

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()
        os.close(self._ours)


@pytest.fixture
def started(mark: str) -> Iterator[Callable[..., Terminal]]:
    made: list[Terminal] = []

    def start(*args: str) -> Terminal:
        made.append(Terminal(*args))
        return made[-1]

    yield start
    for terminal in made:
        terminal.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("jobs", "at"), [("1", "reading the model"), ("1", r"[1-9]\d/159"), ("2", r" 0/159"), ("2", r"[1-9]\d/159")]
)
def test_an_interrupt_ends_the_command(
    jobs: str, at: str, graph: Path, started: Callable[..., Terminal], mark: str, tmp_path: Path
) -> None:
    out = tmp_path / "model.rig"
    command = started(str(graph), "-o", str(out), "--jobs", jobs)
    assert command.read_until(at), command.text
    if at.startswith("["):
        assert (len(marked(mark)) > 1) is (jobs == "2")
    start = time.monotonic()
    command.process.send_signal(signal.SIGINT)
    assert command.process.wait(10) == 130
    assert time.monotonic() - start < SOON
    while command.read_until("never written", 1):
        pass
    assert "Traceback" not in command.text
    assert marked(mark) == set()
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_an_older_file(graph: Path, started: Callable[..., Terminal], tmp_path: Path) -> None:
    out = tmp_path / "model.rig"
    out.write_bytes(b"an older file")
    command = started(str(graph), "-o", str(out), "--jobs", "1")
    assert command.read_until(r"[1-9]/159"), command.text
    command.process.send_signal(signal.SIGINT)
    assert command.process.wait(10) == 130
    assert out.read_bytes() == b"an older file"
    assert list(tmp_path.iterdir()) == [out]


# load


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a file of 96 MiB of weights whose program adds the first of each."""
    n = (24 << 20) // 4
    storages = [handmade.storage(init=np.full(n, i + 1, "float32").tobytes(), n=n, name=f"w{i}") for i in range(4)]
    between = [handmade.storage() for _ in range(3)]
    places = [handmade.SLOT(0), *(handmade.STORAGE(4 + i) for i in range(3)), handmade.SLOT(1)]
    calls = [handmade.call(0, places[i + 1], places[i], handmade.STORAGE(i)) for i in range(4)]
    schedule = handmade.schedule([handmade.slot("x"), handmade.slot("y")], [*storages, *between], calls)
    path = tmp_path_factory.mktemp("big") / "model.rig"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Renderer, "render", handmade.render)
        compile(schedule).save(path)
    return path


def works(path: Path) -> bool:
    x = np.zeros(handmade.N, "float32")
    return bool((rig.open(path)(x) == 10).all())


@pytest.mark.parametrize("mmap", [False, True])
def test_a_load_says_how_far_it_is(big: Path, mmap: bool) -> None:
    told = Told()
    start = time.monotonic()
    rig.open(big, mmap=mmap, progress=told)
    told.check(start, time.monotonic())
    assert told.calls[-1][2] == 96 << 20
    assert len(told.calls) >= 4  # each weight counts


@pytest.mark.parametrize("mmap", [False, True])
@pytest.mark.parametrize("kind", [Enough, Stop, KeyboardInterrupt])
def test_raising_ends_a_load(big: Path, mmap: bool, kind: type[BaseException]) -> None:
    gc.collect()
    host = rig.host()
    before = host.memory_in_use
    files = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(3):
        told = Told(kind("at half"))
        with pytest.raises(kind) as caught:
            rig.open(big, mmap=mmap, progress=told)
        assert caught.value is told.error
        assert time.monotonic() - told.raised < SOON
        assert told.calls[-1][1] < told.calls[-1][2]
        del caught, told
    gc.collect()  # the exceptions hold the frames that held them
    assert host.memory_in_use == before
    assert len(list(Path("/proc/self/fd").iterdir())) == files
    assert works(big)
