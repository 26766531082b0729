"""Where the buffers that kernels access must start, from how the kernels access them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rig.errors import Invalid
from tolk_engine.schedule import Call, CopyCall, Lowered, Ref, Schedule, SlotRef, StorageRef, loops

__all__ = ["Accesses", "Start", "accesses"]


@dataclass(frozen=True, slots=True)
class Start:
    """A buffer's first byte lies `phase` bytes past a multiple of `align`."""

    align: int
    phase: int = 0


@dataclass(frozen=True, slots=True)
class Accesses:
    """What is known of each slot and storage: `starts` of those that kernels access, and which are `used` at all."""

    starts: dict[Ref, Start]
    used: frozenset[Ref]
    written: frozenset[Ref]


def accesses(schedule: Schedule, kernels: Sequence[Lowered | None]) -> Accesses:
    """Return how the calls of `schedule` access its slots and storage; ``kernels[i]`` is its kernel i, lowered.

    A copy moves bytes wherever they start, so it asks nothing of what it accesses.

    Raises `Invalid` if kernels access one buffer at two phases, so that no start is right for both.
    """
    starts: dict[Ref, Start] = {}
    used: set[Ref] = set()
    written: set[Ref] = set()
    for number, call in enumerate(schedule.flat()):
        if isinstance(call, CopyCall):
            used |= {call.dst.node, call.src.node}
            written.add(call.dst.node)
            continue
        used |= {arg.node for arg in call.args}
        written |= {call.args[i].node for i in call.writes}
        _kernel(schedule, number, call, kernels[call.kernel], starts)
    used |= {loop.flag.node for loop in loops(schedule.calls) if loop.flag is not None}
    return Accesses(starts, frozenset(used), frozenset(written))


def _kernel(schedule: Schedule, number: int, call: Call, kernel: Lowered | None, starts: dict[Ref, Start]) -> None:
    if kernel is None:
        raise Invalid(f"call {number} is of kernel {call.kernel}, which was not compiled")
    for position, align in zip(kernel.arg_order, kernel.aligns, strict=True):
        arg = call.args[position]
        if arg.node not in starts:
            node = schedule.node(arg.node)
            starts[arg.node] = Start(node.align, node.phase)
        moved = next((name for name, factor in arg.moves if factor % align), None)
        if moved is not None:
            raise Invalid(
                f"call {number} ({kernel.name}) moves {label(schedule, arg.node)} by {dict(arg.moves)[moved]} bytes a "
                f"trip of {moved}, which is no multiple of {align}"
            )
        found = Start(align, -arg.offset % align)
        joined = _join(starts[arg.node], found)
        if joined is None:
            have = starts[arg.node]
            raise Invalid(
                f"call {number} ({kernel.name}) needs {label(schedule, arg.node)} to start {found.phase} bytes past a "
                f"multiple of {found.align}, but it starts {have.phase} bytes past a multiple of {have.align}"
            )
        starts[arg.node] = joined


def label(schedule: Schedule, ref: Ref) -> str:
    """Return how messages name a slot or storage."""
    name = schedule.node(ref).name
    kind = "storage" if isinstance(ref, StorageRef) else _kind(schedule, ref)
    return f"{kind} {ref.index}{f' ({name!r})' if name else ''}"


def _kind(schedule: Schedule, ref: SlotRef) -> str:
    return "input slot" if ref.index in schedule.inputs else "output slot" if ref.index in schedule.outputs else "slot"


def _join(a: Start, b: Start) -> Start | None:
    """Return the start that satisfies both, None if none does."""
    low, high = (a, b) if a.align <= b.align else (b, a)
    return high if high.phase % low.align == low.phase % low.align else None
