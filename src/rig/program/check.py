"""The check of a description against its rules and the devices that are to run it."""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from .description import Program
    from .facts import DeviceLike, Rails

__all__ = ["check"]


def check(p: Program, devices: Sequence[DeviceLike], rails: Rails | None = None) -> None:
    """Hold `p` against every rule that can be decided before anything is made; change nothing.

    `devices[i]` is what runs the code of the description's device i. `rails` gives this machine's end of a rail by its
    id, or None; without it there are no rails.

    Raises Invalid for the first rule that is broken, first rules of structure, then of order. The message starts with
    the place, such as ``steps[3].parts[1].refs[0] (launch of 'add')``.

    A check that passes guarantees, so that load and run need not look again:

    - there are as many devices as described, all of one machine, and each runs code of the arch that it is to run;
    - every index is inside its array, every size is 0 or more, every integer has 64 signed bits, every view lies inside
      its memory and every init inside its own; loops are at most 64 deep;
    - holes lie inside their bytes, do not overlap, and have a good shift; their values are of a kind that may stand
      there: in an image or in memory of one copy no leaf of two-copy memory, in an image entries of earlier ones only;
    - parameters are whole 32-bit words; refs lie inside them, apart; a ref's offset that is known lies in its slot;
    - every slot is named by a ref or a copy, and by no UNORDERED ref together with anything else;
    - a launch's image is of its step's device, and a fill's function an Entry of host code or a Ready;
    - offsets of copies and moves hold no leaf; one that reads no Int is exact, not negative, its end inside its slot
      where the slot's length is known, and the two ends share no byte;
    - a flag's byte lies in its slot where that is known, and each rail that is named has an end;
    - addresses and handles stand only where their memory is named, as the order of work by memory needs it.

    What load and run still find out: whether a device takes an image, has its functions, can borrow what it names and
    accepts a step; whether a hole's value meets set bits; and everything that an input or an Int decides.
    """
    from .rules import keep_rules  # with the description, which a process that only loads models does without

    keep_rules(p, devices, rails)
