"""Do once what every run would repeat: kernels whose inputs are all constant."""

from __future__ import annotations

from dataclasses import replace

from tolk_engine.frontend.evaluate import evaluate
from tolk_engine.schedule import Arg, Call, CopyCall, Ref, Schedule, Slot, SlotRef, Storage, StorageRef

__all__ = ["fold"]


def fold(schedule: Schedule) -> Schedule:
    """Return the schedule without the calls that compute the same from constants in each run.

    Such a call is evaluated now and its result kept as a constant, where the result is not larger than twice what it
    is computed from: a table that unpacks a packed weight, say, stays a call. Constants that only such calls read are
    dropped.
    """
    folded = _foldable(schedule)
    if not folded:
        return schedule
    results = list(dict.fromkeys(_written(schedule.calls[at]) for at in folded))
    values = _values(schedule, folded, results)
    storages = list(schedule.storages)
    for ref, value in zip(results, values, strict=True):
        if isinstance(ref, StorageRef):
            storages[ref.index] = replace(storages[ref.index], init=value)
    calls: list[Call | CopyCall] = []
    for at, call in enumerate(schedule.calls):
        if at not in folded:
            calls.append(call)
        elif isinstance(ref := _written(call), SlotRef):
            slot = schedule.slots[ref.index]
            storages.append(
                Storage(slot.nbytes, slot.device, 64, 0, values[results.index(ref)], "", slot.dtype, slot.shape)
            )
            calls.append(
                CopyCall(Arg(ref, 0, slot.nbytes), Arg(StorageRef(len(storages) - 1), 0, slot.nbytes), slot.nbytes)
            )
    return compact(replace(schedule, storages=tuple(storages), calls=tuple(calls)))


def _written(call: Call | CopyCall) -> Ref:
    return call.dst.node if isinstance(call, CopyCall) else call.args[call.writes[0]].node


def _foldable(schedule: Schedule) -> list[int]:
    """Return the calls that may be done now: one result, written once and whole, from constants alone."""
    writers: dict[Ref, int] = {}
    for call in schedule.calls:
        for ref in _targets(call):
            writers[ref] = writers.get(ref, 0) + 1
    known = {
        StorageRef(i) for i, s in enumerate(schedule.storages) if s.init is not None and StorageRef(i) not in writers
    }
    constant: set[Ref] = set(known)
    folded = []
    for at, call in enumerate(schedule.calls):
        if not isinstance(call, Call) or len(call.writes) != 1 or call.writes[0] in call.reads:
            continue
        target = call.args[call.writes[0]].node
        node = schedule.node(target)
        if writers[target] != 1 or (isinstance(node, Storage) and node.init is not None):
            continue
        sources = {call.args[r].node for r in call.reads}
        if sources and sources <= constant and node.nbytes <= 2 * sum(schedule.node(s).nbytes for s in sources):
            folded.append(at)
            constant.add(target)
    return folded


def _targets(call: Call | CopyCall) -> set[Ref]:
    return {call.dst.node} if isinstance(call, CopyCall) else {call.args[w].node for w in call.writes}


def _values(schedule: Schedule, folded: list[int], results: list[Ref]) -> list[bytes]:
    """Evaluate the folded calls; returns the bytes of each result."""
    slots: list[Slot] = []
    renamed: dict[Ref, Ref] = {}
    for ref in results:
        node = schedule.node(ref)
        renamed[ref] = SlotRef(len(slots))
        slots.append(Slot(f"result{len(slots)}", "uint8", (node.nbytes,), node.nbytes, node.device, 64))
    calls = []
    for at in folded:
        call = schedule.calls[at]
        assert isinstance(call, Call)
        args = tuple(replace(a, node=renamed.get(a.node, a.node)) for a in call.args)
        calls.append(replace(call, args=args))
    inner = Schedule(
        schedule.name, tuple(slots), schedule.storages, schedule.kernels, tuple(calls), (), tuple(range(len(slots)))
    )
    return evaluate(compact(inner))


def compact(schedule: Schedule) -> Schedule:
    """Return the schedule without the storage and kernels that no call names."""
    storages: dict[int, int] = {}
    kernels: dict[int, int] = {}

    def arg(old: Arg) -> Arg:
        if isinstance(old.node, SlotRef):
            return old
        return replace(old, node=StorageRef(storages.setdefault(old.node.index, len(storages))))

    calls: list[Call | CopyCall] = []
    for call in schedule.calls:
        if isinstance(call, CopyCall):
            calls.append(replace(call, dst=arg(call.dst), src=arg(call.src)))
        else:
            number = kernels.setdefault(call.kernel, len(kernels))
            calls.append(replace(call, kernel=number, args=tuple(arg(a) for a in call.args)))
    return replace(
        schedule, storages=tuple(schedule.storages[i] for i in storages), calls=tuple(calls),
        kernels=tuple(schedule.kernels[i] for i in kernels),
    )  # fmt: skip
