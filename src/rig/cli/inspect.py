"""`rig inspect`: what is in a model's file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rig.cli.devices import size

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Sequence

__all__ = ["register", "table"]

_FEW = 40

_EPILOG = """\
Of the file's weights only their header is read; `rig verify` checks them. Names and estimates of kernels are there
where the compiler left notes.

With --json, one object is printed:
  file       name, nbytes, format
  signature  name, compiler, target; inputs and outputs: each name, dtype, shape (an extent that varies is text),
             nbytes (at the most), slot (the program's input); variables: each name, min, max, default (or null)
  devices    the arch of each device that the program is for
  memory     bytes by kind: weights, constants, state, arena, inputs, outputs
  images     each device, kind, requires (an arch, or empty), nbytes, code (bytes), functions (how many)
  kernels    each symbol, name, image, code (bytes, or null), launches, blocks, iterations, ops and mem (estimates for
             one launch, or null); blocks and iterations are those of the first launch, null where a run decides them
  steps      counts: submit, move, loop, launch, copy, fill, words; a loop's body counts once
  weights    each name, dtype, shape, nbytes, memory (its index in the program)
Keys are added, never renamed.

examples:
  rig inspect model.rig
  rig inspect model.rig --all
  rig inspect model.rig --json
  rig inspect model.rig --svg model.svg
"""


def register(parser: ArgumentParser) -> Callable[[Namespace], int | None]:
    """Show what is in a model's file."""
    parser.description = "Show a model's signature, memory by kind, kernels, steps and weights, without loading it."
    parser.epilog = _EPILOG
    parser.add_argument("model", help="the model's file")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--all", "-a", action="store_true", help=f"list all kernels and weights, not the first {_FEW}")
    parser.add_argument(
        "--svg", metavar="FILE", help="also draw what lies where in memory during a run, and when, as an SVG picture"
    )
    return _run


def _run(space: Namespace) -> None:
    from rig.model.artifact import Artifact
    from rig.model.summary import summary

    with Artifact(space.model) as artifact:
        found = summary(artifact)
        if space.svg is not None:
            from rig.cli.picture import draw

            text = draw(artifact)
            with open(space.svg, "w", encoding="utf-8") as file:
                file.write(text)
    if space.json:
        import json

        print(json.dumps(found, indent=1))
        return
    print(*_lines(found, None if space.all else _FEW), sep="\n")


def _lines(found: dict[str, Any], few: int | None) -> list[str]:
    file, signature = found["file"], found["signature"]
    lines = [
        f"{file['name']}: {size(file['nbytes'])}, format {file['format']}",
        f"name      {signature['name'] or '-'}",
        f"target    {signature['target'] or '-'}",
        f"compiler  {signature['compiler'] or '-'}",
        f"devices   {', '.join(found['devices'])}",
    ]
    for kind in ("inputs", "outputs"):
        ports = [(t["name"], t["dtype"], _shape(t["shape"]), size(t["nbytes"])) for t in signature[kind]]
        lines += ["", f"{kind} ({len(ports)})", *table(ports, "llll")]
    numbers = [
        (v["name"], f"{v['min']} to {v['max']}", "" if v["default"] is None else f"default {v['default']}")
        for v in signature["variables"]
    ]
    if numbers:
        lines += ["", f"variables ({len(numbers)})", *table(numbers, "lll")]
    used = [(kind, size(n)) for kind, n in found["memory"].items() if n]
    lines += ["", "memory", *table(used, "lr")]
    for i, one in enumerate(found["images"]):
        needs = f" for {one['requires']}" if one["requires"] else ""
        lines += ["", f"image {i}: {one['kind']}{needs}, {one['functions']} functions, {size(one['code'])} of code"]
    counts = ", ".join(f"{n} {name}" for name, n in found["steps"].items() if n)
    lines += ["", f"steps     {counts or 'none'}"]
    lines += _kernels(found["kernels"], few)
    rows = [
        (w["name"], w["dtype"], _shape(w["shape"]), size(w["nbytes"]), f"memory {w['memory']}")
        for w in found["weights"][:few]
    ]
    if rows:
        lines += ["", f"weights ({len(found['weights'])})", *table(rows, "lllrl"), *_more(found["weights"], few)]
    return lines


def _kernels(kernels: Sequence[dict[str, Any]], few: int | None) -> list[str]:
    if not kernels:
        return []
    known = any(k["ops"] or k["mem"] for k in kernels)
    head = ("symbol", "name", "code", "launches", "blocks", "iterations", *(("Mop", "MB") if known else ()))
    rows: list[tuple[str, ...]] = [head]
    for k in kernels[:few]:
        estimates = (_mega(k["ops"]), _mega(k["mem"])) if known else ()
        rows.append((
            k["symbol"], k["name"] or "-", "-" if k["code"] is None else size(k["code"]),
            *(_count(k[key]) for key in ("launches", "blocks", "iterations")), *estimates,
        ))  # fmt: skip
    return ["", f"kernels ({len(kernels)})", *table(rows, "llrrrrrr"), *_more(kernels, few)]


def _more(rows: Sequence[Any], few: int | None) -> list[str]:
    left = len(rows) - few if few is not None else 0
    return [f"  ... and {left} more (--all shows them)"] if left > 0 else []


def table(rows: Sequence[Sequence[str]], sides: str) -> list[str]:
    """Align columns: l to the left, r to the right."""
    if not rows:
        return []
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    cells = [
        [text.ljust(w) if side == "l" else text.rjust(w) for text, w, side in zip(row, widths, sides, strict=False)]
        for row in rows
    ]
    return [f"  {'  '.join(row)}".rstrip() for row in cells]


def _shape(shape: Sequence[int | str]) -> str:
    return "x".join(str(n) if isinstance(n, int) or n.isidentifier() else f"({n})" for n in shape) or "scalar"


def _count(number: int | None) -> str:
    return "by run" if number is None else str(number)


def _mega(number: int | None) -> str:
    return "-" if number is None else f"{number / 1e6:.3f}"
