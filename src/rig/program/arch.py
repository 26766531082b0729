"""Which code an architecture runs: the one rule by which devices are matched with programs."""

from __future__ import annotations

__all__ = ["runs", "runs_what"]

_X86 = "x86-64-v"


def runs(have: str, want: str) -> bool:
    """Tell whether a device of arch `have` runs code that is compiled for arch `want`.

    A device runs code of its own arch. One of an x86-64 level also runs code of each level below it, and an arm64 one
    code of each arm64 arch whose features are among its own.
    """
    if have == want:
        return True
    if have.startswith(_X86) and want.startswith(_X86):
        mine, asked = have[len(_X86) :], want[len(_X86) :]
        return len(mine) == len(asked) == 1 and "1" <= asked <= mine <= "4"
    mine_base, *mine_features = have.split("+")
    want_base, *want_features = want.split("+")
    return mine_base == want_base == "arm64" and set(want_features) <= set(mine_features)


def runs_what(have: str) -> str:
    """Say in words what code a device of arch `have` runs."""
    if have.startswith(_X86):
        return f"x86-64 levels up to {have}"
    if have.split("+")[0] == "arm64":
        return f"{have} and each arm64 arch with fewer of its features"
    return f"{have} only" if have else "no code"
