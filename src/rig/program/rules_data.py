"""Rules of data: holes, the values in them, views of memory and byte offsets."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from .description import Address, Entry, Fixed, Handle, Int, IntsSlot, MemorySlot, Ready
from .facts import UNKNOWN, Facts, Place, fail, require_index
from .limits import I64_MAX, I64_MIN

if TYPE_CHECKING:
    from collections.abc import Callable

    from .description import Data, Hole, Leaf, Offset, Slot, Submit, Value, View

__all__ = [
    "check_data", "check_end", "check_leaf", "check_offset", "check_overlap", "check_slot", "check_value", "check_view",
    "fixed_bytes", "image_values", "init_values", "require_blob", "slot_length", "step_values",
]  # fmt: skip

_WORD = 2**64 - 1


def require_blob(blob: object) -> None:
    """Refuse what is no bytes with a TypeError, which the check explains."""
    if type(blob) is not bytes and (type(blob) is not memoryview or blob.format != "B" or not blob.c_contiguous):
        raise TypeError("not bytes")


def check_data(facts: Facts, data: Data, place: Place, value: Callable[[Value, Place], None]) -> None:
    """Check each hole of `data`, and that no two share a byte; `value` checks each value."""
    size = len(data.bytes)
    taken: list[tuple[int, int, int]] = []
    for index, hole in enumerate(data.holes):
        at: Place = (place, "holes", index, None)
        if hole.width != 32 and hole.width != 64:
            fail(at, f"width is {hole.width}, 32 and 64 are allowed")
        if not 0 <= hole.shift <= 62:
            fail(at, f"shift is {hole.shift}, 0 to 62 are allowed")
        end = hole.at + hole.width // 8
        if hole.at < 0 or end > size:
            fail(at, f"a hole of {hole.width // 8} bytes at byte {hole.at} lies outside its {size} bytes")
        if not I64_MIN <= hole.add <= I64_MAX:
            fail(at, f"add is {hole.add}, past a signed 64-bit integer")
        taken.append((hole.at, end, index))
        for number, term in enumerate(hole.terms):
            inner: Place = (at, "terms", number, None)
            value(term.value, inner)
            if not I64_MIN <= term.factor <= I64_MAX:
                fail(inner, f"factor is {term.factor}, past a signed 64-bit integer")
    taken.sort()
    for (_, end, one), (begin, _, other) in pairwise(taken):
        if begin < end:
            first, second = sorted((one, other))
            fail((place, "holes", second, None), f"it shares byte {begin} with holes[{first}]; holes may not overlap")


# Values, by where they stand.


def check_leaf(facts: Facts, leaf: Leaf, place: Place) -> None:
    """Check the indices in a leaf."""
    program = facts.program
    kind = type(leaf)
    if kind is Address:
        require_index(leaf.memory, len(program.memory), "an Address's memory", place)  # type: ignore[union-attr]
        require_index(leaf.on, len(program.devices), "an Address's device", place)  # type: ignore[union-attr]
    elif kind is Handle:
        require_index(leaf.memory, len(program.memory), "a Handle's memory", place)  # type: ignore[union-attr]
    elif kind is Entry:
        require_index(leaf.image, len(program.images), "an Entry's image", place)  # type: ignore[union-attr]
    elif kind is Ready:
        facts.require_rail(leaf.rail, place)  # type: ignore[union-attr]
    else:
        raise TypeError("not a leaf")


def check_value(facts: Facts, value: Value, place: Place) -> None:
    """Check the indices in a value, and that an integer is one of 64 bits."""
    if type(value) is Fixed:
        if not I64_MIN <= value.value <= I64_MAX:
            fail(place, f"{value.value} is past a signed 64-bit integer")
    elif type(value) is Int:
        ints = facts.program.ints
        if not 0 <= value.index < ints:
            fail(place, f"Int {value.index} is past the ints: the program has {ints}")
    else:
        check_leaf(facts, value, place)  # type: ignore[arg-type]


def init_values(facts: Facts, memory: int) -> Callable[[Value, Place], None]:
    """Return the check of a value in the init of memory `memory`."""

    def check(value: Value, place: Place) -> None:
        if type(value) is Fixed or type(value) is Int:
            fail(place, f"{type(value).__name__} stands in an init, which only load fills; leaves alone are allowed")
        check_leaf(facts, value, place)  # type: ignore[arg-type]
        if type(value) is Address or type(value) is Handle:
            if facts.two_copies[value.memory] and not facts.two_copies[memory]:
                kind = type(value).__name__
                fail(place, f"the {kind} of memory {value.memory}, which has two copies, stands in memory of one copy")
            facts.init_leaves.append((place, memory, value))

    return check


def image_values(facts: Facts, image: int) -> Callable[[Value, Place], None]:
    """Return the check of a value in image `image`'s binary."""

    def check(value: Value, place: Place) -> None:
        if type(value) is Fixed or type(value) is Int:
            fail(place, f"{type(value).__name__} stands in an image, which only load fills; leaves alone are allowed")
        check_leaf(facts, value, place)  # type: ignore[arg-type]
        if type(value) is Entry and value.image >= image:
            fail(
                place,
                f"it names an entry of image {value.image}; images load in order, those before {image} are allowed",
            )
        if type(value) is Address or type(value) is Handle:
            facts.image_leaves.append((place, value))

    return check


