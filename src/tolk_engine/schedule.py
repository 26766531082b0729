"""What a tensor function becomes once it is traced: calls of kernels and copies over slots and storage, as plain data.

A schedule is not compiled: its kernels hold the compiler's own description, opaque to everyone but
`tolk_engine.frontend`, which turns one into text (`Lowered`). Everything else is ints, strings, bytes and tuples that
name each other by index. The calls run in order; no call may be moved before one that writes what it reads, or that
reads what it writes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from rig.errors import Invalid

__all__ = [
    "Affine", "Arg", "Call", "CopyCall", "Foreign", "Kernel", "Loop", "Lowered", "Node", "Ref", "Schedule", "Slot",
    "SlotRef", "Step", "Storage", "StorageRef", "Value", "Var", "flat", "loops", "with_args",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Var:
    """A whole number from `min` to `max`, both included, that each run gives by `name`, or else `default`.

    In the shape of a `tolk_engine.Spec` it is an extent; as an input of a captured function it is a number.
    """

    name: str
    min: int
    max: int
    default: int | None = None

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise Invalid(f"a variable is named {self.name!r}, which is no identifier")
        default = self.min if self.default is None else self.default
        for what, n in (("min", self.min), ("max", self.max), ("default", default)):
            if isinstance(n, bool) or not isinstance(n, int) or not -(1 << 31) <= n < 1 << 31:
                raise Invalid(f"variable {self.name!r}: {what} is {n!r}, expected a whole number of 32 bits")
        if self.min > self.max:
            raise Invalid(f"variable {self.name!r}: min {self.min} is more than max {self.max}")
        if self.default is not None and not self.min <= self.default <= self.max:
            raise Invalid(f"variable {self.name!r}: default {self.default} is not from {self.min} to {self.max}")


@dataclass(frozen=True, slots=True)
class Slot:
    """A parameter of the schedule: a model's input or output, a buffer that each run gives.

    `dtype` is a NumPy-like name (``float32``, ``bfloat16``, ``bool``). `shape` is in elements; an extent that depends
    on the schedule's variables is an expression (`rig.model.extents`). `nbytes` is what the buffer must hold, at the
    most if its shape varies: its elements lie dense from its first byte whatever the shape is. Kernels need its first
    byte `phase` bytes past a multiple of `align`.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
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

    `nbytes` is how far an access may reach from there (a view's length). `moves` are (loop, factor): the offset grows
    by factor bytes with each trip of the enclosing loop of that name.
    """

    node: Ref
    offset: int = 0
    nbytes: int = 0
    moves: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Affine:
    """A scalar argument that moves: `add`, and factor times the trip of each enclosing loop, or a run's variable."""

    add: int
    moves: tuple[tuple[str, int], ...]


Value: TypeAlias = "int | str | Affine"
"""A scalar argument: a number, the name of a run's variable or of an enclosing loop for its trip, or one that moves."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel that is not compiled yet.

    `key` is the same for equal kernels in any process; `ast` is the compiler's description, opaque outside
    `tolk_engine.frontend` and not part of comparisons; `name` is for people: kernels may share one.
    """

    key: str
    name: str
    ast: object = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Foreign:
    """A kernel that is compiled already: function `symbol` of the shared library `library`, its bytes.

    It has the host's calling form, ``void f(const uint64_t *words, uint64_t begin, uint64_t end)``: the words are the
    addresses of a call's args in order, then its values. `aligns` are the args' element sizes; for the rest see
    `Kernel` and `Lowered`.
    """

    key: str
    name: str
    library: bytes = field(compare=False, repr=False)
    symbol: str
    aligns: tuple[int, ...]
    n_values: int = 0
    iterations: int = 1
    ops: int = 0
    mem: int = 0

    def lowered(self) -> Lowered:
        """Return what a kernel's text says beside the text, which there is none of."""
        order = tuple(range(len(self.aligns)))
        return Lowered("", self.name, self.iterations, self.ops, self.mem, order, self.n_values, self.aligns)


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
    values: tuple[Value, ...] = ()


@dataclass(frozen=True, slots=True)
class CopyCall:
    """A copy of `nbytes` bytes from `src` to `dst`, which do not overlap."""

    dst: Arg
    src: Arg
    nbytes: int


@dataclass(frozen=True, slots=True)
class Loop:
    """`calls` in order, `trips` times, none if that is not positive.

    `name` is the loop's, for what moves with its trips. `trips` is a number, or a word of the run: a variable's name or
    one of `Schedule.words`. With `flag` the byte there is read before each trip, and 0 ends the loop.
    """

    name: str
    trips: int | str
    calls: tuple[Step, ...]
    flag: Arg | None = None


Step: TypeAlias = "Call | CopyCall | Loop"


def flat(steps: Iterable[Step]) -> Iterator[Call | CopyCall]:
    """Give the calls and copies in order, each loop's body once in the loop's place."""
    for step in steps:
        if isinstance(step, Loop):
            yield from flat(step.calls)
        else:
            yield step


def loops(steps: Iterable[Step]) -> Iterator[Loop]:
    """Give the loops, each before those within it."""
    for step in steps:
        if isinstance(step, Loop):
            yield step
            yield from loops(step.calls)


@dataclass(frozen=True, slots=True)
class Schedule:
    """A traced function.

    `inputs` and `outputs` are slot numbers in the order of the function's parameters and results; every output is a
    slot of its own that the calls write, and no call writes an input. `variables` are what a run gives beside buffers,
    `words` what is computed from them for a run: expressions (`rig.model.extents`). `compiler` says what traced it.
    """

    name: str
    slots: tuple[Slot, ...]
    storages: tuple[Storage, ...]
    kernels: tuple[Kernel | Foreign, ...]
    calls: tuple[Step, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    compiler: str = ""
    variables: tuple[Var, ...] = ()
    words: tuple[str, ...] = ()

    def flat(self) -> Iterator[Call | CopyCall]:
        """Give the calls and copies in order, each loop's body once in the loop's place."""
        return flat(self.calls)

    def node(self, ref: Ref) -> Node:
        """Return the slot or storage that `ref` names."""
        return self.slots[ref.index] if isinstance(ref, SlotRef) else self.storages[ref.index]

    def inputs_read(self) -> tuple[int, ...]:
        """Return the inputs that some call reads."""
        used: set[int] = set()
        for call in self.flat():
            sources = [call.src] if isinstance(call, CopyCall) else [call.args[r] for r in call.reads]
            used.update(a.node.index for a in sources if isinstance(a.node, SlotRef))
        return tuple(i for i in self.inputs if i in used)

    def variables_read(self) -> tuple[str, ...]:
        """Return the names of the variables that some call takes."""
        used = {v for call in self.flat() if isinstance(call, Call) for v in call.values if isinstance(v, str)}
        used |= {loop.trips for loop in loops(self.calls) if isinstance(loop.trips, str)}
        return tuple(v.name for v in self.variables if v.name in used)

    def drop_inputs(self) -> Schedule:
        """Return a schedule without inputs and variables, which no call may read; the outputs are renumbered."""
        moved = {old: new for new, old in enumerate(self.outputs)}

        def arg(a: Arg) -> Arg:
            return replace(a, node=SlotRef(moved[a.node.index])) if isinstance(a.node, SlotRef) else a

        slots = tuple(self.slots[i] for i in self.outputs)
        calls = with_args(self.calls, arg)
        return replace(self, slots=slots, calls=calls, inputs=(), outputs=tuple(range(len(slots))), variables=())


def with_args(steps: Iterable[Step], change: Callable[[Arg], Arg]) -> tuple[Step, ...]:
    """Return the steps with each argument changed, flags too."""
    out: list[Step] = []
    for step in steps:
        if isinstance(step, Loop):
            flag = None if step.flag is None else change(step.flag)
            out.append(replace(step, calls=with_args(step.calls, change), flag=flag))
        elif isinstance(step, CopyCall):
            out.append(replace(step, dst=change(step.dst), src=change(step.src)))
        else:
            out.append(replace(step, args=tuple(map(change, step.args))))
    return tuple(out)


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
