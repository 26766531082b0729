"""From a schedule to `Compiled`: plain data with code, ready to be linked, or saved and opened elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from itertools import accumulate
from threading import Event
from typing import TYPE_CHECKING, Any, TypeVar

from rig.errors import Invalid
from tolk_engine import elf, image
from tolk_engine.access import Accesses, accesses
from tolk_engine.cache import Cache, of_environment
from tolk_engine.loops import check_loops
from tolk_engine.plan import Plan, lifetimes, plan
from tolk_engine.renderer import Renderer, of_target
from tolk_engine.schedule import Call, CopyCall, Foreign, Kernel, Loop, Lowered, Schedule, SlotRef, Step
from tolk_engine.target import Target, default, parse
from tolk_engine.workers import Workers

if TYPE_CHECKING:
    from rig.model.notes import Notes
    from rig.model.signature import Signature, Tensor
    from rig.program.description import Program
    from tolk_engine.assemble import Assembly
    from tolk_engine.progress import Progress

__all__ = ["Code", "Compiled", "compile"]

_T = TypeVar("_T")

_CHUNK = 16
"""How many kernels one module holds: few enough that a cancel is soon felt, and fixed, so that bytes do not vary."""

_WORTH_PROCESS = 24  # so many kernels take longer to write than a process takes to start
_PATIENCE = 0.25  # seconds between two calls of `progress` while code is made


@dataclass(frozen=True, slots=True)
class Code:
    """A compiled kernel: function `symbol` of the image, or of library `library` if that is not negative.

    For the rest see `tolk_engine.schedule.Lowered`.
    """

    symbol: str
    name: str
    iterations: int
    ops: int
    mem: int
    arg_order: tuple[int, ...]
    n_values: int
    library: int = -1


@dataclass(frozen=True, slots=True)
class Compiled:
    """A schedule with its code: what `link` takes and `save` writes.

    `schedule` has no kernels any more: call i's ``kernel`` indexes `kernels`. `image` is the flat image that holds all
    of them but those of `libraries`, shared libraries as they are; `plan` places the storage; `compiler` says what made
    it.
    """

    schedule: Schedule
    kernels: tuple[Code, ...]
    image: bytes = field(repr=False)
    target: Target
    plan: Plan = field(repr=False)
    accesses: Accesses = field(repr=False)
    compiler: str
    libraries: tuple[bytes, ...] = field(default=(), repr=False)

    @property
    def signature(self) -> Signature:
        """Return the names, element types and shapes of what it takes and gives.

        Raises `Invalid` if a slot would have to start off a multiple of its alignment, which no signature says.
        """
        from rig.model.signature import Signature, Variable

        return Signature(
            inputs=tuple(self._tensor(i) for i in self.schedule.inputs),
            outputs=tuple(self._tensor(i) for i in self.schedule.outputs),
            compiler=self.compiler,
            target=self.target.requires,
            name=self.schedule.name,
            variables=tuple(Variable(v.name, v.min, v.max, v.default) for v in self.schedule.variables),
            words=self.schedule.words,
        )

    def to_program(self) -> Program:
        """Return the program, initial data included; its devices are the schedule's, in the order of first use."""
        from tolk_engine.assemble import assemble

        return assemble(self).program

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to the file `path`, whole or not at all; an older file there stays if it fails.

        Initial data of more than `tolk_engine.assemble.SMALL` bytes is written as tensors named by `Storage.name`.
        Equal models give equal files. Raises as `rig.model.artifact.save`.
        """
        from rig.model.artifact import Weight, save
        from tolk_engine.assemble import assemble

        made = assemble(self, weights=True)
        weights: list[tuple[Weight, bytes | memoryview]] = []
        names: set[str] = set()
        for memory, index in made.weights:
            storage = self.schedule.storages[index]
            name = storage.name if storage.name and storage.name not in names else f"storage{index}"
            names.add(name)
            shape = storage.shape if storage.shape or storage.dtype != "uint8" else (storage.nbytes,)
            weights.append((Weight(name, memory, storage.dtype, shape), storage.init or b""))
        save(path, made.program, self.signature, weights, notes=self._notes(made))

    def _notes(self, made: Assembly) -> Notes:
        """Say for people what the kernels are, and which storage lies where from which part to which."""
        from rig.model.notes import KernelNote, Notes, PieceNote

        parts = accumulate((not isinstance(c, CopyCall) or c.nbytes > 0 for c in self.schedule.flat()), initial=0)
        part_of = list(parts)  # calls that copy nothing are no parts
        lives = lifetimes(self.schedule)
        pieces = []
        for index, memory, offset in made.planned:
            first, last = lives[index] or (0, 0)
            nbytes = self.schedule.storages[index].nbytes
            pieces.append(PieceNote(memory, offset, nbytes, part_of[first], part_of[last]))
        return Notes(tuple(KernelNote(k.symbol, k.name, k.ops, k.mem) for k in self.kernels), tuple(pieces))

    def _tensor(self, index: int) -> Tensor:
        from rig.model.signature import Tensor

        slot = self.schedule.slots[index]
        start = self.accesses.starts.get(SlotRef(index))
        if start is not None and start.phase:
            raise Invalid(
                f"slot {index} ({slot.name!r}) must start {start.phase} bytes past a multiple of {start.align}"
            )
        return Tensor(slot.name, slot.dtype, slot.shape, index, start.align if start else 1)


def compile(
    schedule: Schedule,
    target: Target | str | None = None,
    *,
    backend: str | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
    cache: bool = True,
) -> Compiled:
    """Compile `schedule` for `target`: a `Target`, an arch such as ``x86-64-v3``, or by default code that travels.

    Kernels that are equal are compiled once, all of them into one image. `backend` makes the code: ``llvmlite``,
    ``clang``, or by default what ``RIG_COMPILER`` says, else llvmlite. What was compiled before is taken from the cache
    (`tolk_engine.cache`) unless `cache` is false; the result is the same. `jobs` is the number of processes that write
    kernels, by default one for each core where there are many kernels; with 1 everything happens on the calling thread.
    The result is the same. `progress` is told how many of the steps are done; an exception that it raises ends the
    work, its processes and threads, and passes unchanged.

    Raises `Invalid` if `schedule` is no schedule, reads what nothing wrote, or accesses one buffer at two phases, and
    for a backend that is unknown; `Refused` if the compiler is missing or cannot compile a kernel.
    """
    if not isinstance(schedule, Schedule):
        raise Invalid(f"compile takes a schedule, not {type(schedule).__name__}")
    if jobs is not None and jobs < 1:
        raise Invalid(f"jobs is {jobs}, need at least 1")
    target = default() if target is None else parse(target) if isinstance(target, str) else target
    check_loops(schedule)
    planned = plan(schedule)
    renderer = of_target(target, backend)
    kept = of_environment() if cache else None
    steps = _Steps(progress, 2 * len(_wanted(schedule)) + 1)
    with ExitStack() as stack:
        if kept is not None:
            stack.callback(kept.trim)
        source = stack.enter_context(_Source(schedule, renderer, jobs, steps, kept))
        made = stack.enter_context(_Objects(renderer, kept, threaded=jobs != 1))
        order, lowered = _write(schedule, source, made, steps)
        objects = list(made.finish(steps))
    steps.tell("joining")
    foreign, libraries = _foreign(schedule, target)
    lowered |= {i: k.lowered() for i, k in enumerate(schedule.kernels) if isinstance(k, Foreign)}
    found = accesses(schedule, [lowered.get(i) for i in range(len(schedule.kernels))])
    data = image.flat(objects, target.requires, calling=int(target.windows))
    codes = list(dict.fromkeys(order.values()))
    order |= {i: len(codes) + n for n, i in enumerate(foreign)}
    calls = _numbered(schedule.calls, order)
    first = {symbol: next(i for i in order if order[i] == symbol) for symbol in codes}
    kernels = (*(_code(symbol, lowered[first[symbol]]) for symbol in codes), *foreign.values())
    steps.done(1, "done")
    made_by = ", ".join(filter(None, (schedule.compiler, renderer.version)))
    plain = replace(schedule, kernels=(), calls=calls)
    return Compiled(plain, kernels, data, target, planned, found, made_by, libraries)


def _numbered(steps: Sequence[Step], order: Mapping[int, int]) -> tuple[Step, ...]:
    """Return the steps with each kernel's number in `order`."""
    out: list[Step] = []
    for step in steps:
        if isinstance(step, Loop):
            step = replace(step, calls=_numbered(step.calls, order))
        elif isinstance(step, Call):
            step = replace(step, kernel=order[step.kernel])
        out.append(step)
    return tuple(out)


