"""Which memory a program's steps write."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rig.kinds import Access
from rig.program.description import Copy, Fill, Launch, Loop, MemorySlot, Move, Submit, Use

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rig.program.description import Program, Slot, Step

__all__ = ["flat", "written"]


def flat(steps: Sequence[Step]) -> Iterator[Submit | Move]:
    """Give the steps in order, each loop's body once in the loop's place."""
    for step in steps:
        if isinstance(step, Loop):
            yield from flat(step.body)
        else:
            yield step


def written(p: Program) -> set[int]:
    """Return the indices of the memory that a run of the checked program `p` may write."""
    found: set[int] = set()

    def note(slot: Slot) -> None:
        if isinstance(slot, MemorySlot):
            found.add(slot.view.memory)

    for step in flat(p.steps):
        if isinstance(step, Move):
            note(step.dst)
            continue
        found.update(view.memory for view, access in step.fixed if access == Access.READ_WRITE)
        for part in step.parts:
            if isinstance(part, Copy):
                note(step.slots[part.dst])
            elif isinstance(part, (Launch, Fill)):
                for ref in part.refs:
                    if ref.use != Use.READ:
                        note(step.slots[ref.slot])
    return found
