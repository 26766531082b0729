"""Kernels in C, compiled once for all tests, and short forms of the descriptions around them."""

from __future__ import annotations

import ctypes
import gc
import itertools
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest

import rig
from rig.drivers import opencl
from rig.program import description as d
from rig.program import load as load_program
from rig.program.run import Loaded

SOURCE = r"""
#include <stdatomic.h>
#include <stdint.h>
#include <time.h>
typedef uint64_t u64;
#define KERNEL(name) void name(const u64 *w, u64 begin, u64 end)
#define EACH for (u64 i = begin; i < end; i++)
#define AT(k) ((u64 *)w[k])
#define FLAG(k) ((_Atomic u64 *)w[k])

static int64_t now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1000000000ll + t.tv_nsec;
}
static void nap(int64_t ns) { struct timespec t = {ns / 1000000000, ns % 1000000000}; nanosleep(&t, 0); }
/* Wait for a flag, at most 20 s; 1 if it came. */
static u64 await(_Atomic u64 *flag) {
  int64_t end = now() + 20000000000ll;
  while (!atomic_load(flag)) { if (now() > end) return 0; nap(50000); }
  return 1;
}
KERNEL(nothing) { (void)w; (void)begin; (void)end; }
KERNEL(store) { AT(0)[0] = w[1]; }
KERNEL(dump) { for (u64 i = 0; i < w[1]; i++) AT(0)[i] = w[2 + i]; }     /* to, count, words... */
KERNEL(add) { EACH AT(0)[i] = AT(1)[i] + AT(2)[i]; }
KERNEL(addk) { EACH AT(0)[i] = AT(1)[i] + w[2]; }
KERNEL(muladd) { EACH AT(0)[i] = AT(0)[i] * w[2] + AT(1)[i]; }
KERNEL(copy_words) { EACH AT(0)[i] = AT(1)[i]; }
KERNEL(bump) { atomic_fetch_add(FLAG(0), 1); }
KERNEL(where) { AT(0)[0] = (u64)w; }                                       /* where the parameters stand */
KERNEL(call) { ((void (*)(const u64 *, u64, u64))w[0])(w + 1, begin, end); }
KERNEL(deref) { AT(0)[0] = *AT(1); }                                       /* what stands at an address */
KERNEL(range) { u64 k = atomic_fetch_add(FLAG(0), 1); AT(0)[1 + 2 * k] = begin; AT(0)[2 + 2 * k] = end; }
KERNEL(append) { u64 k = atomic_fetch_add(FLAG(0), 1); AT(0)[1 + k] = w[1]; }
KERNEL(sleep_us) { nap((int64_t)w[0] * 1000); }
KERNEL(spin_us) { int64_t until = now() + (int64_t)w[0] * 1000; while (now() < until) {} }
/* say that this one runs, wait for the other, tell whether it came: mine, other, seen */
KERNEL(meet) { atomic_store(FLAG(0), 1); atomic_store(FLAG(2), await(FLAG(1)) ? 1 : 2); }
/* say that this one runs, wait for a gate: started, gate */
KERNEL(gate) { atomic_store(FLAG(0), 1); await(FLAG(1)); }
KERNEL(gated_store) { atomic_store(FLAG(0), 1); await(FLAG(1)); AT(2)[0] = w[3]; }
KERNEL(slow_addk) { nap((int64_t)w[3] * 1000); EACH AT(0)[i] = AT(1)[i] + w[2]; }
/* count those inside at once: inside, most, entered */
KERNEL(alone) {
  u64 inside = atomic_fetch_add(FLAG(0), 1) + 1;
  if (inside > atomic_load(FLAG(1))) atomic_store(FLAG(1), inside);
  nap(1000000);
  atomic_fetch_add(FLAG(2), 1);
  atomic_fetch_sub(FLAG(0), 1);
}
/* count down a byte that ends a loop: flag byte, its count */
KERNEL(countdown) { AT(1)[0] -= 1; *(unsigned char *)w[0] = AT(1)[0] != 0; }
"""

