"""`rig compile`: from an ONNX file to a model's file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rig.errors import Invalid

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Sequence

__all__ = ["register"]

_EPILOG = """\
Where the file leaves an axis open, --shape gives the shape of its input, with -1 for axes that stay as they are, or
the length of a named axis. An axis that nobody gives is 1; the command says which these are. Code for an x86-64 level
runs on every processor of that level or above; ",tune=native" behind it also orders its instructions for this machine's
processor.

examples:
  rig compile model.onnx -o model.rig
  rig compile model.onnx -o model.rig --shape image=1x3x224x224 --target x86-64-v2
  rig compile model.onnx -o model.rig --shape batch=8 --shape tokens=-1x128
  rig compile model.onnx -o model.rig --target arm64+dotprod+fp16 --quiet
"""


def register(parser: ArgumentParser) -> Callable[[Namespace], int | None]:
    """Compile an ONNX file to a model that runs without a compiler."""
    parser.description = (
        "Compile an ONNX file to one file that `rig run` and `rig.open` run where there is no compiler."
    )
    parser.epilog = _EPILOG
    parser.add_argument("model", help="the ONNX file")
    parser.add_argument("--output", "-o", required=True, metavar="FILE", help="the file to write, such as model.rig")
    parser.add_argument(
        "--target",
        metavar="ARCH",
        help="what to compile for (x86-64-v3 on x86-64, arm64 on arm64, tuned for this machine)",
    )
    parser.add_argument(
        "--shape",
        action="append",
        default=[],
        type=_shape,
        metavar="NAME=1x2048",
        help="an input's shape, or the length of a named axis; once for each",
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="how many processes write kernels (1: this one)")
    parser.add_argument("--quiet", "-q", action="store_true", help="show no progress and print nothing")
    return _run


def _run(space: Namespace) -> int | None:
    import os
    import time

    from tolk_engine import progress
    from tolk_engine.compile import compile
    from tolk_engine.target import parse

    target = None if space.target is None else parse(space.target)
    shapes = _together(space.shape)
    notes: list[str] = []
    start = time.monotonic()
    try:
        from tolk_engine.frontend import from_onnx
    except ImportError as e:
        raise Invalid(f"compiling needs packages that do not import ({e}); pip install 'rig-runtime[onnx]'") from None
    with progress.bar(quiet=space.quiet) as bar:
        bar(0, 1, "reading the model")
        schedule = from_onnx(space.model, shapes=shapes or None, notes=notes.append)
        compiled = compile(schedule, target, jobs=space.jobs, progress=bar)
        compiled.save(space.output)
    if not space.quiet:
        for note in notes:
            print(f"{space.model}: {note} (see --shape)")
        size = os.path.getsize(space.output)  # noqa: PTH202
        print(
            f"{space.output}: {len(compiled.kernels)} kernels for {compiled.target.requires}, "
            f"{size / 1e6:.1f} MB, {time.monotonic() - start:.1f} s"
        )
    return None


def _shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Return the name and the extents in NAME=1x2048, -1 for one that is left open; nothing is a scalar."""
    from argparse import ArgumentTypeError

    name, found, extents = text.partition("=")
    parts = extents.lower().split("x") if extents else []
    if not name or not found or not all(part.isdecimal() or part == "-1" for part in parts):
        raise ArgumentTypeError(f"{text!r} is no shape; write NAME=1x2048")
    return name, tuple(map(int, parts))


def _together(shapes: Sequence[tuple[str, tuple[int, ...]]]) -> dict[str, tuple[int, ...]]:
    out: dict[str, tuple[int, ...]] = {}
    for name, shape in shapes:
        if name in out:
            raise Invalid(f"--shape {name} is given twice")
        out[name] = shape
    return out
