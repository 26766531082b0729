"""Rules of steps: submits and their parts, moves, loops.

They hold every index, size and offset against what it names, and leave what addresses may name to the rules of order.
"""

from __future__ import annotations

from itertools import pairwise
from struct import Struct
from typing import TYPE_CHECKING

from .description import Address, Copy, Entry, Fill, Fixed, Handle, Launch, Loop, Move, Ready, Submit, Words
from .facts import UNKNOWN, Facts, Place, fail, require_index, root
from .limits import I64_MAX, I64_MIN, MAX_LOOPS
from .rules_data import (
    check_data,
    check_end,
    check_leaf,
    check_offset,
    check_overlap,
    check_slot,
    check_value,
    check_view,
    fixed_bytes,
    require_blob,
    slot_length,
    step_values,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from .description import Data, Ref, Step, Value

__all__ = ["check_steps"]

_read_word = Struct("<q").unpack_from

# How a part uses a slot, as bits.
_ORDERED = 1
_UNORDERED = 2

# The kinds of devices whose images are code of the host, which a fill can call.
_HOST_CODE = ("host", "memory")


def check_steps(facts: Facts) -> None:
    """Check every step of the program, and note the submits and leaves for the rules of order."""
    for index, step in enumerate(facts.program.steps):
        _check_step(facts, step, root("steps", index), 0)


def _check_step(facts: Facts, step: Step, place: Place, loops: int) -> None:
    if type(step) is Submit:
        facts.submits.append((place, step))
        _SubmitRules(facts, step, place).check()
    elif type(step) is Move:
        _check_move(facts, step, place)
    elif type(step) is Loop:
        _check_loop(facts, step, place, loops)
    else:
        raise TypeError("not a step")


class _SubmitRules:
    """The check of one submit: its slots' lengths, and by which parts each slot is used."""

    def __init__(self, facts: Facts, submit: Submit, place: Place) -> None:
        self.facts = facts
        self.submit = submit
        self.place = place
        self.value: Callable[[Value, Place], None] = step_values(facts, submit)
        self.lengths: list[int] = []
        self.uses = bytearray(len(submit.slots))
        self.whole: set[int] | None = None  # the memory that it fixes whole, once that is asked for

    def check(self) -> None:
        facts, submit, place = self.facts, self.submit, self.place
        require_index(submit.device, len(facts.devices), "a submit's device", place)
        for index, slot in enumerate(submit.slots):
            check_slot(facts, slot, (place, "slots", index, None))
            self.lengths.append(slot_length(facts, slot))
        for index, (view, access) in enumerate(submit.fixed):
            check_view(facts, view, (place, "fixed", index, None))
            if access != 0 and access != 1:
                fail((place, "fixed", index, None), f"access is {access}; READ and READ_WRITE are allowed")
        for index, part in enumerate(submit.parts):
            if type(part) is Launch:
                self._launch(part, (place, "parts", index, part))
            elif type(part) is Copy:
                self._copy(part, (place, "parts", index, part))
            elif type(part) is Fill:
                self._fill(part, (place, "parts", index, part))
            elif type(part) is Words:
                check_view(facts, part.view, (place, "parts", index, part))
            else:
                raise TypeError("not a part")
        self._slots_are_used()

    def _launch(self, part: Launch, place: Place) -> None:
        facts = self.facts
        images, device = facts.image_devices, self.submit.device
        image = part.image
        if not 0 <= image < len(images):
            require_index(image, len(images), "a launch's image", place)
        if images[image] != device:
            found, wanted = facts.device_name(images[image]), facts.device_name(device)
            fail(
                place,
                f"image {image} is code of {found}, but the step runs on {wanted}, whose images alone are allowed",
            )
        if type(part.name) is not str:
            raise TypeError("not a name")
        self._params(part.params, place)
        self._refs(part.refs, part.params, place)
        groups_x, groups_y, groups_z = part.groups
        threads_x, threads_y, threads_z = part.threads
        for value in (groups_x, groups_y, groups_z, threads_x, threads_y, threads_z, part.shared):
            if type(value) is not Fixed or not I64_MIN <= value.value <= I64_MAX:
                self._geometry(part, place)
                return

    def _geometry(self, part: Launch, place: Place) -> None:
        for name, values in (("groups", part.groups), ("threads", part.threads)):
            for index, value in enumerate(values):
                self.value(value, (place, name, index, None))
        self.value(part.shared, (place, "shared", None, None))

    def _params(self, params: Data, place: Place) -> None:
        require_blob(params.bytes)
        if len(params.bytes) & 3:
            fail((place, "params", None, None), f"{len(params.bytes)} bytes; a whole number of 32-bit words is allowed")
        if params.holes and not self._plain(params):
            check_data(self.facts, params, (place, "params", None, None), self.value)

    def _plain(self, params: Data) -> bool:
        """Say whether each hole is just an address that the step may hold, as most are: then all rules are kept."""
        if self.whole is None:
            sizes = self.facts.memory_sizes
            views = (view for view, _ in self.submit.fixed)
            self.whole = {v.memory for v in views if v.offset == 0 and v.length == sizes[v.memory]}
        whole, device, size, end = self.whole, self.submit.device, len(params.bytes), 0
        for hole in params.holes:
            at, terms = hole.at, hole.terms
            if at < end or at + 8 > size or hole.width != 64 or hole.shift != 0 or hole.add != 0 or len(terms) != 1:
                return False
            term = terms[0]
            leaf = term.value
            if type(leaf) is not Address or leaf.memory not in whole or leaf.on != device or term.factor != 1:
                return False
            end = at + 8
        return True

    def _refs(self, refs: tuple[Ref, ...], params: Data, place: Place) -> None:
        uses, lengths, blob, holes = self.uses, self.lengths, params.bytes, params.holes
        size, count, end = len(blob), len(uses), 0
        in_order = True
        for index, ref in enumerate(refs):
            slot, at, use = ref.slot, ref.at, ref.use
            if not 0 <= slot < count:
                self._slot_fault(slot, "a ref's slot", (place, "refs", index, None))
            if at < 0 or at + 8 > size:
                fail((place, "refs", index, None), f"its 8 bytes at byte {at} lie outside the parameters' {size} bytes")
            if at < end:
                in_order = False
            end = at + 8
            if use == 2:
                uses[slot] |= _UNORDERED
            else:
                uses[slot] |= _ORDERED
                if use != 0 and use != 1:
                    fail((place, "refs", index, None), f"use is {use}; READ, WRITE and UNORDERED are allowed")
            offset = fixed_bytes(params, at) if holes else _read_word(blob, at)[0]
            if offset is not None and not 0 <= offset <= lengths[slot]:
                self._offset_fault(slot, offset, (place, "refs", index, None))
        if not in_order:
            self._refs_are_apart(refs, place)

    def _offset_fault(self, slot: int, offset: int, place: Place) -> None:
        length = self.lengths[slot]
        allowed = "0 and more" if length == UNKNOWN else f"0 to {length}, the slot's length,"
        fail(place, f"the parameters hold offset {offset} into slot {slot}; {allowed} is allowed")

    def _refs_are_apart(self, refs: tuple[Ref, ...], place: Place) -> None:
        order = sorted(range(len(refs)), key=lambda index: refs[index].at)
        for one, other in pairwise(order):
            if refs[other].at < refs[one].at + 8:
                first, second = sorted((one, other))
                where: Place = (place, "refs", second, None)
                fail(where, f"its 8 bytes share byte {refs[other].at} with refs[{first}]; refs may not overlap")

    def _fill(self, part: Fill, place: Place) -> None:
        facts = self.facts
        at: Place = (place, "fill", None, None)
        leaf = part.fill
        if type(leaf) is not Entry and type(leaf) is not Ready:
            fail(at, f"{type(leaf).__name__} is no function; an Entry or a Ready is allowed")
        check_leaf(facts, leaf, at)
        if type(leaf) is Entry:
            device = facts.image_devices[leaf.image]
            if facts.devices[device].kind not in _HOST_CODE:
                found = facts.device_name(device)
                fail(at, f"image {leaf.image} is code of {found}; an entry of an image of host code is allowed")
        self._params(part.params, place)
        self._refs(part.refs, part.params, place)

    def _copy(self, part: Copy, place: Place) -> None:
        slots, uses, lengths = self.submit.slots, self.uses, self.lengths
        for slot, what in ((part.src, "src"), (part.dst, "dst")):
            if not 0 <= slot < len(slots):
                self._slot_fault(slot, f"a copy's {what}", place)
            uses[slot] |= _ORDERED
        _check_length(part.length, place)
        src_at = check_offset(self.facts, part.src_offset, place, "src_offset")
        dst_at = check_offset(self.facts, part.dst_offset, place, "dst_offset")
        check_end(lengths[part.src], src_at, part.length, (place, "src_offset", None, None))
        check_end(lengths[part.dst], dst_at, part.length, (place, "dst_offset", None, None))
        check_overlap(slots[part.src], src_at, slots[part.dst], dst_at, part.length, place)

    def _slot_fault(self, slot: int, what: str, place: Place) -> None:
        count = len(self.uses)
        allowed = f"0 to {count - 1} are allowed" if count else "the submit has none"
        fail(place, f"{what} is {slot}, {allowed}")

    def _slots_are_used(self) -> None:
        for index, use in enumerate(self.uses):
            if use == 0:
                fail((self.place, "slots", index, None), "no ref and no copy of the submit names it; one of them must")
            if use == _ORDERED | _UNORDERED:
                both = "an UNORDERED ref and a READ or WRITE ref or a copy name it"
                fail((self.place, "slots", index, None), f"{both}; one or the other is allowed")


def _check_length(length: int, place: Place) -> None:
    if not 0 <= length <= I64_MAX:
        fail(place, f"length is {length}; 0 and more is allowed")


def _check_move(facts: Facts, move: Move, place: Place) -> None:
    check_slot(facts, move.src, (place, "src", None, None))
    check_slot(facts, move.dst, (place, "dst", None, None))
    _check_length(move.length, place)
    src_at = check_offset(facts, move.src_offset, place, "src_offset")
    dst_at = check_offset(facts, move.dst_offset, place, "dst_offset")
    check_end(slot_length(facts, move.src), src_at, move.length, (place, "src_offset", None, None))
    check_end(slot_length(facts, move.dst), dst_at, move.length, (place, "dst_offset", None, None))
    check_overlap(move.src, src_at, move.dst, dst_at, move.length, place)


def _check_loop(facts: Facts, loop: Loop, place: Place, loops: int) -> None:
    if loops == MAX_LOOPS:
        fail(place, f"it is inside {loops} other loops; at most {MAX_LOOPS} loops may be inside each other")
    check_value(facts, loop.trips, (place, "trips", None, None))
    if type(loop.trips) is Address or type(loop.trips) is Handle:
        facts.trips_leaves.append(((place, "trips", None, None), loop, loop.trips))
    if loop.trip is not None and not 0 <= loop.trip < facts.program.ints:
        fail((place, "trip", None, None), f"word {loop.trip} is past the ints: the program has {facts.program.ints}")
    if loop.flag is not None:
        slot, at = loop.flag
        where: Place = (place, "flag", None, None)
        check_slot(facts, slot, where)
        length = slot_length(facts, slot)
        if not 0 <= at < length:
            allowed = "0 and more is allowed" if length == UNKNOWN else f"the slot has {length} bytes"
            fail(where, f"the flag is byte {at} of its slot; {allowed}")
    for index, step in enumerate(loop.body):
        _check_step(facts, step, (place, "body", index, None), loops + 1)
