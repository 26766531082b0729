"""What is in a model's file, as plain data: what `rig inspect` shows, and writes with ``--json``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rig.errors import FormatError
from rig.model.artifact import FORMAT
from rig.program.description import Alloc, Loop, Submit
from rig.program.images import Look, look
from rig.program.parts import parts
from rig.program.uses import written

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rig.model.artifact import Artifact
    from rig.model.signature import Tensor
    from rig.program.description import Program, Step
    from rig.program.parts import Found

__all__ = ["Life", "kinds", "lives", "summary"]


def summary(artifact: Artifact) -> dict[str, Any]:
    """Return what an artifact holds, ready for JSON; the keys are described by ``rig inspect --help``."""
    p, signature = artifact.program, artifact.signature
    return {
        "file": {"name": artifact.source.label, "nbytes": artifact.source.size, "format": FORMAT},
        "signature": {
            "name": signature.name,
            "compiler": signature.compiler,
            "target": signature.target,
            "inputs": _tensors(signature.inputs, signature.largest().inputs),
            "outputs": _tensors(signature.outputs, signature.largest().outputs),
            "variables": [
                {"name": v.name, "min": v.min, "max": v.max, "default": v.default} for v in signature.variables
            ],
        },
        "devices": list(p.devices),
        "memory": _memory(artifact),
        "images": [_image(p, i, found) for i, found in enumerate(_looks(artifact))],
        "kernels": _kernels(artifact),
        "steps": _steps(p),
        "weights": [
            {
                "name": w.name, "dtype": w.dtype, "shape": list(w.shape),
                "nbytes": artifact.initial[w.memory].nbytes, "memory": w.memory,
            }
            for w in artifact.weights
        ],
    }  # fmt: skip


def _tensors(tensors: Sequence[Tensor], largest: Sequence[Tensor]) -> list[dict[str, Any]]:
    return [
        {"name": t.name, "dtype": t.dtype, "shape": list(t.shape), "nbytes": most.nbytes, "slot": t.slot}
        for t, most in zip(tensors, largest, strict=True)
    ]


def kinds(artifact: Artifact) -> list[str]:
    """Return what each memory of the program is: weight, constant, state, arena or rail.

    State has first bytes and is written by runs; an arena has none.
    """
    p = artifact.program
    changed = written(p)
    found = []
    for i, m in enumerate(p.memory):
        if not isinstance(m, Alloc):
            found.append("rail")
        elif i in artifact.initial:
            found.append("state" if i in changed else "weight")
        elif len(m.init.bytes) or m.init.holes:
            found.append("state" if i in changed else "constant")
        else:
            found.append("arena")
    return found


def _memory(artifact: Artifact) -> dict[str, int]:
    sums = {"weights": 0, "constants": 0, "state": 0, "arena": 0, "inputs": 0, "outputs": 0}
    names = {"weight": "weights", "constant": "constants", "state": "state", "arena": "arena"}
    for m, kind in zip(artifact.program.memory, kinds(artifact), strict=True):
        if isinstance(m, Alloc):
            sums[names[kind]] += m.nbytes * m.copies
    largest = artifact.signature.largest()
    sums["inputs"] = sum(t.nbytes for t in largest.inputs)
    sums["outputs"] = sum(t.nbytes for t in largest.outputs)
    return sums


def _looks(artifact: Artifact) -> list[Look]:
    found = []
    for i, image in enumerate(artifact.program.images):
        try:
            found.append(look(image.binary.bytes))
        except FormatError as error:
            raise artifact.source.error(str(error), f"program.rig: images[{i}]") from None
    return found


def _image(p: Program, index: int, found: Look) -> dict[str, Any]:
    image = p.images[index]
    return {
        "device": image.device, "kind": found.kind, "requires": found.requires,
        "nbytes": len(image.binary.bytes), "code": found.code, "functions": len(found.functions),
    }  # fmt: skip


def _kernels(artifact: Artifact) -> list[dict[str, Any]]:
    """List the functions that are launched, in the order of their first launch."""
    looks = _looks(artifact)
    notes = {k.symbol: k for k in artifact.notes.kernels} if artifact.notes else {}
    rows: dict[tuple[int, str], dict[str, Any]] = {}
    for part in parts(artifact.program):
        if part.kind not in ("launch", "fill") or part.image < 0:
            continue
        row = rows.get((part.image, part.name))
        if row is None:
            note = notes.get(part.name)
            row = rows[part.image, part.name] = {
                "symbol": part.name, "name": note.name if note else "", "image": part.image,
                "code": looks[part.image].functions.get(part.name), "launches": 0,
                "blocks": part.blocks, "iterations": part.iterations,
                "ops": note.ops if note else None, "mem": note.mem if note else None,
            }  # fmt: skip
        row["launches"] += 1
    return list(rows.values())


def _steps(p: Program) -> dict[str, int]:
    counts = {"submit": 0, "move": 0, "loop": 0, "launch": 0, "copy": 0, "fill": 0, "words": 0}

    def count(steps: Sequence[Step]) -> None:
        for step in steps:
            if isinstance(step, Loop):
                counts["loop"] += 1
                count(step.body)
            elif isinstance(step, Submit):
                counts["submit"] += 1

    count(p.steps)
    for part in parts(p):
        counts[part.kind] += 1
    return counts


class Life:
    """Bytes of memory `number` from `offset` on that hold one thing from part `first` to part `last`.

    `exact` is false where no notes say it and it is guessed from the addresses that parts are given.
    """

    __slots__ = ("exact", "first", "last", "nbytes", "number", "offset")

    def __init__(self, number: int, offset: int, nbytes: int, first: int, last: int, exact: bool) -> None:
        self.number = number
        self.offset = offset
        self.nbytes = nbytes
        self.first = first
        self.last = last
        self.exact = exact


def lives(artifact: Artifact, found: Sequence[Found]) -> list[Life]:
    """Return what lies where in the arenas, and from which part of `found` to which."""
    notes = artifact.notes
    if notes and notes.pieces:
        count = len(artifact.program.memory)
        return [
            Life(n.memory, n.offset, n.nbytes, n.first, n.last, True)
            for n in notes.pieces
            if 0 <= n.memory < count and 0 <= n.first <= n.last < len(found)
        ]
    arenas = {i for i, kind in enumerate(kinds(artifact)) if kind == "arena"}
    uses: dict[tuple[int, int], Life] = {}
    for at, part in enumerate(found):
        for touch in part.touches:
            if not touch.memory or touch.number not in arenas or touch.offset is None:
                continue
            life = uses.setdefault((touch.number, touch.offset), Life(touch.number, touch.offset, 0, at, at, False))
            life.last = at
            life.nbytes = max(life.nbytes, touch.nbytes or 0)
    after: dict[int, int] = {}
    for (number, offset), life in sorted(uses.items(), reverse=True):
        whole = artifact.program.memory[number]
        end = after.get(number, whole.nbytes if isinstance(whole, Alloc) else offset)
        life.nbytes = life.nbytes or end - offset
        after[number] = offset
    return list(uses.values())
