"""Rules of order: what reaches memory through an address may stand only where its step names that memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .description import Address, MemorySlot, Submit, Words
from .facts import Facts, Place, fail

if TYPE_CHECKING:
    from collections.abc import Iterable

    from .description import View

__all__ = ["check_order"]


def check_order(facts: Facts) -> None:
    """Check the rules of order; every index of the program is known to be good."""
    for place, leaf in facts.image_leaves:
        kind = type(leaf).__name__
        fail(place, f"an image holds the {kind} of memory {leaf.memory}; leaves of memory are not allowed in images")
    names = _Names(facts)
    _check_step_leaves(facts, names)
    _check_trips(facts, names)
    if facts.init_leaves:
        _check_inits(facts, names)


class _Names:
    """The memory that submits name: at all, whole, and whole among what is fixed. Looked up once for each submit."""

    def __init__(self, facts: Facts) -> None:
        self._sizes = facts.memory_sizes
        self._fixed: dict[int, set[int]] = {}
        self._named: dict[int, tuple[set[int], set[int]]] = {}

    def whole(self, views: Iterable[View]) -> set[int]:
        sizes = self._sizes
        return {view.memory for view in views if view.offset == 0 and view.length == sizes[view.memory]}

    def fixed_whole(self, submit: Submit) -> set[int]:
        found = self._fixed.get(id(submit))
        if found is None:
            found = self._fixed[id(submit)] = self.whole(view for view, _ in submit.fixed)
        return found

    def named(self, submit: Submit) -> tuple[set[int], set[int]]:
        """Return the memory that `submit` names, and that which it names whole."""
        found = self._named.get(id(submit))
        if found is None:
            views = [view for view, _ in submit.fixed]
            views += [slot.view for slot in submit.slots if type(slot) is MemorySlot]
            views += [part.view for part in submit.parts if type(part) is Words]
            found = self._named[id(submit)] = {view.memory for view in views}, self.whole(views)
        return found


def _check_step_leaves(facts: Facts, names: _Names) -> None:
    for place, submit, leaf in facts.step_leaves:
        memory = leaf.memory
        if type(leaf) is Address:
            if leaf.on != submit.device:
                found, wanted = facts.device_name(leaf.on), facts.device_name(submit.device)
                fail(place, f"the Address of memory {memory} is one of {found}, but the step runs on {wanted}")
            if memory not in names.fixed_whole(submit):
                missing = f"is not fixed whole by its step; fixed must hold {_all(facts, memory)}"
                fail(place, f"memory {memory}, whose Address stands here, {missing}")
        elif memory not in names.named(submit)[1]:
            missing = f"is not named whole by its step; one of its views must be {_all(facts, memory)}"
            fail(place, f"memory {memory}, whose Handle stands here, {missing}")


def _check_trips(facts: Facts, names: _Names) -> None:
    for place, loop, leaf in facts.trips_leaves:
        if type(leaf) is Address:
            fail(place, f"a loop's trips are the Address of memory {leaf.memory}; no Address is allowed there")
        slot = loop.flag[0] if loop.flag is not None else None
        views = [slot.view] if type(slot) is MemorySlot else []
        if leaf.memory not in names.whole(views):
            missing = f"is not named whole by the loop's flag, whose slot must be {_all(facts, leaf.memory)}"
            fail(place, f"memory {leaf.memory}, whose Handle stands here, {missing}")


def _check_inits(facts: Facts, names: _Names) -> None:
    reached: dict[int, dict[int, Place]] = {}
    fixed_on: set[tuple[int, int]] = set()
    for _, submit in facts.submits:
        fixed_on.update((submit.device, memory) for memory in names.fixed_whole(submit))
    for place, memory, leaf in facts.init_leaves:
        if type(leaf) is Address and (leaf.on, leaf.memory) not in fixed_on:
            device, whole = facts.device_name(leaf.on), _all(facts, leaf.memory)
            missing = f"is fixed whole by no submit on {device}; one of them must fix {whole}"
            fail(place, f"memory {leaf.memory}, whose Address stands here, {missing}")
        if leaf.memory != memory:
            reached.setdefault(memory, {}).setdefault(leaf.memory, place)
    for place, submit in facts.submits:
        named, whole_ones = names.named(submit)
        for memory in sorted(named & reached.keys()):
            for other in sorted(reached[memory].keys() - whole_ones):
                reason = f"it names memory {memory}, whose init holds an Address or a Handle of memory {other}"
                missing = f"one of its views must be {_all(facts, other)}"
                fail(place, f"{reason}, but does not name memory {other} whole; {missing}")


def _all(facts: Facts, memory: int) -> str:
    return f"all {facts.memory_sizes[memory]} bytes of memory {memory}"