OPENCL = r"""
typedef ulong u64;
#define KERNEL(name, ...) kernel void name(__VA_ARGS__)
#define AT(name) global u64 *name
#define FLAG(name) volatile global u64 *name
#define I get_global_id(0)

/* There is no clock: some tens of seconds where the flag does not come. */
u64 await(FLAG(flag)) {
  for (u64 i = 0; !*flag; i++) if (i > 20000000000ul) return 0;
  return 1;
}
void nap(u64 us) { volatile u64 n = 0; while (n < us * 400) n++; }

KERNEL(nothing) {}
KERNEL(nothing1, u64 a) {}
KERNEL(nothing2, u64 a, u64 b) {}
KERNEL(nothing3, u64 a, u64 b, u64 c) {}
KERNEL(nothing4, u64 a, u64 b, u64 c, u64 d) {}
KERNEL(store, AT(to), u64 word) { to[0] = word; }
KERNEL(dump, AT(to), u64 count, u64 a) { to[0] = a; }
KERNEL(dump4, AT(to), u64 count, u64 a, u64 b) { to[0] = a; to[1] = b; }
KERNEL(dump5, AT(to), u64 count, u64 a, u64 b, u64 c) { to[0] = a; to[1] = b; to[2] = c; }
KERNEL(dump6, AT(to), u64 count, u64 a, u64 b, u64 c, u64 d) { to[0] = a; to[1] = b; to[2] = c; to[3] = d; }
KERNEL(dump7, AT(to), u64 count, u64 a, u64 b, u64 c, u64 d, u64 e) {
  to[0] = a; to[1] = b; to[2] = c; to[3] = d; to[4] = e;
}
KERNEL(add, AT(to), AT(a), AT(b)) { to[I] = a[I] + b[I]; }
KERNEL(addk, AT(to), AT(from), u64 k) { to[I] = from[I] + k; }
KERNEL(muladd, AT(to), AT(from), u64 k) { to[I] = to[I] * k + from[I]; }
KERNEL(copy_words, AT(to), AT(from)) { to[I] = from[I]; }
KERNEL(bump, FLAG(flag)) { flag[0] += 1; }
KERNEL(deref, AT(to), AT(from)) { to[0] = *from; }
KERNEL(append, AT(list), u64 word) { u64 k = list[0]++; list[1 + k] = word; }
KERNEL(sleep_us, u64 us) { nap(us); }
KERNEL(spin_us, u64 us) { nap(us); }
KERNEL(meet, FLAG(mine), FLAG(other), FLAG(seen)) { mine[0] = 1; seen[0] = await(other) ? 1 : 2; }
KERNEL(gate, FLAG(started), FLAG(open)) { started[0] = 1; await(open); }
KERNEL(gated_store, FLAG(started), FLAG(open), AT(to), u64 word) { started[0] = 1; await(open); to[0] = word; }
KERNEL(slow_addk, AT(to), AT(from), u64 k, u64 ms) { nap(ms * 1000); to[I] = from[I] + k; }
KERNEL(countdown, global uchar *flag, AT(count)) { count[0] -= 1; *flag = count[0] != 0; }
"""
_MORE_WORDS = {("nothing", n): f"nothing{n}" for n in range(1, 5)} | {("dump", n): f"dump{n}" for n in range(4, 8)}

LIBRARY_FLAGS = ("-O1", "-shared", "-fPIC", "-x", "c", "-")
_names = itertools.count()


