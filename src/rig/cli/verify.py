"""`rig verify`: whether a model's file is whole."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable

__all__ = ["register"]

_EPILOG = """\
Checked are every byte by its checksum, the layout, the program against its rules, its code's own tables, and that the
signature fits the program. Nothing is loaded and none of the file's code runs. A checksum is no signature: it finds
damage, not malice.

examples:
  rig verify model.rig
  rig verify model.rig && cp model.rig /srv/models/
"""


def register(parser: ArgumentParser) -> Callable[[Namespace], int | None]:
    """Check that a model's file is whole, without loading it."""
    parser.description = "Read every byte of a model's file and check it; print one line, or say where the damage is."
    parser.epilog = _EPILOG
    parser.add_argument("model", help="the model's file")
    return _run


def _run(space: Namespace) -> None:
    from rig.cli.devices import size
    from rig.device import host
    from rig.model.verify import verify
    from rig.program.arch import runs

    found = verify(space.model)
    arch = host().arch
    here = all(runs(arch, wanted) for wanted in found.devices)
    parts = (
        f"{size(found.nbytes)} in {found.members} members",
        _count(found.weights, "weight"),
        _count(found.memory, "memory", "memories"),
        f"{_count(found.images, 'image')} with {_count(found.functions, 'function')}",
        _count(found.parts, "part"),
        "the signature fits",
        f"for {', '.join(dict.fromkeys(found.devices)) or 'no device'}"
        f"{', which this machine runs' if here else f', which this machine ({arch}) does not run'}",
    )
    print(f"{space.model}: OK: {', '.join(parts)}")


def _count(number: int, noun: str, plural: str = "") -> str:
    return f"{number} {noun if number == 1 else plural or noun + 's'}"
