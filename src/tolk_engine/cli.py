"""`rig compile`: from an ONNX file to a model's file; `rig cache`: what was compiled before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rig.errors import Invalid
from tolk_engine.compiler import BACKENDS

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Sequence

__all__ = ["register", "register_cache"]

_EPILOG = """\
Where the file leaves an axis open, --shape gives the shape of its input, with -1 for axes that stay as they are, or
the length of a named axis. An axis that nobody gives is 1; the command says which these are. Code for an x86-64 level
runs on every processor of that level or above; ",tune=native" behind it also orders its instructions for this machine's
processor.

What was compiled before is found in a cache (see rig cache); the file is the same without it.

environment:
  RIG_COMPILER  what makes the code where --compiler does not say it
  RIG_CLANG     the clang to use, such as clang-19

examples:
  rig compile model.onnx -o model.rig
  rig compile model.onnx -o model.rig --shape image=1x3x224x224 --target x86-64-v2
  rig compile model.onnx -o model.rig --shape batch=8 --shape tokens=-1x128
  rig compile model.onnx -o model.rig --target arm64+dotprod+fp16 --quiet
  rig compile model.onnx -o model.rig --compiler clang
"""

_CACHE_EPILOG = """\
An entry is the text of one kernel, or the machine code of several. It is used again where everything that decides it
is the same: the kernel, the target, the versions of what writes and compiles it. Several processes may use one cache.

environment:
  RIG_CACHE_DIR   the folder, else $XDG_CACHE_HOME/rig, else ~/.cache/rig
  RIG_CACHE_SIZE  how much it may hold, such as 512M (1G); what was used longest ago goes first
  RIG_CACHE       0: keep nothing

examples:
  rig cache
  rig cache clear
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
    parser.add_argument("--compiler", choices=BACKENDS, help="what makes the code (RIG_COMPILER, else llvmlite)")
    parser.add_argument("--no-cache", action="store_true", help="compile everything anew and keep nothing")
    parser.add_argument("--quiet", "-q", action="store_true", help="show no progress and print nothing")
    return _run


def register_cache(parser: ArgumentParser) -> Callable[[Namespace], int | None]:
    """Show or clear what was compiled before."""
    parser.description = "Show where compiled kernels are kept and how much they take, or remove them."
    parser.epilog = _CACHE_EPILOG
    parser.add_argument("action", nargs="?", choices=("show", "clear"), default="show", help="what to do (show)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return _cache


def _cache(space: Namespace) -> int | None:
    from rig.cli.devices import size
    from tolk_engine.cache import Cache, place

    folder, reason, limit = place()
    if folder is None:
        if space.json:
            _print_json({"folder": None, "reason": reason, "entries": 0, "bytes": 0, "limit": limit})
        else:
            print(f"no cache: {reason}")
        return None
    cache = Cache(folder, limit)
    found = cache.clear() if space.action == "clear" else cache.usage()
    if space.json:
        counts = {"entries": found.entries, "texts": found.texts, "objects": found.objects, "bytes": found.nbytes}
        if space.action == "clear":
            counts = {f"removed_{name}": count for name, count in counts.items()}
        _print_json({"folder": str(folder), **counts, "limit": limit})
    elif space.action == "clear":
        print(f"{folder}: removed {found.entries} entries, {size(found.nbytes)}")
    else:
        kinds = f"{found.texts} texts of kernels, {found.objects} objects"
        print(f"{folder}: {found.entries} entries ({kinds}), {size(found.nbytes)} of {size(limit)}")
    return None


def _print_json(value: dict[str, object]) -> None:
    import json

    print(json.dumps(value, indent=2))


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
        with bar.during("reading the model"):
            schedule = from_onnx(space.model, shapes=shapes or None, notes=notes.append)
        compiled = compile(
            schedule, target, backend=space.compiler, jobs=space.jobs, progress=bar, cache=not space.no_cache
        )
        with bar.during(f"writing {space.output}"):
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
