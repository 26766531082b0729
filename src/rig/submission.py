"""Submissions: work of one device, prepared once and submitted any number of times.

`rig.program` describes many of them in one program; this is one alone, over buffers and functions at hand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rig import _core
from rig.errors import Invalid
from rig.program import description as d
from rig.program.check import check
from rig.program.description import Ref, Use

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rig._core import Buffer, Device, Function, Image, Point

__all__ = ["Copy", "Fill", "Launch", "Ref", "Submission", "Use", "Words"]


class Launch(NamedTuple):
    """A call of `function` with `params`, a whole number of 32-bit words, over `groups` of `threads`.

    For host code `params` are 64-bit words, `groups` is (blocks, 1, 1), `threads` is (iterations, 1, 1).
    """

    function: Function
    params: bytes
    refs: tuple[Ref, ...] = ()
    groups: tuple[int, int, int] = (1, 1, 1)
    threads: tuple[int, int, int] = (1, 1, 1)
    shared: int = 0


class Fill(NamedTuple):
    """A native call of `function`, host code, during the hand-over."""

    function: Function
    params: bytes
    refs: tuple[Ref, ...] = ()


class Copy(NamedTuple):
    """A copy of `length` bytes from byte `src_offset` of slot `src` into byte `dst_offset` of slot `dst`."""

    src: int
    src_offset: int
    dst: int
    dst_offset: int
    length: int


class Words(NamedTuple):
    """Work in the driver's own format: the bytes of `buffer`, read at the hand-over."""

    buffer: Buffer


Part = Launch | Fill | Copy | Words


class Submission:
    """Parts on one device: launches, fills, copies and words, checked and prepared once.

    Each submit passes the buffers of its slots, which the parts' refs and copies name by index; every submit uses the
    memory of `fixed` with the access stated there. The submission keeps the functions' images and the fixed memory.
    """

    __slots__ = ("_fixed", "_native", "device", "slots")

    def __init__(
        self, device: Device, slots: tuple[int, ...], native: _core.Program, fixed: tuple[Buffer, ...]
    ) -> None:
        self.device = device
        self.slots = slots
        self._native = native
        self._fixed = fixed

    @classmethod
    def make(
        cls,
        device: Device,
        parts: Sequence[Part],
        *,
        slots: Sequence[int] = (),
        fixed: Sequence[tuple[Buffer, d.Access]] = (),
    ) -> Submission:
        """Prepare `parts` on `device`. `slots` holds, for each slot, the least bytes of its buffers.

        Raises Invalid for a part that breaks a rule: parameters that are no whole number of words, a ref or a copy
        outside its parameters, its slot or the slots, a slot that nothing names or that is named both Unordered and
        otherwise. Raises Refused for what the device does not run, and where it does not borrow the fixed memory.
        """
        images: list[Image] = []
        memory: list[Buffer] = []
        rows: list[d.Part] = []
        for part in parts:
            rows.append(_describe(part, device, images, memory))
        views: list[tuple[d.View, d.Access]] = []
        for buffer, access in fixed:
            if access == d.Access.READ_WRITE and not buffer.writable:
                raise Invalid(f"fixed[{len(views)}] is read-only memory, its access is READ_WRITE")
            views.append((_view(buffer, memory), access))
        step = d.Submit(0, tuple(rows), tuple(d.InputSlot(i) for i in range(len(slots))), tuple(views))
        program = d.Program(
            (device.arch,),
            tuple(d.Alloc(0, b._region_nbytes) for b in memory),
            tuple(d.Image(0, d.Data()) for _ in images),
            tuple(d.Input(0, n) for n in slots),
            0,
            (step,),
        )
        check(program, (device,))
        native = _core.build_program(program, [device], [[b] for b in memory], images, [], True)
        return cls(device, tuple(slots), native, tuple(memory))

    def submit(self, slots: Sequence[Buffer] = (), *, waits: Sequence[Point] = ()) -> Point:
        """Submit once over the buffers of `slots`, after the points of `waits`; give the submission's point.

        It follows earlier work by the memory it names, as every submission does. Raises Invalid for another number of
        buffers, and for a buffer of another device, too small, dead, or read-only where a part writes it.
        """
        for i, buffer in enumerate(self._fixed):
            if not buffer.live:
                raise Invalid(f"fixed memory {i} of the submission is dead")
        ends = self._native.run(slots, (), None, waits)
        return ends[0]


def _describe(part: Part, device: Device, images: list[Image], memory: list[Buffer]) -> d.Part:
    if isinstance(part, Words):
        return d.Words(_view(part.buffer, memory))
    if isinstance(part, Copy):
        ends = [() if n == 0 else (d.Term(d.Fixed(n), 1),) for n in (part.src_offset, part.dst_offset)]
        return d.Copy(part.src, ends[0], part.dst, ends[1], part.length)
    images.append(part.function.image)
    index = len(images) - 1
    if part.function.image.device != device:
        home = part.function.image.device.name
        raise Invalid(f"function {part.function.name} is of an image on {home}, the submission is on {device.name}")
    if isinstance(part, Fill):
        return d.Fill(d.Entry(index, part.function.name), d.Data(part.params), part.refs)
    x, y, z = (d.Fixed(n) for n in part.groups)
    u, v, w = (d.Fixed(n) for n in part.threads)
    return d.Launch(
        index, part.function.name, d.Data(part.params), part.refs, (x, y, z), (u, v, w), d.Fixed(part.shared)
    )


def _view(buffer: Buffer, memory: list[Buffer]) -> d.View:
    memory.append(buffer)
    return d.View(len(memory) - 1, buffer._offset, buffer.nbytes)