def step_values(facts: Facts, submit: Submit) -> Callable[[Value, Place], None]:
    """Return the check of a value in the parameters or the geometry of a part of `submit`."""

    def check(value: Value, place: Place) -> None:
        check_value(facts, value, place)
        if type(value) is Address or type(value) is Handle:
            facts.step_leaves.append((place, submit, value))

    return check


# Views and slots.


def check_view(facts: Facts, view: View, place: Place) -> None:
    """Check that a view lies in its memory."""
    sizes = facts.memory_sizes
    memory, offset, length = view.memory, view.offset, view.length
    if not 0 <= memory < len(sizes):
        require_index(memory, len(sizes), "a view's memory", place)
    if offset < 0 or length < 0 or offset + length > sizes[memory]:
        whole = f"memory {memory}, which has {sizes[memory]} bytes"
        fail(place, f"a view of {length} bytes at byte {offset} lies outside {whole}")


def check_slot(facts: Facts, slot: Slot, place: Place) -> None:
    """Check what a slot names."""
    if type(slot) is MemorySlot:
        check_view(facts, slot.view, place)
    elif type(slot) is not IntsSlot:
        require_index(slot.index, len(facts.program.inputs), "an input slot's input", place)  # type: ignore[union-attr]


def slot_length(facts: Facts, slot: Slot) -> int:
    """Return the bytes of a slot's buffer; UNKNOWN for an input, of which a description says only the least."""
    if type(slot) is MemorySlot:
        return slot.view.length
    return facts.ints_size if type(slot) is IntsSlot else UNKNOWN


# Offsets of copies and moves.


def check_offset(facts: Facts, terms: Offset, parent: Place, name: str) -> int | None:
    """Check the terms of field `name` of `parent` and return the offset, or None if it reads an Int."""
    total: int | None = 0
    for index, term in enumerate(terms):
        value = term.value
        if type(value) is not Fixed and type(value) is not Int:
            kind = type(value).__name__
            fail((parent, name, index, None), f"{kind} stands in an offset; Fixed and Int are allowed")
        check_value(facts, value, (parent, name, index, None))
        if not I64_MIN <= term.factor <= I64_MAX:
            fail((parent, name, index, None), f"factor is {term.factor}, past a signed 64-bit integer")
        if type(value) is Int:
            total = None
    if total is None:
        return None
    for index, term in enumerate(terms):
        product = term.value.value * term.factor  # type: ignore[union-attr]
        total += product
        if not (I64_MIN <= product <= I64_MAX and I64_MIN <= total <= I64_MAX):
            fail((parent, name, index, None), "the offset is past a signed 64-bit integer at this term")
    return total


def check_end(slot_bytes: int, offset: int | None, length: int, place: Place) -> None:
    """Check that `length` bytes from `offset` lie in a buffer of `slot_bytes` bytes, as far as load knows them."""
    if offset is None:
        return
    if offset < 0:
        fail(place, f"the offset is {offset}, it may not be negative")
    if offset + length > slot_bytes:
        bound = "what 64 bits can name" if slot_bytes == UNKNOWN else f"its slot, which has {slot_bytes} bytes"
        fail(place, f"{length} bytes at byte {offset} end past {bound}")


def check_overlap(src: Slot, src_at: int | None, dst: Slot, dst_at: int | None, length: int, place: Place) -> None:
    """Refuse two ends that share a byte of one memory, of the ints or of one input, where load knows both offsets."""
    if src_at is None or dst_at is None or type(src) is not type(dst):
        return
    if type(src) is MemorySlot and type(dst) is MemorySlot:
        if src.view.memory != dst.view.memory:
            return
        shared = f"memory {src.view.memory}"
        src_at += src.view.offset
        dst_at += dst.view.offset
    elif type(src) is IntsSlot:
        shared = "the ints"
    else:
        if src.index != dst.index:  # type: ignore[union-attr]
            return
        shared = f"input {src.index}"  # type: ignore[union-attr]
    if abs(src_at - dst_at) < length:
        ends = f"{length} bytes at bytes {src_at} and {dst_at} of {shared}"
        fail(place, f"its two ends, {ends}, overlap; they may not share a byte")


def fixed_bytes(data: Data, at: int) -> int | None:
    """Return the signed 64-bit word that the 8 bytes at `at` hold with their holes filled, or None if not yet known."""
    word = int.from_bytes(data.bytes[at : at + 8], "little")
    for hole in data.holes:
        if hole.at + hole.width // 8 <= at or hole.at >= at + 8:
            continue
        value = _fixed_value(hole)
        if value is None:
            return None
        move = 8 * (hole.at - at)
        word |= (value << move if move >= 0 else value >> -move) & _WORD
    return word - 2**64 if word >> 63 else word


def _fixed_value(hole: Hole) -> int | None:
    total = hole.add
    for term in hole.terms:
        if type(term.value) is not Fixed:
            return None
        total += term.value.value * term.factor
    return (total & _WORD) >> hole.shift & (1 << hole.width) - 1