def _wanted(schedule: Schedule) -> list[int]:
    """Return the kernels to compile that calls use, in the order of first use."""
    used = dict.fromkeys(call.kernel for call in schedule.flat() if isinstance(call, Call))
    return [i for i in used if isinstance(schedule.kernels[i], Kernel)]


def _foreign(schedule: Schedule, target: Target) -> tuple[dict[int, Code], tuple[bytes, ...]]:
    """Return the kernels that are compiled already, and the libraries that they are in."""
    libraries: dict[bytes, int] = {}
    codes = {}
    for index, k in enumerate(schedule.kernels):
        if isinstance(k, Foreign):
            found = elf.machine(k.library)
            if found != target.instruction_set:
                raise Invalid(f"function {k.symbol!r} is {found or 'no'} code, the target is {target.requires}")
            library = libraries.setdefault(k.library, len(libraries))
            order = tuple(range(len(k.aligns)))
            codes[index] = Code(k.symbol, k.symbol, k.iterations, k.ops, k.mem, order, k.n_values, library)
    return codes, tuple(libraries)


def _code(symbol: int, kernel: Lowered) -> Code:
    k = kernel
    return Code(f"f{symbol}", k.name, k.iterations, k.ops, k.mem, k.arg_order, k.n_values)


class _Steps:
    """Counts steps and tells `progress`."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress = progress
        self._total = total
        self._done = 0

    def done(self, n: int, what: str) -> None:
        self._done += n
        self.tell(what)

    def tell(self, what: str) -> None:
        if self._progress is not None:
            self._progress(self._done, self._total, what)


def _write(
    schedule: Schedule, source: _Source, objects: _Objects, steps: _Steps
) -> tuple[dict[int, int], dict[int, Lowered]]:
    """Hand each text to `objects`; return for each kernel of the schedule its number in the image, and it lowered."""
    order: dict[int, int] = {}
    lowered: dict[int, Lowered] = {}
    texts: dict[str, int] = {}
    keys: dict[str, int] = {}
    pending: list[str] = []
    steps.tell("writing kernels")
    for index in _wanted(schedule):
        kernel = schedule.kernels[index]
        same = keys.setdefault(kernel.key, index)
        if same != index:
            order[index], lowered[index] = order[same], lowered[same]
            steps.done(2, kernel.name)
            continue
        lowered[index] = made = source.lower(index)
        steps.done(1, kernel.name)
        if made.text in texts:
            order[index] = texts[made.text]
            steps.done(1, kernel.name)
            continue
        order[index] = texts[made.text] = len(texts)
        pending.append(made.text)
        if len(pending) == _CHUNK:
            objects.start(pending)
            pending = []
    if pending:
        objects.start(pending)
    return order, lowered


def _await(future: Future[_T], steps: _Steps, what: str) -> _T:
    """Return the result of `future`, with a sign of life to `steps` while it takes long."""
    while True:
        try:
            return future.result(_PATIENCE)
        except TimeoutError:
            if future.done():  # raised by the work itself
                raise
            steps.tell(what)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Source:
    """Lowers a schedule's kernels, in processes if that pays; leaving it leaves no process behind."""

    def __init__(
        self, schedule: Schedule, renderer: Renderer, jobs: int | None, steps: _Steps, cache: Cache | None
    ) -> None:
        self._kernels = schedule.kernels
        self._renderer = renderer
        self._steps = steps
        self._cache = cache
        used = _wanted(schedule)
        firsts = {schedule.kernels[i].key: i for i in reversed(used)}
        self._keys: dict[int, str] = {}
        self._known: dict[int, Lowered] = {}
        if cache is not None:
            for index in firsts.values():
                self._look_up(cache, index)
        wanted = [i for i in used if firsts[schedule.kernels[i].key] == i and i not in self._known]
        count = min(_cores(), len(wanted) // _WORTH_PROCESS) if jobs is None else jobs
        self._workers = Workers(min(count, len(wanted)), renderer.target) if count > 1 and len(wanted) > 1 else None
        self._started: dict[int, Future[Lowered]] = {}
        if self._workers is not None:
            started = self._workers.lower([k for i in wanted if isinstance(k := schedule.kernels[i], Kernel)])
            self._started = dict(zip(wanted, started, strict=True))

    def __enter__(self) -> _Source:
        return self

    def __exit__(self, *exc: Any) -> None:
        if self._workers is not None:
            self._workers.__exit__(*exc)

    def lower(self, index: int) -> Lowered:
        kernel = self._kernels[index]
        assert isinstance(kernel, Kernel)  # it is wanted
        if index in self._known:
            return self._known[index]
        if self._workers is None:
            made = self._renderer.render(kernel)
        else:
            made = _await(self._started[index], self._steps, kernel.name)
        if self._cache is not None and index in self._keys:
            self._cache.put(self._keys[index], "text", _packed(made))
        return made

    def _look_up(self, cache: Cache, index: int) -> None:
        kernel = self._kernels[index]
        key = self._renderer.text_key(kernel) if isinstance(kernel, Kernel) else None
        if key is None:
            return
        self._keys[index] = key
        data = cache.get(key, "text")
        if data is None:
            return
        try:
            self._known[index] = _unpacked(data)
        except ValueError:
            cache.forget(key, "text")


def _packed(lowered: Lowered) -> bytes:
    import msgspec

    return msgspec.json.encode(lowered)


def _unpacked(data: bytes) -> Lowered:
    """Return what was packed. Raises `ValueError` if it is something else."""
    import msgspec

    return msgspec.json.decode(data, type=Lowered)


class _Objects:
    """Turns chunks of texts into objects, on a thread of its own or at once; leaving it leaves no thread behind."""

    def __init__(self, renderer: Renderer, cache: Cache | None, threaded: bool) -> None:
        self._renderer = renderer
        self._cache = cache
        self._stop = Event()
        self._pool = ThreadPoolExecutor(1, "tolk-llvm") if threaded else None
        self._chunks: list[tuple[int, Future[bytes]]] = []
        self._first = 0

    def __enter__(self) -> _Objects:
        return self

    def __exit__(self, *exc: Any) -> None:
        self._stop.set()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def start(self, texts: Sequence[str]) -> None:
        first, self._first = self._first, self._first + len(texts)
        if self._pool is not None:
            self._chunks.append((len(texts), self._pool.submit(self._make, texts, first)))
            return
        done: Future[bytes] = Future()
        done.set_result(self._make(texts, first))
        self._chunks.append((len(texts), done))

    def finish(self, steps: _Steps) -> Iterator[bytes]:
        for count, chunk in self._chunks:
            made = _await(chunk, steps, "making machine code")
            steps.done(count, "making machine code")
            yield made

    def _make(self, texts: Sequence[str], first: int) -> bytes:
        key = self._renderer.object_key(texts, first=first) if self._cache is not None else None
        if self._cache is None or key is None:
            return self._renderer.object(texts, first=first, stop=self._stop)
        found = self._cache.get(key, "object")
        if found is None:
            found = self._renderer.object(texts, first=first, stop=self._stop)
            self._cache.put(key, "object", found)
        return found
