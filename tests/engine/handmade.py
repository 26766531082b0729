"""Schedules made by hand around kernels that are text, so that the engine is tested without a tensor compiler."""

from __future__ import annotations

from collections.abc import Sequence

import hostcode

from tolk_engine.renderer import Renderer
from tolk_engine.schedule import Arg, Call, CopyCall, Kernel, Lowered, Ref, Schedule, Slot, SlotRef, Storage, StorageRef

N = 16
"""The floats of each slot and storage."""

SLOT, STORAGE = SlotRef, StorageRef


def render(_: Renderer, kernel: Kernel) -> Lowered:
    """Stand in for `Renderer.render`: the kernels made here are lowered already."""
    assert isinstance(kernel.ast, Lowered)
    return kernel.ast


def kernel(
    key: str,
    text: str,
    pointers: int,
    *,
    iterations: int = N,
    ops: int = N,
    mem: int = 8 * N,
    align: int = 4,
    values: int = 0,
) -> Kernel:
    """Return a kernel of `text` over `pointers` pointers in order."""
    order = tuple(range(pointers))
    return Kernel(key, key, Lowered(text, key, iterations, ops, mem, order, values, (align,) * pointers))


ADD = kernel("add", hostcode.binary("fadd"), 3)
MUL = kernel("mul", hostcode.binary("fmul"), 3)
ONE = kernel("one", hostcode.add_constant(1.0), 2)


def slot(name: str, device: str = "CPU", *, align: int = 4, phase: int = 0, n: int = N) -> Slot:
    return Slot(name, "float32", (n,), 4 * n, device, align, phase)


def storage(device: str = "CPU", *, init: bytes | None = None, n: int = N, align: int = 4, name: str = "") -> Storage:
    return Storage(4 * n, device, align, 0, init, name, "float32", (n,))


def call(kernel: int, out: Ref | Arg, *reads: Ref | Arg, device: str = "CPU", values: tuple[int, ...] = ()) -> Call:
    """Return a call whose first argument is written and whose others are read."""
    args = tuple(a if isinstance(a, Arg) else Arg(a, 0, 4 * N) for a in (out, *reads))
    return Call(kernel, args, tuple(range(1, len(args))), (0,), device, values)


def copy(dst: Ref | Arg, src: Ref | Arg, nbytes: int = 4 * N) -> CopyCall:
    ends = [a if isinstance(a, Arg) else Arg(a, 0, nbytes) for a in (dst, src)]
    return CopyCall(ends[0], ends[1], nbytes)


def schedule(
    slots: Sequence[Slot],
    storages: Sequence[Storage],
    calls: Sequence[Call | CopyCall],
    *,
    kernels: Sequence[Kernel] = (ADD, MUL, ONE),
    outputs: Sequence[int] = (),
) -> Schedule:
    outputs = tuple(outputs) or (len(slots) - 1,)
    inputs = tuple(i for i in range(len(slots)) if i not in outputs)
    return Schedule("made", tuple(slots), tuple(storages), tuple(kernels), tuple(calls), inputs, outputs, "by hand")


def chain(n: int, device: str = "CPU") -> Schedule:
    """Return ``y = x + 1 + 1 ...``, `n` kernels with storage between them."""
    storages = [storage(device) for _ in range(n - 1)]
    places: list[Ref] = [SLOT(0), *(STORAGE(i) for i in range(n - 1)), SLOT(1)]
    calls = [call(2, places[i + 1], places[i], device=device) for i in range(n)]
    return schedule([slot("x", device), slot("y", device)], storages, calls)