@cache
def binary(source: str = SOURCE) -> bytes:
    """Compile C to a shared library."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "kernels.so")
        command = ["gcc", *LIBRARY_FLAGS, "-o", str(out)]
        subprocess.run(command, input=source, text=True, check=True, timeout=60)
        return out.read_bytes()


@contextmanager
def memory_devices(count: int, **options: Any) -> Iterator[list[rig.Device]]:
    """Open memory devices, and close them."""
    made = [rig.memory_device(f"mem{next(_names)}", **options) for _ in range(count)]
    try:
        yield made
    finally:
        for device in made:
            device.close()


@contextmanager
def opencl_devices(count: int, **options: Any) -> Iterator[list[rig.Device]]:
    """Open OpenCL devices, each one that the platforms have or one of them again, and close them; skip without any."""
    if why := opencl.missing():
        pytest.skip(f"no OpenCL device: {why}")
    found = len(opencl.devices())
    made = [opencl.open_device(i % found, name=f"cl{next(_names)}", **options) for i in range(count)]
    try:
        yield made
    finally:
        for device in made:
            device.close()


@contextmanager
def opened(kind: str, **options: Any) -> Iterator[rig.Device]:
    """Give the host, or open a memory device or an OpenCL device and close it."""
    if kind == "host":
        yield rig.host()
        return
    if kind == "opencl":
        with opencl_devices(1, **options) as (device,):
            yield device
        return
    with memory_devices(1, **options) as (device,):
        yield device


on_each = pytest.mark.parametrize("kind", ["host", "memory", "opencl"])
"""A test that is run on the host, on a memory device and on an OpenCL device."""
on_host_code = pytest.mark.parametrize("kind", ["host", "memory"])
"""A test of what host code alone can do, on the host and on a memory device."""


def code(device: rig.Device) -> bytes:
    """Give the kernels as `device` takes them."""
    return OPENCL.encode() if device.kind == "opencl" else binary()


def fitted(steps: Sequence[d.Step], devices: Sequence[rig.Device]) -> tuple[d.Step, ...]:
    """Give `steps` with the launches on OpenCL devices as these take them.

    That is a group for each iteration, and of kernels that take any number of words the one that takes as many.
    """

    def part(one: d.Part) -> d.Part:
        if type(one) is not d.Launch:
            return one
        name = _MORE_WORDS.get((one.name, len(one.params.bytes) // 8), one.name)
        stated = one.groups[0] == d.Fixed(0) or type(one.groups[0]) is d.Int
        groups = one.groups if stated else one.threads
        return msgspec.structs.replace(one, name=name, groups=groups, threads=(d.Fixed(1),) * 3)

    def step(one: d.Step) -> d.Step:
        if type(one) is d.Loop:
            return msgspec.structs.replace(one, body=tuple(step(s) for s in one.body))
        if type(one) is d.Submit and 0 <= one.device < len(devices) and devices[one.device].kind == "opencl":
            return msgspec.structs.replace(one, parts=tuple(part(p) for p in one.parts))
        return one

    return tuple(step(one) for one in steps)


class Words:
    """Words of memory that no device knows: kernels reach them by address, so that nothing is ordered by them."""

    def __init__(self, count: int = 8) -> None:
        self.words = (ctypes.c_uint64 * count)()

    def __getitem__(self, index: int) -> int:
        return self.words[index]

    def __setitem__(self, index: int, value: int) -> None:
        self.words[index] = value

    def at(self, index: int = 0) -> int:
        """Give the address of a word."""
        return ctypes.addressof(self.words) + 8 * index

    def wait(self, index: int, seconds: float = 20) -> bool:
        """Wait until a word is not 0."""
        event = threading.Event()
        for _ in range(int(seconds * 2000)):
            if self.words[index]:
                return True
            event.wait(0.0005)
        return False


# Parts from a few words.


class To(NamedTuple):
    """A parameter word that is a ref: an offset into a slot."""

    slot: int
    use: d.Use = d.Use.READ
    offset: int = 0


class Hollow(NamedTuple):
    """A parameter word with holes, which are given relative to the word; `slot` makes it a ref as well."""

    holes: tuple[d.Hole, ...]
    bits: int = 0
    slot: int | None = None
    use: d.Use = d.Use.READ


def reads(slot: int, offset: int = 0) -> To:
    return To(slot, d.Use.READ, offset)


def writes(slot: int, offset: int = 0) -> To:
    return To(slot, d.Use.WRITE, offset)


def unordered(slot: int, offset: int = 0) -> To:
    return To(slot, d.Use.UNORDERED, offset)


def hole(*terms: Any, width: d.Width = d.Width.W64, add: int = 0, shift: int = 0, at: int = 0) -> d.Hole:
    """Return a hole; a term is a value or a pair of value and factor."""
    return d.Hole(at, width, tuple(d.Term(*t) if isinstance(t, tuple) else d.Term(t, 1) for t in terms), add, shift)


def moving(slot: int, use: d.Use, *terms: Any, offset: int = 0) -> Hollow:
    """Return a ref whose offset moves with `terms`."""
    return Hollow((hole(*terms),), offset, slot, use)


def _word(value: int) -> bytes:
    return (value % 2**64).to_bytes(8, "little")


def params(words: Sequence[Any]) -> tuple[d.Data, tuple[d.Ref, ...]]:
    """Return parameter bytes and refs for words: integers, `To`, `Hollow`, or values that stand alone."""
    data = b""
    holes: list[d.Hole] = []
    refs: list[d.Ref] = []
    for word in words:
        at = len(data)
        if isinstance(word, int):
            data += _word(word)
            continue
        if isinstance(word, To):
            refs.append(d.Ref(word.slot, at, word.use))
            data += _word(word.offset)
            continue
        hollow = word if isinstance(word, Hollow) else Hollow((hole(word),))
        holes += [msgspec.structs.replace(one, at=at + one.at) for one in hollow.holes]
        if hollow.slot is not None:
            refs.append(d.Ref(hollow.slot, at, hollow.use))
        data += _word(hollow.bits)
    return d.Data(data, tuple(holes)), tuple(refs)


def _value(value: Any) -> d.Value:
    return d.Fixed(value) if isinstance(value, int) else value


def launch(name: str, *words: Any, n: Any = 1, blocks: Any = 1, shared: Any = 0, image: int = -1) -> d.Launch:
    """Return a launch of kernel `name` over `n` iterations; image -1 is the image of the submit's device."""
    data, refs = params(words)
    one = d.Fixed(1)
    return d.Launch(image, name, data, refs, (_value(blocks), one, one), (_value(n), one, one), _value(shared))


