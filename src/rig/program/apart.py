"""A program loaded part by part, so that each part can be run, and timed, alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from rig import _core
from rig.program.description import Copy, Fill, Launch, Loop, Submit
from rig.program.load import make
from rig.program.parts import parts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rig._core import Buffer, Device, Image
    from rig.program.description import Part, Program, Step
    from rig.program.initial import Initial
    from rig.program.parts import Found

__all__ = ["load_apart"]


def load_apart(
    p: Program, devices: Sequence[Device], *, initial: Mapping[int, Initial] | None = None
) -> tuple[list[tuple[Found, _core.Program]], _core.Program]:
    """Load `p` once, and prepare a native program for each part, over the same memory; return them in their order.

    A move, and a loop with all that is in it, is one part. Run one after the other, each once, they do what one run of
    the whole does, so that every part finds the data and the caches about as it does there. The second value is a
    program of no steps, to time a call alone. Raises as `rig.program.load`.
    """
    steps = list(_single(p.steps))
    found = [next(iter(parts(msgspec.structs.replace(p, steps=(step,)))), None) for _, step in steps]

    def build(
        memory: list[list[Buffer]], images: list[Image], ints: list[Buffer]
    ) -> tuple[list[tuple[Found, _core.Program]], _core.Program]:
        def one(*its: Step) -> _core.Program:
            alone = msgspec.structs.replace(p, steps=its)
            return _core.build_program(alone, list(devices), memory, images, ints, True)

        natives = [
            (part._replace(where=where, kind="loop" if isinstance(step, Loop) else part.kind), one(step))
            for part, (where, step) in zip(found, steps, strict=True)
            if part is not None
        ]
        return natives, one()

    return make(p, devices, None, initial, build)


def _single(steps: Sequence[Step]) -> Iterator[tuple[str, Step]]:
    for i, step in enumerate(steps):
        if isinstance(step, Submit):
            for j, part in enumerate(step.parts):
                yield f"steps[{i}].parts[{j}]", _alone(step, part)
        else:
            yield f"steps[{i}]", step


def _alone(step: Submit, part: Part) -> Submit:
    """Return a step of one part, with just the slots that it names."""
    named: list[int] = []
    if isinstance(part, Copy):
        named = [part.src, part.dst]
    elif isinstance(part, (Launch, Fill)):
        named = [ref.slot for ref in part.refs]
    kept = sorted(set(named))
    place = {slot: i for i, slot in enumerate(kept)}
    if isinstance(part, Copy):
        part = msgspec.structs.replace(part, src=place[part.src], dst=place[part.dst])
    elif isinstance(part, (Launch, Fill)):
        refs = tuple(msgspec.structs.replace(ref, slot=place[ref.slot]) for ref in part.refs)
        part = msgspec.structs.replace(part, refs=refs)
    return Submit(step.device, (part,), tuple(step.slots[i] for i in kept), step.fixed)
