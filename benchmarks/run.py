"""Measure works: ``python -m benchmarks.run kernels1000 --json``, or ``--all`` for the whole table."""

from __future__ import annotations

import argparse
import sys

from benchmarks.measure import HEAD
from benchmarks.works import ALL


def main(arguments: list[str] | None = None) -> int:
    """Measure what the command line names; return 1 where a goal is not reached and ``--strict`` was given."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("works", nargs="*", metavar="WORK", help=f"one of: {', '.join(ALL)}")
    parser.add_argument("--all", action="store_true", help="measure every work")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line instead of a table")
    parser.add_argument("--strict", action="store_true", help="end with 1 where a goal is not reached")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.works if name not in ALL]
    if unknown or not (given.works or given.all):
        parser.error(f"unknown work {unknown[0]}" if unknown else "name a work, or give --all")
    if not given.json:
        print(HEAD)
    reached = True
    for name in ALL if given.all else given.works:
        result = ALL[name]()
        reached &= result.met
        print(result.to_json() if given.json else result.to_row(), flush=True)
    return 0 if reached or not given.strict else 1


if __name__ == "__main__":
    sys.exit(main())
