"""What a compiler may say about a program for people who look at it: nothing here changes what a run does."""

from __future__ import annotations

from rig.model.record import Record

__all__ = ["KernelNote", "Notes", "PieceNote"]


class KernelNote(Record):
    """A function of the program's images: what it is called there, a name for people, and estimates for one launch.

    `ops` counts arithmetic operations, `mem` the bytes of distinct memory that it touches; 0 where nobody knows.
    """

    symbol: str
    name: str = ""
    ops: int = 0
    mem: int = 0


class PieceNote(Record):
    """`nbytes` bytes of memory `memory` from `offset` on, which hold one thing from part `first` to part `last`.

    Parts are the launches, copies and moves of a run, counted from 0, a loop's body once.
    """

    memory: int
    offset: int
    nbytes: int
    first: int
    last: int


class Notes(Record):
    """Notes on the kernels, and on what shares memory over time."""

    kernels: tuple[KernelNote, ...] = ()
    pieces: tuple[PieceNote, ...] = ()
