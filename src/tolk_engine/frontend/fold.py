"""Do once what every run would repeat: calls whose inputs are all constant."""

from __future__ import annotations

from dataclasses import replace

from tolk_engine.frontend import adapter, kernels
from tolk_engine.frontend.evaluate import evaluate
from tolk_engine.schedule import (
    Arg,
    Call,
    CopyCall,
    Foreign,
    Loop,
    Ref,
    Schedule,
    Slot,
    SlotRef,
    Step,
    Storage,
    StorageRef,
    with_args,
)

__all__ = ["fold"]

_SMALL = 1 << 16
"""Results of so many bytes are kept whatever they are made of."""

_GENERATED = 1 << 10
"""What is made of no more bytes than this is generated, not unpacked."""

_COSTLY = 4
"""Operations for each byte of a generated result from which on it is kept: random numbers, say, but no fill."""


def fold(schedule: Schedule) -> Schedule:
    """Return the schedule without the calls that compute the same from constants in each run.

    Such calls are evaluated now and what others read of their results is kept as constants. A call whose result is
    larger than twice what it is computed from stays, as one that unpacks packed weights, unless the result is small
    or is generated at a cost. State is no constant.
    """
    folded = _foldable(schedule)
    return _Folding(schedule, folded).result() if folded else schedule


def _targets(call: Step) -> set[Ref]:
    if isinstance(call, Loop):
        return set().union(*map(_targets, call.calls))
    return {call.dst.node} if isinstance(call, CopyCall) else {call.args[w].node for w in call.writes}


def _sources(call: Step) -> set[Ref]:
    if isinstance(call, Loop):
        return set().union({call.flag.node} if call.flag else (), *map(_sources, call.calls))
    return {call.src.node} if isinstance(call, CopyCall) else {call.args[r].node for r in call.reads}


def _foldable(schedule: Schedule) -> set[int]:
    """Return the calls that may be done now; every call that writes what one of them writes is among them."""
    calls = schedule.calls
    folded = {at for at, call in enumerate(calls) if _worth_keeping(schedule, call)}
    while True:
        fixed = {ref for at, call in enumerate(calls) if at not in folded for ref in _targets(call)}
        written = {ref for call in calls for ref in _targets(call)}
        known: set[Ref] = set()
        known.update(StorageRef(i) for i, s in enumerate(schedule.storages) if s.init is not None)
        known -= written
        kept = set()
        for at in sorted(folded):
            targets = _targets(calls[at])
            fresh = all(isinstance(ref, SlotRef) or schedule.storages[ref.index].init is None for ref in targets)
            if _sources(calls[at]) <= known and fresh and not targets & fixed:
                kept.add(at)
                known |= targets
        if kept == folded:
            return folded
        folded = kept


def _worth_keeping(schedule: Schedule, call: Step) -> bool:
    if isinstance(call, CopyCall):
        return True
    if isinstance(call, Loop) or any(not isinstance(v, int) for v in call.values):  # what a run gives
        return False
    kernel = schedule.kernels[call.kernel]
    if isinstance(kernel, Foreign):  # not ours to run
        return False
    result = sum(schedule.node(ref).nbytes for ref in _targets(call))
    given = sum(schedule.node(ref).nbytes for ref in _sources(call))
    fills_output = not given and any(isinstance(ref, SlotRef) for ref in _targets(call))
    if result <= max(2 * given, 0 if fills_output else _SMALL):
        return True
    if given > _GENERATED:
        return False
    with adapter.pinned():
        return kernels.rough_estimates(kernel.ast)[0] >= _COSTLY * result


