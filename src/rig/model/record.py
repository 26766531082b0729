"""Values with named fields that never change, and their form in JSON.

They do what msgspec's structs do, for the kinds that a process meets on its way to a first result: importing msgspec
costs it more than all else together.
"""

from __future__ import annotations

import sys

from rig.errors import FormatError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, ClassVar, Self, TypeVar, dataclass_transform

    _R = TypeVar("_R", bound="Record")
else:

    def dataclass_transform(**_: object) -> object:
        """Leave the class as it is: the mark is for type checkers."""
        return lambda kind: kind


__all__ = ["Record", "of_json"]


@dataclass_transform(frozen_default=True)
class Record:
    """A frozen value with the fields that a class names, with annotations and defaults as a dataclass has them.

    JSON holds a record as an object that leaves out fields which hold their default, except those in `always`. Fields
    may be strings, whole numbers, records, tuples of these, and unions of kinds that JSON tells apart.
    """

    _names: ClassVar[tuple[str, ...]] = ()
    _defaults: ClassVar[Mapping[str, Any]] = {}
    _always: ClassVar[tuple[str, ...]] = ()
    _kinds: ClassVar[Mapping[str, Any] | None] = None

    def __init_subclass__(cls, *, always: tuple[str, ...] = ()) -> None:
        """Note the fields of the class."""
        cls._names = tuple(cls.__annotations__)
        cls._defaults = {name: cls.__dict__[name] for name in cls._names if name in cls.__dict__}
        cls._always = always

    def __init__(self, *args: Any, **named: Any) -> None:
        """Take the fields in order or by name; TypeError for one too many, unknown, given twice or missing."""
        kind = type(self)
        fields = {**kind._defaults, **dict(zip(kind._names, args, strict=False)), **named}
        if fields.keys() != {*kind._names} or len(args) > len(fields) or named.keys() & {*kind._names[: len(args)]}:
            raise TypeError(f"{kind.__name__} takes {', '.join(kind._names)}; {len(args)} and {[*named]} were given")
        self.__dict__.update(fields)

    def __setattr__(self, name: str, value: object) -> None:
        """Refuse: a record never changes."""
        raise AttributeError(f"a {type(self).__name__} never changes; make another with `replace`")

    def __delattr__(self, name: str) -> None:
        """Refuse: a record never changes."""
        self.__setattr__(name, None)

    def __eq__(self, other: object) -> bool:
        """Compare kind and fields."""
        return self.__dict__ == other.__dict__ if type(other) is type(self) else NotImplemented

    def __hash__(self) -> int:
        """Hash kind and fields."""
        return hash((type(self), *[self.__dict__[name] for name in self._names]))

    def __repr__(self) -> str:
        """Show kind and fields."""
        return f"{type(self).__name__}({', '.join(f'{name}={self.__dict__[name]!r}' for name in self._names)})"

    def replace(self, **changes: Any) -> Self:
        """Return the same with other values in some fields."""
        return type(self)(**{**self.__dict__, **changes})

    def to_json(self) -> dict[str, Any]:
        """Return what JSON holds of it."""
        kind = type(self)
        return {
            name: _plain(self.__dict__[name])
            for name in kind._names
            if name in kind._always or name not in kind._defaults or self.__dict__[name] != kind._defaults[name]
        }


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_json()
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def of_json(kind: type[_R], value: Any, path: str = "") -> _R:
    """Return the record that a value of JSON (see `rig._core.read_json`) stands for; `path` is where the value is.

    Raises FormatError, with the field, for one that is missing or unknown, and for a value that is not of its field's
    kind.
    """
    if type(value) is not dict:
        raise FormatError(f"{_shown(value)}, expected an object", path)
    if kind._kinds is None:
        home = vars(sys.modules[kind.__module__])
        kind._kinds = {name: eval(text, home) for name, text in kind.__annotations__.items()}
    fields = dict(kind._defaults)
    for name, item in value.items():
        if name not in kind._kinds:
            raise FormatError(f"there is no field {name!r}; the fields are {', '.join(kind._names)}", path)
        fields[name] = _value(kind._kinds[name], item, f"{path}.{name}" if path else name)
    if len(fields) != len(kind._names):
        missing = next(name for name in kind._names if name not in fields)
        raise FormatError(f"the field {missing!r} is missing", path)
    found = kind.__new__(kind)
    found.__dict__.update(fields)
    return found


def _value(kind: Any, value: Any, path: str) -> Any:
    if kind is int or kind is str:
        if type(value) is kind:
            return value
    elif type(kind) is type:
        return of_json(kind, value, path)
    elif type(kind) is _UNION:
        for one in kind.__args__:
            if type(value) is _OF_JSON.get(getattr(one, "__origin__", one), dict):
                return None if value is None else _value(one, value, path)
    elif type(value) is list:
        kinds = kind.__args__
        if kinds[-1] is ...:
            return tuple([_value(kinds[0], item, f"{path}[{i}]") for i, item in enumerate(value)])
        if len(value) == len(kinds):
            pairs = enumerate(zip(kinds, value, strict=True))
            return tuple([_value(one, item, f"{path}[{i}]") for i, (one, item) in pairs])
    raise FormatError(f"{_shown(value)}, expected {_NAMES.get(kind) or kind}", path)


_UNION: Any = type(int | str)
_OF_JSON = {int: int, str: str, tuple: list, type(None): type(None)}
_NAMES = {int: "a whole number", str: "a string"}


def _shown(value: object) -> str:
    text = repr(value)
    return f"it is {text if len(text) <= 40 else text[:37] + '...'}"