def fill(leaf: d.Leaf, *words: Any) -> d.Fill:
    data, refs = params(words)
    return d.Fill(leaf, data, refs)


def offset(*terms: Any) -> d.Offset:
    """Return an offset; a term is an integer, a value, or a pair of value and factor."""
    pairs = [t if isinstance(t, tuple) else (t, 1) for t in terms]
    return tuple(d.Term(_value(value), factor) for value, factor in pairs if value != 0)


def _offset(terms: Any) -> d.Offset:
    return offset(*terms) if isinstance(terms, tuple) else offset(terms)


def copy(src: int, dst: int, length: int, src_offset: Any = 0, dst_offset: Any = 0) -> d.Copy:
    return d.Copy(src, _offset(src_offset), dst, _offset(dst_offset), length)


def memory(index: int, length: int, offset: int = 0) -> d.MemorySlot:
    return d.MemorySlot(d.View(index, offset, length))


def given(index: int) -> d.InputSlot:
    return d.InputSlot(index)


INTS = d.IntsSlot()


def submit(device: int, *parts: d.Part, slots: Sequence[d.Slot] = (), fixed: Sequence[Any] = ()) -> d.Submit:
    """Return a submit; `fixed` holds slots of memory, used READ_WRITE, or pairs of slot and access."""
    whole = [
        msgspec.structs.replace(part, image=device) if type(part) is d.Launch and part.image == -1 else part
        for part in parts
    ]
    pairs = [one if isinstance(one, tuple) else (one, d.Access.READ_WRITE) for one in fixed]
    return d.Submit(device, tuple(whole), tuple(slots), tuple((one.view, access) for one, access in pairs))


