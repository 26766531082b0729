"""Generated descriptions: any value that has the type of its field."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from rig.program.description import (
    Access,
    Address,
    Alloc,
    Area,
    Copies,
    Copy,
    Data,
    Entry,
    Fill,
    Fixed,
    Handle,
    Hole,
    Image,
    Input,
    InputSlot,
    Int,
    IntsSlot,
    Kind,
    Launch,
    Loop,
    MemorySlot,
    Move,
    Program,
    Rail,
    Ready,
    Ref,
    Submit,
    Term,
    Use,
    View,
    Width,
    Words,
)  # fmt: skip

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


def few(items: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[Any, ...]]:
    """Return tuples of at most three."""
    return st.lists(items, max_size=3).map(tuple)


def programs(ints: st.SearchStrategy[int], *, blob: int = 200) -> st.SearchStrategy[Program]:
    """Return programs whose integers are all of `ints` and whose blobs have at most `blob` bytes."""
    leaves = (
        st.builds(Address, ints, ints)
        | st.builds(Handle, ints)
        | st.builds(Entry, ints, names)
        | st.builds(Ready, ints)
    )
    values = st.builds(Fixed, ints) | st.builds(Int, ints) | leaves
    terms = few(st.builds(Term, values, ints))
    offsets = few(st.builds(Term, st.builds(Fixed, ints) | st.builds(Int, ints), ints)) | terms
    blobs = st.binary(max_size=blob) | st.binary(max_size=blob // 3).map(memoryview)
    holes = few(st.builds(Hole, ints, st.sampled_from(Width), terms, ints, ints))
    data = st.builds(Data, blobs, holes) | st.builds(Data, blobs)
    views = st.builds(View, ints, ints, ints)
    slots = st.builds(MemorySlot, views) | st.builds(InputSlot, ints) | st.just(IntsSlot())
    refs = few(st.builds(Ref, ints, ints, st.sampled_from(Use)))
    sizes = st.tuples(values, values, values)
    parts = (
        st.builds(Words, views)
        | st.builds(Fill, leaves, data, refs)
        | st.builds(Copy, ints, offsets, ints, offsets, ints)
        | st.builds(Launch, ints, names, data, refs, sizes, sizes, values)
    )
    submits = st.builds(Submit, ints, few(parts), few(slots), few(st.tuples(views, st.sampled_from(Access))))
    moves = st.builds(Move, slots, offsets, slots, offsets, ints)
    steps = st.recursive(
        submits | moves,
        lambda inner: st.builds(Loop, values, few(inner), st.none() | ints, st.none() | st.tuples(slots, ints)),
        max_leaves=4,
    )
    allocs = st.builds(Alloc, ints, ints, data, st.sampled_from(Copies), st.sampled_from(Kind))
    memory = few(allocs | st.builds(Rail, ints, st.sampled_from(Area)))
    images = few(st.builds(Image, ints, data))
    return st.builds(Program, few(names), memory, images, few(st.builds(Input, ints, ints)), ints, few(steps))
