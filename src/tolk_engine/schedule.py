"""What a tensor function becomes once it is traced: calls of kernels and copies over slots and storage, as plain data.

A schedule is not compiled: its kernels hold the compiler's own description, opaque to everyone but
`tolk_engine.frontend`, which turns one into text (`Lowered`). Everything else is ints, strings, bytes and tuples that
name each other by index. The calls run in order; no call may be moved before one that writes what it reads, or that
reads what it writes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeAlias

__all__ = [
    "Arg", "Call", "CopyCall", "Kernel", "Lowered", "Node", "Ref", "Schedule", "Slot", "SlotRef", "Storage",
    "StorageRef",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Slot:
    """A parameter of the schedule: a model's input or output, a buffer that each run gives.

    `dtype` is a NumPy-like name (``float32``, ``bfloat16``, ``bool``), `shape` in elements, `nbytes` what the buffer
    must hold. Kernels need its first byte `phase` bytes past a multiple of `align`.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    device: str
    align: int
    phase: int = 0


@dataclass(frozen=True, slots=True)
class Storage:
    """Memory of the schedule's own.

    With `init` of `nbytes` bytes it holds them before the first run and what it holds stays from run to run: a weight
    or constant if no call writes it, state if one does. Without, its content is unspecified before a run's first write
    to it, so that a planner may place it over other such storage. `name` and `dtype`, `shape` say what a weight is and
    may be empty.
    """

    nbytes: int
    device: str
    align: int
    phase: int = 0
    init: bytes | memoryview | None = field(default=None, repr=False)
    name: str = ""
    dtype: str = "uint8"
    shape: tuple[int, ...] = ()


Node: TypeAlias = Slot | Storage


@dataclass(frozen=True, slots=True)
class SlotRef:
    """Slot `index` of the schedule."""

    index: int


@dataclass(frozen=True, slots=True)
class StorageRef:
    """Storage `index` of the schedule."""

    index: int


Ref: TypeAlias = SlotRef | StorageRef


@dataclass(frozen=True, slots=True)
class Arg:
    """The bytes of `node` from byte `offset` on.

    `nbytes` is how far an access may reach from there (a view's length). `moves` are (range, factor): the offset grows
    by factor bytes with each trip of the enclosing range; empty in straight-line schedules.
    """

    node: Ref
    offset: int = 0
    nbytes: int = 0
    moves: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel that is not compiled yet.

    `key` is the same for equal kernels in any process; `ast` is the compiler's description, opaque outside
    `tolk_engine.frontend` and not part of comparisons; `name` is for people: kernels may share one.
    """

    key: str
    name: str
    ast: object = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Call:
    """One launch of kernel `kernel` on `device`.

    `args` are its pointers in the kernel's parameter order. `reads` and `writes` are positions in `args`; one that is
    only partly written counts as both. `values` are the scalar words after the pointers, negative ones as they are.
    """

    kernel: int
    args: tuple[Arg, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    device: str
    values: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class CopyCall:
    """A copy of `nbytes` bytes from `src` to `dst`, which do not overlap."""

    dst: Arg
    src: Arg
    nbytes: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """A traced function.

    `inputs` and `outputs` are slot numbers in the order of the function's parameters and results; every output is a
    slot of its own that the calls write, and no call writes an input. `compiler` says what traced it.
    """

    name: str
    slots: tuple[Slot, ...]
    storages: tuple[Storage, ...]
    kernels: tuple[Kernel, ...]
    calls: tuple[Call | CopyCall, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    compiler: str = ""

    def node(self, ref: Ref) -> Node:
        """Return the slot or storage that `ref` names."""
        return self.slots[ref.index] if isinstance(ref, SlotRef) else self.storages[ref.index]

    def inputs_read(self) -> tuple[int, ...]:
        """Return the inputs that some call reads."""
        used: set[int] = set()
        for call in self.calls:
            sources = [call.src] if isinstance(call, CopyCall) else [call.args[r] for r in call.reads]
            used.update(a.node.index for a in sources if isinstance(a.node, SlotRef))
        return tuple(i for i in self.inputs if i in used)

    def drop_inputs(self) -> Schedule:
        """Return a schedule without the inputs, which no call may read; the outputs are renumbered."""
        moved = {old: new for new, old in enumerate(self.outputs)}

        def arg(a: Arg) -> Arg:
            return replace(a, node=SlotRef(moved[a.node.index])) if isinstance(a.node, SlotRef) else a

        calls: list[Call | CopyCall] = []
        for call in self.calls:
            if isinstance(call, CopyCall):
                calls.append(replace(call, dst=arg(call.dst), src=arg(call.src)))
            else:
                calls.append(replace(call, args=tuple(arg(a) for a in call.args)))
        slots = tuple(self.slots[i] for i in self.outputs)
        return replace(self, slots=slots, calls=tuple(calls), inputs=(), outputs=tuple(range(len(slots))))


@dataclass(frozen=True, slots=True)
class Lowered:
    """One kernel as text for one target, ready for a compiler.

    `text` is LLVM IR without a target line: the kernel as ``@__K__`` and around it ``@__W__`` of the host's calling
    form ``void (ptr words, i64 begin, i64 end)``; whoever joins texts into a module replaces ``__K__`` and ``__W__`` by
    names of its own: every symbol that the text defines begins with one of them. Word i < len(arg_order) is the
    address of ``Call.args[arg_order[i]]``, then come `n_values` words of ``Call.values``. `iterations` is the length of
    the range that begin and end cut. `ops` and `mem` are the estimates of the whole launch (operations, bytes of
    distinct memory). `aligns` holds the element size in bytes of each pointer, the alignment that the code needs, in
    the order of the words.
    """

    text: str = field(repr=False)
    name: str
    iterations: int
    ops: int
    mem: int
    arg_order: tuple[int, ...]
    n_values: int
    aligns: tuple[int, ...]
