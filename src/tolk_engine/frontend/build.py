"""From what a trace recorded to a `Schedule`: which memory each call names, what is constant, what is needed at all."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from rig.errors import Invalid
from tolk_engine.frontend import adapter, kernels, symbolic
from tolk_engine.frontend.adapter import Uop
from tolk_engine.frontend.foreign import ForeignCall, known
from tolk_engine.frontend.identity import kernel_key
from tolk_engine.frontend.work import Memory, Work, adopt, hoist, prune, replace_memory, walk
from tolk_engine.schedule import (
    Arg,
    Call,
    CopyCall,
    Foreign,
    Kernel,
    Loop,
    Ref,
    Schedule,
    Slot,
    SlotRef,
    Step,
    Storage,
    StorageRef,
    Var,
    loops,
)

__all__ = ["STORAGE_ALIGN", "Labels", "Port", "build"]

STORAGE_ALIGN = 64
"""Bytes that storage starts on: a cache line, more than any element."""


Labels: TypeAlias = dict[tuple[Uop, int], tuple[str, tuple[int, ...]]]
"""The names and shapes of constants, by the BUFFER and byte offset that they lie at."""


@dataclass(frozen=True, slots=True)
class Port:
    """An input or output of the traced function: its name and the bytes of the buffer that it lies in.

    An extent that varies is an expression, and `nbytes` are the bytes of all elements at the most. `view` is None where
    there are no bytes (a shape with a zero).
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    nbytes: int
    device: str
    view: adapter.View | None

    @property
    def varies(self) -> bool:
        """Whether its bytes depend on a run's variables."""
        return any(isinstance(n, str) for n in self.shape)