def move(src: d.Slot, dst: d.Slot, length: int, src_offset: Any = 0, dst_offset: Any = 0) -> d.Move:
    return d.Move(src, _offset(src_offset), dst, _offset(dst_offset), length)


def loop(trips: Any, *body: Any, trip: int | None = None, flag: Any = None) -> d.Loop:
    return d.Loop(_value(trips), body, trip, flag)


def alloc(device: int, nbytes: int, init: Any = b"", two: bool = False, kind: d.Kind = d.Kind.DEVICE) -> d.Alloc:
    data = init if isinstance(init, d.Data) else d.Data(init)
    return d.Alloc(device, nbytes, data, d.Copies.TWO if two else d.Copies.ONE, kind)


def program(devices: Sequence[rig.Device], *steps: d.Step, **more: Any) -> d.Program:
    """Return a program of `steps`; image i is the library of kernels on device i unless `images` says otherwise."""
    images = more.pop("images", tuple(d.Image(i, d.Data(code(device))) for i, device in enumerate(devices)))
    more["inputs"] = tuple(d.Input(*one) for one in more.get("inputs", ()))
    more["memory"] = tuple(more.get("memory", ()))
    return d.Program(tuple(device.arch for device in devices), images=images, steps=fitted(steps, devices), **more)


def load(devices: Sequence[rig.Device], *steps: d.Step, **more: Any) -> Loaded:
    """Load a program of `steps`."""
    return load_program(program(devices, *steps, **more), devices)


# Buffers of 64-bit words.


def buffer(device: rig.Device, *words: int, count: int = 0) -> rig.Buffer:
    """Make memory of a device that holds `words`, at least `count` of them."""
    made = rig.Buffer.create(device, 8 * max(len(words), count))
    made.write(as_bytes(*words, *[0] * (count - len(words))))
    return made


def as_bytes(*words: int) -> bytes:
    return b"".join(_word(word) for word in words)


def values(source: rig.Buffer) -> list[int]:
    """Read a buffer's words, once the work that writes them is done."""
    return list(source.read().cast("Q"))


def wait_all(points: Sequence[rig.Point], timeout: float = 60) -> None:
    for point in points:
        assert point.wait(timeout), f"{point} was not reached in {timeout} s"


def run(loaded: Loaded, inputs: Sequence[rig.Buffer] = (), ints: Sequence[int] = (), **more: Any) -> tuple[Any, ...]:
    """Run once and wait for the ends."""
    ends = loaded.run(loaded.frame(inputs, ints), **more)
    wait_all(ends)
    return ends


class Background:
    """A call on another thread; `result` joins it and raises what it raised."""

    def __init__(self, call: Any, *args: Any) -> None:
        self._value: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(call, *args), daemon=True)
        self._thread.start()

    def _run(self, call: Any, *args: Any) -> None:
        try:
            self._value = call(*args)
        except BaseException as error:
            self._error = error

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def result(self, timeout: float = 60) -> Any:
        self._thread.join(timeout)
        assert not self._thread.is_alive(), f"it was not done in {timeout} s"
        if self._error is not None:
            raise self._error
        return self._value


def in_use(device: rig.Device) -> int:
    """Measure a device's memory, after what nothing reaches any more was collected."""
    gc.collect()
    return device.memory_in_use


def threads_alive() -> int:
    """Count this process's threads, native ones too, but those that end: they are listed a moment beyond their join."""
    return sum(not _ends(task) for task in Path("/proc/self/task").iterdir())


def _ends(task: Path) -> bool:
    try:
        flags = int((task / "stat").read_text().rpartition(") ")[2].split()[6])
    except (FileNotFoundError, ProcessLookupError):
        return True
    return bool(flags & 0x4)  # PF_EXITING of the kernel's sched.h, see proc(5)