class _Folding:
    """Takes the calls `folded` out of a schedule."""

    def __init__(self, schedule: Schedule, folded: set[int]) -> None:
        self.schedule = schedule
        self.folded = folded
        self.made = {ref for at in folded for ref in _targets(schedule.calls[at])}
        self.storages = list(schedule.storages)
        self.wanted: dict[tuple[Ref, int], StorageRef] = {}
        self.version: dict[Ref, int] = {}

    def result(self) -> Schedule:
        """Return the schedule with the results as constants."""
        calls: list[Step] = []
        for at, call in enumerate(self.schedule.calls):
            if at in self.folded:
                self.version.update(dict.fromkeys(_targets(call), at))
            else:
                calls += with_args([call], self._moved)
        for index in self.schedule.outputs:
            if SlotRef(index) in self.made:
                nbytes = self.schedule.slots[index].nbytes
                whole = Arg(SlotRef(index), 0, nbytes)
                calls.append(CopyCall(whole, self._moved(whole), nbytes))
        for ref, value in zip(self.wanted.values(), self._values(), strict=True):
            self.storages[ref.index] = replace(self.storages[ref.index], init=value)
        return compact(replace(self.schedule, storages=tuple(self.storages), calls=tuple(calls)))

    def _moved(self, arg: Arg) -> Arg:
        """Return an argument that reads a folded result as one that reads the constant."""
        if arg.node not in self.made:
            return arg
        key = (arg.node, self.version[arg.node])
        if key not in self.wanted:
            node = self.schedule.node(arg.node)
            name = "" if isinstance(node, Slot) else node.name
            align = max(node.align, 64)
            self.wanted[key] = StorageRef(len(self.storages))
            shape = tuple(n for n in node.shape if isinstance(n, int))  # what varies is not folded
            self.storages.append(Storage(node.nbytes, node.device, align, 0, None, name, node.dtype, shape))
        return replace(arg, node=self.wanted[key])

    def _values(self) -> list[bytes]:
        """Run the folded calls; returns what was wanted, each as it was after the call that wrote it."""
        storages = list(self.schedule.storages)
        slots: list[Slot] = []
        moved: dict[Ref, Ref] = {}
        for ref in self.made:
            if isinstance(ref, SlotRef):
                moved[ref] = StorageRef(len(storages))
                storages.append(Storage(self.schedule.node(ref).nbytes, self.schedule.node(ref).device, 64))
        calls: list[Step] = []
        order = list(self.wanted)
        for at in sorted(self.folded):
            calls += with_args([self.schedule.calls[at]], lambda a: replace(a, node=moved.get(a.node, a.node)))
            for number, (ref, version) in enumerate(order):
                if version == at:
                    nbytes = self.schedule.node(ref).nbytes
                    source = Arg(moved.get(ref, ref), 0, nbytes)
                    calls.append(CopyCall(Arg(SlotRef(number), 0, nbytes), source, nbytes))
        for ref, _ in order:
            node = self.schedule.node(ref)
            slots.append(Slot(f"value{len(slots)}", "uint8", (node.nbytes,), node.nbytes, node.device, 64))
        inner = replace(
            self.schedule, slots=tuple(slots), storages=tuple(storages), calls=tuple(calls), inputs=(),
            outputs=tuple(range(len(slots))),
        )  # fmt: skip
        return evaluate(compact(inner))


def compact(schedule: Schedule) -> Schedule:
    """Return the schedule without the storage and kernels that no call names."""
    storages: dict[Ref, Ref] = {}
    kernels: dict[int, int] = {}

    def arg(a: Arg) -> Arg:
        if isinstance(a.node, SlotRef):
            return a
        return replace(a, node=storages.setdefault(a.node, StorageRef(len(storages))))

    def numbered(steps: tuple[Step, ...]) -> tuple[Step, ...]:
        out: list[Step] = []
        for step in steps:
            if isinstance(step, Loop):
                step = replace(step, calls=numbered(step.calls))
            elif isinstance(step, Call):
                step = replace(step, kernel=kernels.setdefault(step.kernel, len(kernels)))
            out.append(step)
        return tuple(out)

    calls = numbered(with_args(schedule.calls, arg))
    return replace(
        schedule, storages=tuple(schedule.storages[ref.index] for ref in storages), calls=calls,
        kernels=tuple(schedule.kernels[i] for i in kernels),
    )  # fmt: skip