@dataclass(slots=True)
class _Builder:
    calls: Sequence[adapter.Entry]
    inputs: Sequence[Port]
    outputs: Sequence[Port]
    names: Labels
    variables: tuple[Var, ...] = ()
    redirected: Mapping[Uop, Uop] = field(default_factory=dict)
    state: bool = True
    memories: dict[Uop, Memory] = field(default_factory=dict)
    constants: dict[tuple[Uop, int, int, str], Memory] = field(default_factory=dict)
    work: list[Work] = field(default_factory=list)

    def memory(self, buffer: Uop) -> Memory:
        """Return the memory of a BUFFER."""
        found = self.memories.get(buffer)
        if found is None:
            count = int(buffer.max_numel())
            dtype = adapter.dtype_name(buffer.dtype)
            name, shape = self.label(buffer, 0, count)
            nbytes = count * adapter.itemsize(dtype)
            found = Memory(nbytes, buffer.device, dtype, adapter.held_bytes(buffer), name=name, shape=shape)
            self.memories[buffer] = found
        return found

    def label(self, buffer: Uop, offset: int, count: int) -> tuple[str, tuple[int, ...]]:
        """Return the name and shape of `count` elements at byte `offset` of a BUFFER; without a name they are flat."""
        name, shape = self.names.get((buffer, offset), ("", (count,)))
        return name, shape if math.prod(shape) == count else (count,)

    def area(self, view: adapter.View) -> tuple[Memory, int, int]:
        return self.memory(view.buffer), view.offset, view.nbytes

    # --- from calls to work

    def add_inputs(self) -> None:
        """Give each input its slot."""
        for at, port in enumerate(self.inputs):
            memory = Memory(port.nbytes, port.device, port.dtype, slot=at, name=port.name, shape=port.shape)
            if port.view is not None:
                self.memories[port.view.buffer] = memory

    def add_calls(self) -> None:
        """Take in every recorded call."""
        self.variables = _variables(self.calls, self.variables)
        self.work = self.taken(self.calls, frozenset(v.name for v in self.variables))

    def taken(self, entries: Sequence[adapter.Entry], names: frozenset[str]) -> list[Work]:
        """Return what was recorded as work; `names` are the variables of the run and the loops around it."""
        out = []
        for entry in entries:
            if isinstance(entry, adapter.RecordedLoop):
                body = self.taken(entry.calls, names | {entry.name})
                flag = [] if entry.flag is None else [self.area(adapter.view_of(entry.flag))]
                reads = tuple(range(len(flag)))
                out.append(Work(flag, reads, (), (), "", loop=(entry.name, entry.trips), body=body))
                continue
            call, values = entry
            kind = kernels.kind_of(call)
            if kind == "kernel":
                out.append(self.kernel(call, values, names))
            elif kind == "copy":
                out.append(self.copy(call))
            else:
                raise Invalid(f"a call is {kind}: only kernels and copies are supported")
        return out

    def kernel(self, call: Uop, values: dict[str, int], given: frozenset[str]) -> Work:
        """Return a kernel's launch."""
        ast = call.src[0]
        foreign = known(kernels.kernel_name(call))
        how = kernels.access(ast) if foreign is None else _foreign_access(foreign)
        areas = []
        for argument, size in zip(kernels.arguments(call), how.itemsizes, strict=True):
            view = adapter.view_of(argument)
            memory = self.memory(view.buffer)
            if memory.device.split(":")[0] in adapter.HOST_DEVICES:
                raise Invalid(
                    f"a kernel would run on device {memory.device}, which only holds bytes: move the tensor with .to()"
                )
            if view.offset % size:
                raise Invalid(f"a kernel reads {size}-byte elements from byte {view.offset} of a buffer: copy the view")
            memory.align = max(memory.align, size)
            areas.append((memory, view.offset, view.nbytes))
        device = areas[0][0].device
        if foreign is not None:
            if missing := [v for v in foreign.values if isinstance(v, str) and v not in given]:
                raise Invalid(f"{foreign.kernel.symbol} takes variable {missing[0]!r}, which is no input of the run")
            return Work(areas, how.reads, how.writes, how.whole, device, foreign.kernel, foreign.values)
        words = tuple(n if n in given else v for n, v in kernels.bound_values(call, values).items())
        return Work(areas, how.reads, how.writes, how.whole, device, ast, words)

    def copy(self, call: Uop) -> Work:
        """Return a copy; what comes from Python, NumPy or a file is a constant."""
        target, source = (adapter.view_of(a) for a in kernels.arguments(call))
        to, at, nbytes = self.area(target)
        origin: tuple[Memory, int, int]
        if call in self.redirected:
            origin = (self.memory(self.redirected[call]), 0, nbytes)
        elif source.buffer.device.split(":")[0] in adapter.HOST_DEVICES:
            key = (source.buffer, source.offset, nbytes, to.device)
            if key not in self.constants:
                held = adapter.held_bytes(source.buffer)
                if held is None:
                    raise Invalid(f"a copy reads a buffer of {source.buffer.device} that holds nothing")
                init = held[source.offset : source.offset + nbytes]
                name, shape = self.label(source.buffer, source.offset, nbytes // adapter.itemsize(to.dtype))
                self.constants[key] = Memory(nbytes, to.device, to.dtype, init, name=name, shape=shape)
            origin = (self.constants[key], 0, nbytes)
        else:
            origin = self.area(source)
        whole = (0,) if at == 0 and nbytes == to.nbytes else ()
        return Work([(to, at, nbytes), origin], (1,), (0,), whole, origin[0].device)

    # --- passes over the work

    def adopt_constants(self) -> None:
        """Let memory that only a copy of a constant fills be that constant, and drop the copy."""
        self.work, same = adopt(self.work, self.constants.values())
        self.memories = {buffer: same.get(id(memory), memory) for buffer, memory in self.memories.items()}

    def check_reads(self) -> None:
        """Refuse a read of memory that nothing has filled."""
        written: set[int] = set()
        for item in walk(self.work):
            for memory in item.read():
                self.check_filled(memory, written)
            written.update(map(id, item.written()))
        for port in self.outputs:
            if port.view is not None:
                self.check_filled(self.memory(port.view.buffer), written, f"output {port.name!r}")

    def check_filled(self, memory: Memory, written: set[int], reader: str = "a kernel") -> None:
        """Raise `Invalid` where `memory` holds nothing yet."""
        if memory.init is None and memory.slot is None and id(memory) not in written:
            name = f" {memory.name!r}" if memory.name else ""
            raise Invalid(
                f"{reader} reads a buffer{name} of {memory.nbytes} bytes ({memory.dtype}, {memory.device}) that"
                " is no input, no constant and not written before: it is empty or was computed from the inputs of an"
                " earlier capture; pass it as an input or fill it outside the function"
            )

    def prune(self) -> None:
        """Drop work whose results nothing needs, and do before a loop what its trips do alike."""
        needed = {id(self.memory(p.view.buffer)) for p in self.outputs if p.view is not None}
        self.work = hoist(prune(self.work, needed, state=self.state))

    def protect_inputs(self) -> None:
        """Let work that writes an input write a copy of it instead: what a caller gives is never written."""
        written = {id(memory): memory for item in walk(self.work) for memory in item.written()}
        for memory in [m for m in written.values() if m.slot is not None]:
            if self.inputs[memory.slot or 0].varies:
                raise Invalid(
                    f"the function assigns in place to input {memory.name!r}, "
                    "whose shape varies: assign to a copy of it"
                )
            private = Memory(memory.nbytes, memory.device, memory.dtype, align=memory.align)
            replace_memory(self.work, {id(memory): private})
            for buffer, held in self.memories.items():
                if held is memory:
                    self.memories[buffer] = private
            first = Work([(private, 0, memory.nbytes), (memory, 0, memory.nbytes)], (1,), (0,), (0,), memory.device)
            self.work.insert(0, first)

    def place_outputs(self) -> None:
        """Give each output its slot: the memory that was computed where nothing else keeps it, else a copy's."""
        for at, port in enumerate(self.outputs, len(self.inputs)):
            memory = self.memory(port.view.buffer) if port.view is not None else None
            if memory is not None and port.view is not None:
                whole = port.view.offset == 0 and port.view.nbytes == memory.nbytes and port.device == memory.device
                if whole and memory.slot is None and memory.init is None:
                    memory.slot, memory.name, memory.dtype, memory.shape = at, port.name, port.dtype, port.shape
                    continue
            slot = Memory(port.nbytes, port.device, port.dtype, slot=at, name=port.name, shape=port.shape)
            if port.varies and port.nbytes:
                raise Invalid(f"output {port.name!r}, whose shape varies, is memory that is kept: return a copy")
            if memory is not None and port.view is not None and port.nbytes:
                origin = (memory, port.view.offset, port.nbytes)
                self.work.append(Work([(slot, 0, port.nbytes), origin], (1,), (0,), (0,), memory.device))

    # --- numbering

    def finish(self, name: str) -> Schedule:
        """Number everything in the order of its first use."""
        by_slot = {m.slot: m for item in walk(self.work) for m, _, _ in item.areas if m.slot is not None}
        slots = []
        for at, port in enumerate([*self.inputs, *self.outputs]):
            align = max(adapter.itemsize(port.dtype), by_slot[at].align if at in by_slot else 1)
            slots.append(Slot(port.name, port.dtype, port.shape, port.nbytes, port.device, align))
        storages: dict[int, int] = {}
        made: list[Storage] = []
        kernels: dict[str, int] = {}
        table: list[Kernel | Foreign] = []

        def arg(area: tuple[Memory, int, int]) -> Arg:
            memory, at, nbytes = area
            ref: Ref
            if memory.slot is not None:
                ref = SlotRef(memory.slot)
            else:
                if id(memory) not in storages:
                    storages[id(memory)] = len(made)
                    align = max(STORAGE_ALIGN, memory.align)
                    shape = tuple(n for n in memory.shape if isinstance(n, int))  # only slots vary
                    label = (memory.name, memory.dtype, shape)
                    made.append(Storage(memory.nbytes, memory.device, align, 0, memory.init, *label))
                ref = StorageRef(storages[id(memory)])
            return Arg(ref, at, nbytes)

        def steps(work: Sequence[Work]) -> tuple[Step, ...]:
            out: list[Step] = []
            for item in work:
                args = tuple(arg(a) for a in item.areas)
                if item.loop is not None:
                    out.append(Loop(*item.loop, steps(item.body), args[0] if args else None))
                    continue
                if item.ast is None:
                    out.append(CopyCall(args[0], args[1], args[0].nbytes))
                    continue
                foreign = item.ast if isinstance(item.ast, Foreign) else None
                key = kernel_key(item.ast) if foreign is None else foreign.key
                if key not in kernels:
                    kernels[key] = len(table)
                    table.append(foreign or Kernel(key, f"kernel{len(table)}", item.ast))
                partly = tuple(w for w in item.writes if w not in item.whole)
                reads = tuple(sorted({*item.reads, *partly}))
                out.append(Call(kernels[key], args, reads, item.writes, item.device, item.values))
            return tuple(out)

        calls = steps(self.work)
        count = len(self.inputs)
        return Schedule(
            name, tuple(slots), tuple(made), tuple(table), calls, tuple(range(count)),
            tuple(range(count, count + len(self.outputs))), f"tinygrad {adapter.VERSION}", self.variables,
            _words(calls),
        )  # fmt: skip


def _foreign_access(foreign: ForeignCall) -> kernels.Access:
    """Return how a foreign kernel uses its arguments: it writes the outputs whole and reads the inputs."""
    aligns = foreign.kernel.aligns
    outputs = tuple(range(foreign.outputs))
    return kernels.Access(tuple(range(foreign.outputs, len(aligns))), outputs, outputs, aligns)


def _words(steps: Sequence[Step]) -> tuple[str, ...]:
    """Return the trips of loops that are computed from variables."""
    texts = [loop.trips for loop in loops(steps) if isinstance(loop.trips, str) and not loop.trips.isidentifier()]
    return tuple(dict.fromkeys(texts))


def _variables(calls: Sequence[adapter.Entry], given: tuple[Var, ...]) -> tuple[Var, ...]:
    """Return the variables of a run: those `given`, and those that the calls bind to one value, which is the default.

    One that is bound to several values, or whose values go in steps, is no variable of the run: its calls keep them.
    """
    found = {v.name: v for v in given}
    bound: dict[str, set[int]] = {}
    ranges: dict[str, symbolic.Variable] = {}
    trips = adapter.loop_names(calls)
    for call, values in adapter.flat(calls):
        if kernels.kind_of(call) != "kernel":
            continue
        known = kernels.bound_values(call, values)
        for variable in symbolic.kernel_variables(call.src[0]):
            if variable.name in trips:
                continue
            bound.setdefault(variable.name, set()).add(known[variable.name])
            other = ranges.setdefault(variable.name, variable)
            mine = found.get(variable.name)
            low, high = (other.min, other.max) if mine is None else (mine.min, mine.max)
            if (variable.min, variable.max) != (low, high):
                raise Invalid(
                    f"variable {variable.name!r} has two ranges: {low} to {high} and {variable.min} to {variable.max}"
                )
    for name, values_of in bound.items():
        if name not in found and len(values_of) == 1 and ranges[name].multiple == 1:
            found[name] = Var(name, ranges[name].min, ranges[name].max, next(iter(values_of)))
    return tuple(found.values())


def build(
    name: str,
    calls: Sequence[adapter.Entry],
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    names: Labels | None = None,
    variables: tuple[Var, ...] = (),
    redirected: Mapping[Uop, Uop] | None = None,
    *,
    state: bool = True,
) -> Schedule:
    """Return the schedule of recorded `calls`.

    A BUFFER that holds bytes is a constant, or state where a call writes it. `names` are what
    to call constants, by the BUFFER and byte offset that they lie at. `variables` are those that each run gives; others
    that the calls bind have their value as default. `redirected` are copies of constants that have become state since,
    each with the BUFFER of that state. Without `state` only the outputs count, not what a later run would find. Raises
    `Invalid` for a read of memory that nothing filled and for forms that are not supported.
    """
    builder = _Builder(calls, inputs, outputs, names or {}, variables, redirected or {}, state)
    builder.add_inputs()
    builder.add_calls()
    builder.adopt_constants()
    builder.prune()
    builder.check_reads()
    builder.protect_inputs()
    builder.place_outputs()
    return builder.finish(name)
