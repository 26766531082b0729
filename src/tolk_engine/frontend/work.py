"""Calls, copies and loops over memory while a schedule is built, and the passes over them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Memory", "Work", "adopt", "hoist", "prune", "replace_memory", "walk"]


@dataclass(eq=False, slots=True)
class Memory:
    """Memory while the schedule is built; one that is found to be another's is replaced everywhere."""

    nbytes: int
    device: str
    dtype: str
    init: memoryview | bytes | None = None
    slot: int | None = None
    align: int = 1
    name: str = ""
    shape: tuple[int | str, ...] = ()


@dataclass(eq=False, slots=True)
class Work:
    """A call, a copy or a loop. `areas` are (memory, offset, bytes), a loop's that of its flag if it has one.

    `reads`, `writes` and `whole` are positions in `areas`. `loop` is a loop's name and trips, `body` what it repeats.
    """

    areas: list[tuple[Memory, int, int]]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    whole: tuple[int, ...]
    device: str
    ast: Any = None
    values: tuple[int | str, ...] = ()
    loop: tuple[str, int | str] | None = None
    body: list[Work] = field(default_factory=list)

    def read(self) -> Iterator[Memory]:
        """Give what it reads, a loop's flag but not its body."""
        return (self.areas[r][0] for r in self.reads)

    def written(self) -> Iterator[Memory]:
        """Give what it writes itself, not a loop's body."""
        return (self.areas[w][0] for w in self.writes)


def walk(work: Iterable[Work]) -> Iterator[Work]:
    """Give all work in order, a loop before its body."""
    for item in work:
        yield item
        yield from walk(item.body)


def replace_memory(work: Iterable[Work], same: dict[int, Memory]) -> None:
    """Put memory in the place of other, by the other's id."""
    for item in walk(work):
        item.areas = [(same.get(id(memory), memory), at, n) for memory, at, n in item.areas]


def adopt(work: list[Work], constants: Collection[Memory]) -> tuple[list[Work], dict[int, Memory]]:
    """Let memory that only a copy of a constant fills be that constant, and drop the copy.

    Returns the work, and the constants by the id of the memory that they replace.
    """
    writers: dict[int, int] = {}
    for item in walk(work):
        for memory in item.written():
            writers[id(memory)] = writers.get(id(memory), 0) + 1
    same: dict[int, Memory] = {}
    seen: set[int] = set()

    def kept(items: list[Work]) -> list[Work]:
        out = []
        for item in items:
            if item.loop is not None:
                seen.update(id(memory) for memory, _, _ in item.areas)
                item.body = kept(item.body)
            elif item.ast is None:
                target, source = item.areas[0][0], item.areas[1][0]
                fresh = id(target) not in seen and target.slot is None and target.init is None
                seen.update((id(target), id(source)))
                if source in constants and item.whole and fresh and writers[id(target)] == 1:
                    if not source.name:
                        source.name, source.shape = target.name, target.shape
                    source.align = max(source.align, target.align)
                    same[id(target)] = source
                    continue
            else:
                seen.update(id(memory) for memory, _, _ in item.areas)
            out.append(item)
        return out

    work = kept(work)
    replace_memory(work, same)
    return work, same


def prune(work: list[Work], needed: set[int], *, state: bool = True) -> list[Work]:
    """Return the work without what nothing needs; `needed` are ids of memory, after the work and then before it.

    With `state`, what a later run finds in memory with a first value is needed.
    """
    kept = []
    for item in reversed(work):
        if item.loop is not None:
            if not any(_counts(one, needed, state) for one in walk(item.body)):
                continue  # its own flag is no reason for it
            # What a trip needs, an earlier trip or what is before the loop leaves; with no trip all stays as it was.
            after = needed | {id(memory) for memory in item.read()}
            while True:
                before = set(after)
                body = prune(item.body, before, state=state)
                if before <= after:
                    break
                after |= before
            if body:
                item.body = body
                needed |= after
                kept.append(item)
            continue
        if not _counts(item, needed, state):
            continue
        for w in item.writes:
            if w in item.whole and w not in item.reads and item.areas[w][0].init is None:
                needed.discard(id(item.areas[w][0]))
        needed.update(id(memory) for memory in item.read())
        needed.update(id(item.areas[w][0]) for w in item.writes if w not in item.whole)
        kept.append(item)
    return kept[::-1]


def _counts(item: Work, needed: set[int], state: bool) -> bool:
    """Tell whether something needs what a call writes."""
    return any(id(m) in needed or (state and m.init is not None and m.slot is None) for m in item.written())


def hoist(work: list[Work]) -> list[Work]:
    """Do before a loop what each of its trips would do alike.

    That is a call that writes memory of its own whole, which nothing else in the loop writes, from memory that nothing
    in the loop writes, and that takes no trip.
    """
    out: list[Work] = []
    for item in work:
        if item.loop is None:
            out.append(item)
            continue
        item.body = hoist(item.body)
        while True:
            alike = [one for one in item.body if _alike(one, item)]
            if not alike:
                break
            out += alike
            item.body = [one for one in item.body if one not in alike]
        if item.body:
            out.append(item)
    return out


def _alike(item: Work, loop: Work) -> bool:
    if item.loop is not None or loop.loop is None or loop.loop[0] in item.values:
        return False
    targets = list(item.written())
    own = all(m.init is None and m.slot is None for m in targets)
    if not own or any(w not in item.whole or w in item.reads for w in item.writes):
        return False
    others = {id(m) for one in walk(loop.body) if one is not item for m in one.written()}
    return not others & {id(m) for m in (*targets, *item.read())}
