"""A program's parts, one after the other, with the memory that each one uses: for whoever looks at a program."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rig.kinds import Access
from rig.program.description import (
    Address,
    Copy,
    Fill,
    Fixed,
    InputSlot,
    Loop,
    MemorySlot,
    Move,
    Submit,
    Use,
    Words,
)  # fmt: skip

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rig.program.description import Data, Offset, Part, Program, Slot, Step, Value

__all__ = ["Found", "Touch", "parts"]


class Touch(NamedTuple):
    """Bytes that a part uses: of memory `number`, or of input `number`.

    `nbytes` is None where the part has an address only, and `offset` is None where each run decides it.
    """

    memory: bool
    number: int
    offset: int | None
    nbytes: int | None
    reads: bool
    writes: bool


class Found(NamedTuple):
    """One part: `where` it is (such as ``steps[0].parts[3]``), its kind, and how often it runs in a run.

    `kind` is launch, copy, move, fill or words; `name` is the function's; `image` its image. `times` is None where a
    run decides it. `blocks` and `iterations` are a launch's, None where a run decides them.
    """

    where: str
    kind: str
    device: int
    name: str
    image: int
    times: int | None
    blocks: int | None
    iterations: int | None
    touches: tuple[Touch, ...]


def parts(p: Program) -> Iterator[Found]:
    """Give the parts of `p` in order, a loop's body once."""
    yield from _steps(p, p.steps, "steps", 1)


def _steps(p: Program, steps: Sequence[Step], path: str, times: int | None) -> Iterator[Found]:
    for i, step in enumerate(steps):
        where = f"{path}[{i}]"
        if isinstance(step, Loop):
            trips = _fixed(step.trips)
            ends = step.flag is not None or trips is None or times is None
            yield from _steps(p, step.body, f"{where}.body", None if ends else (trips or 0) * (times or 0))
        elif isinstance(step, Move):
            touches = (
                *_end(p, step.src, step.src_offset, step.length, writes=False),
                *_end(p, step.dst, step.dst_offset, step.length, writes=True),
            )
            yield Found(where, "move", -1, "", -1, times, None, None, touches)
        else:
            for j, part in enumerate(step.parts):
                yield _part(p, step, part, f"{where}.parts[{j}]", times)


def _part(p: Program, step: Submit, part: Part, where: str, times: int | None) -> Found:
    if isinstance(part, Copy):
        touches = (
            *_end(p, step.slots[part.src], part.src_offset, part.length, writes=False),
            *_end(p, step.slots[part.dst], part.dst_offset, part.length, writes=True),
        )
        return Found(where, "copy", step.device, "", -1, times, None, None, touches)
    if isinstance(part, Words):
        view = part.view
        touch = Touch(True, view.memory, view.offset, view.length, True, False)
        return Found(where, "words", step.device, "", -1, times, None, None, (touch,))
    used: list[Touch] = []
    for ref in part.refs:
        offset = int.from_bytes(part.params.bytes[ref.at : ref.at + 8], "little")
        moved = any(hole.at < ref.at + 8 and ref.at < hole.at + hole.width // 8 for hole in part.params.holes)
        reads, writes = ref.use != Use.WRITE, ref.use != Use.READ
        used += _slot(p, step.slots[ref.slot], None if moved else offset, reads, writes)
    used += _addresses(step, part.params)
    if isinstance(part, Fill):
        name, image = getattr(part.fill, "name", ""), getattr(part.fill, "image", -1)
        return Found(where, "fill", step.device, name, image, times, None, None, tuple(used))
    blocks, iterations = _fixed(part.groups[0]), _fixed(part.threads[0])
    return Found(where, "launch", step.device, part.name, part.image, times, blocks, iterations, tuple(used))


def _addresses(step: Submit, data: Data) -> Iterator[Touch]:
    """Give the memory whose address stands in parameters; what is done to it is known of the whole step only."""
    for hole in data.holes:
        for term in hole.terms:
            if isinstance(term.value, Address):
                fixed = [_fixed(t.value) for t in hole.terms if t is not term]
                known = term.factor == 1 and not hole.shift and all(n is not None for n in fixed)
                more = sum(
                    (n or 0) * t.factor for n, t in zip(fixed, (t for t in hole.terms if t is not term), strict=True)
                )
                memory = term.value.memory
                writes = any(v.memory == memory and access == Access.READ_WRITE for v, access in step.fixed)
                yield Touch(True, memory, hole.add + more if known else None, None, True, writes)


def _end(p: Program, slot: Slot, offset: Offset, length: int, *, writes: bool) -> Iterator[Touch]:
    at = _sum(offset)
    for touch in _slot(p, slot, at, not writes, writes):
        yield touch._replace(nbytes=length if at is not None else touch.nbytes)


def _slot(p: Program, slot: Slot, offset: int | None, reads: bool, writes: bool) -> Iterator[Touch]:
    if isinstance(slot, MemorySlot):
        view = slot.view
        yield Touch(True, view.memory, view.offset + (offset or 0), view.length - (offset or 0), reads, writes)
    elif isinstance(slot, InputSlot):
        left = p.inputs[slot.index].nbytes - (offset or 0)
        yield Touch(False, slot.index, offset, left, reads, writes)


def _fixed(value: Value) -> int | None:
    return value.value if isinstance(value, Fixed) else None


def _sum(offset: Offset) -> int | None:
    total = 0
    for term in offset:
        value = _fixed(term.value)
        if value is None:
            return None
        total += value * term.factor
    return total
