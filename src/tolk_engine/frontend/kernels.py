"""Recorded calls and their kernels: what they do, what they read and write, and how much work they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tinygrad.dtype import AddrSpace, dtypes
from tinygrad.uop.ops import GroupOp, KernelInfo, Ops, UOp

from rig.errors import Invalid
from tolk_engine.frontend.adapter import Uop, view_of
from tolk_engine.frontend.symbolic import variable_names

__all__ = [
    "Access", "access", "arguments", "bound_values", "call_opaque", "estimates", "kernel_name", "kind_of",
    "rough_estimates", "written_buffers",
]  # fmt: skip


def call_opaque(name: str, outputs: Sequence[Uop], inputs: Sequence[Uop]) -> list[Uop]:
    """Return `outputs` after one kernel `name` that writes them from `inputs`, which tinygrad leaves as it is."""

    def body(*places: Uop) -> Uop:
        given = [p.flatten()[0].cast(dtypes.float32) for p in places[len(outputs) :]]
        value = sum(given[1:], given[0]) if given else UOp.const(0.0)
        stores = [p.flatten()[0].store(value.cast(p.dtype)) for p in places[: len(outputs)]]
        return UOp.sink(*stores, arg=KernelInfo(name=name))

    return list(UOp.custom_kernel(*outputs, *inputs, fxn=body)[: len(outputs)])


def kernel_name(call: Uop) -> str:
    """Return the name that a recorded kernel was given, or tinygrad's own for all others."""
    return str(getattr(call.src[0].arg, "name", ""))


def kind_of(call: Uop) -> str:
    """Return what a recorded call does: ``kernel``, ``copy``, or tinygrad's own name of something else."""
    op = call.src[0].op
    return "kernel" if op is Ops.SINK else "copy" if op is Ops.COPY else str(op)


def arguments(call: Uop) -> list[Uop]:
    """Return a call's buffers in the order of its parameters."""
    return [s for s in call.src[1:] if not s.is_bound_var]


def written_buffers(call: Uop) -> list[Uop]:
    """Return the BUFFERs that a recorded call writes."""
    places = access(call.src[0]).writes if kind_of(call) == "kernel" else (0,)
    return [view_of(arguments(call)[at]).buffer for at in places]


def bound_values(call: Uop, values: dict[str, int]) -> dict[str, int]:
    """Return the value that a recorded call has for each of its kernel's variables."""
    bound = {s.src[0].expr: s.src[1].src[1] for s in call.src[1:] if s.is_bound_var}
    found = {}
    for name in variable_names(call.src[0]):
        value = bound.get(name, values.get(name))
        if value is None:
            raise Invalid(f"variable {name!r} has no value")
        found[name] = int(value if isinstance(value, int) else value.arg)
    return found


@dataclass(frozen=True, slots=True)
class Access:
    """How a kernel uses its parameters: positions that are read, that are written, and the part of those written whole.

    `itemsizes` holds each parameter's element size in bytes.
    """

    reads: tuple[int, ...]
    writes: tuple[int, ...]
    whole: tuple[int, ...]
    itemsizes: tuple[int, ...]


def access(ast: Uop) -> Access:
    """Return how a kernel's description uses its parameters."""
    nodes = ast.toposort()
    params = {u.arg.slot: u for u in nodes if u.op is Ops.PARAM and u.addrspace is AddrSpace.GLOBAL}
    if sorted(params) != list(range(len(params))):
        raise Invalid(f"a kernel's parameters are numbered {sorted(params)}")
    reads: set[int] = set()
    writes: set[int] = set()
    whole: set[int] = set()
    for node in nodes:
        for position, source in enumerate(node.src):
            if source.op is Ops.PARAM and source.addrspace is AddrSpace.GLOBAL:
                if node.op is not Ops.INDEX or position != 0:  # in a form that we do not know: may be read
                    reads.add(source.arg.slot)
            elif source.op is Ops.INDEX and source.addrspace is AddrSpace.GLOBAL:
                slot = source.buf_uop.arg.slot
                if node.op is Ops.STORE and position == 0:
                    writes.add(slot)
                    if _stores_whole(node, params[slot]):
                        whole.add(slot)
                else:
                    reads.add(slot)
    sizes = tuple(int(params[slot].dtype.itemsize) for slot in sorted(params))
    return Access(tuple(sorted(reads)), tuple(sorted(writes)), tuple(sorted(whole)), sizes)


def _stores_whole(store: Uop, param: Uop) -> bool:
    """Whether a STORE under its loops writes each element of `param`."""
    if len(store.src) != 2 or any(u.is_invalid for u in store.src[0].toposort()):
        return False
    if any(loop.src[0].op is not Ops.CONST for loop in store.ranges):
        return False  # a loop whose length varies may be shorter
    count = 1
    for loop in store.ranges:
        count *= int(loop.vmax) + 1
    return count >= int(param.max_numel())


def estimates(program: Uop) -> tuple[int, int]:
    """Return the operations and bytes of distinct memory of a compiled kernel's launch, at the variables' largest."""
    found = program.src[0].arg.estimates
    return _largest(found.ops), _largest(found.mem)


_WEIGHTS = {Ops.EXP2: 16, Ops.LOG2: 16, Ops.SIN: 24, Ops.SQRT: 2}


def rough_estimates(ast: Uop) -> tuple[int, int]:
    """Return about what `estimates` will say, from a kernel's description, before it is compiled."""
    ops = mem = 0
    for node in ast.toposort():
        if node.op is Ops.PARAM and node.addrspace is AddrSpace.GLOBAL:
            mem += int(node.max_numel()) * int(node.dtype.itemsize)
        elif (node.op in GroupOp.ALU or node.op is Ops.REDUCE) and node.dtype not in dtypes.weaks:
            loops = {**node.ranges, **{r: None for r in node.src[1:] if node.op is Ops.REDUCE and r.op is Ops.RANGE}}
            count = _WEIGHTS.get(node.op, 1)
            for loop in loops:
                count *= int(loop.vmax) + 1
            ops += count
    return ops, mem


def _largest(value: Any) -> int:
    return int(value.vmax) if isinstance(value, UOp) else int(value)
