"""What the rules of a check share: the place of a fault, and facts of the program that were looked up once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NoReturn, Protocol, TypeAlias

from rig.errors import Invalid

from .description import Launch
from .limits import I64_MAX

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .description import Address, Area, Handle, Loop, Part, Program, Submit

__all__ = ["DeviceLike", "Facts", "Place", "RailEnd", "Rails", "fail", "UNKNOWN", "require_index", "root"]


class DeviceLike(Protocol):
    """What a check asks of a device."""

    @property
    def name(self) -> str:
        """What messages call it."""
        ...

    @property
    def arch(self) -> str:
        """What code it runs."""
        ...

    @property
    def kind(self) -> str:
        """Which kind of device it is, such as ``host``."""
        ...

    @property
    def host(self) -> DeviceLike:
        """The host of its machine."""
        ...


class RailEnd(Protocol):
    """What a check asks of this machine's end of a rail."""

    def nbytes(self, area: Area) -> int:
        """Return the bytes of an area: both copies of what is sent or received, or the counts."""
        ...


UNKNOWN: Final = I64_MAX
"""The length of a buffer that only a run knows: no description can name a byte past it."""

if TYPE_CHECKING:
    Rails: TypeAlias = Callable[[int], RailEnd | None]
    Place: TypeAlias = tuple["Place | None", str, int | None, Part | None]
else:
    Rails = Place = object


def root(name: str, index: int | None = None) -> Place:
    """Return the place of a field of the program, or of element `index` of it."""
    return (None, name, index, None)


def _shown(place: Place) -> str:
    """Return the path of a place, made only when a rule is broken: a check of thousands of parts builds no strings."""
    steps: list[str] = []
    about: Part | None = None
    at: Place | None = place
    while at is not None:
        parent, name, index, note = at
        steps.append(name if index is None else f"{name}[{index}]")
        about = about or note
        at = parent
    path = ".".join(reversed(steps))
    if about is None:
        return path
    return f"{path} (launch of {about.name!r})" if type(about) is Launch else f"{path} ({type(about).__name__.lower()})"


def fail(place: Place, message: str) -> NoReturn:
    """Raise Invalid about `place`."""
    raise Invalid(f"{_shown(place)}: {message}")


def require_index(index: int, count: int, what: str, place: Place) -> None:
    """Refuse an index of `what` outside an array of `count` elements."""
    if not 0 <= index < count:
        allowed = f"0 to {count - 1} are allowed" if count else "the program has none"
        fail(place, f"{what} is {index}, {allowed}")


class Facts:
    """A program with its devices, and what the rules found out about it on the way."""

    def __init__(self, program: Program, devices: Sequence[DeviceLike], rails: Rails | None) -> None:
        self.program = program
        self.devices = devices
        self.memory_sizes: list[int] = []
        self.two_copies: list[bool] = []
        self.image_devices: list[int] = []
        self.ints_size = 8 * program.ints
        # What the order rules look at, once every index is known to be good.
        self.submits: list[tuple[Place, Submit]] = []
        self.image_leaves: list[tuple[Place, Address | Handle]] = []
        self.init_leaves: list[tuple[Place, int, Address | Handle]] = []
        self.step_leaves: list[tuple[Place, Submit, Address | Handle]] = []
        self.trips_leaves: list[tuple[Place, Loop, Address | Handle]] = []
        self._rails = rails
        self._ends: dict[int, RailEnd | None] = {}

    def require_rail(self, rail: int, place: Place) -> RailEnd:
        """Return this machine's end of a rail; refuse one that the loader was not given."""
        if rail not in self._ends:
            self._ends[rail] = None if self._rails is None else self._rails(rail)
        end = self._ends[rail]
        if end is None:
            why = "no rails were given" if self._rails is None else "rails gives none"
            fail(place, f"rail {rail} has no end on this machine: {why}")
        return end

    def device_name(self, index: int) -> str:
        """Return how messages name a device."""
        return f"device {index} ({self.devices[index].name})"
