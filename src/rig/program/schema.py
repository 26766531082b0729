"""The types of a description, walked field by field: only to say where something is wrong, after something was."""

from __future__ import annotations

import enum
import types
from typing import Annotated, Any, Union, get_args, get_origin

import msgspec

from .description import Blob, Program
from .limits import I64_MAX, I64_MIN, MAX_LOOPS

__all__ = ["mistyped", "readable"]


def readable(indices: list[int], raw: Any) -> tuple[str, Any]:
    """Return the path that `indices` name in `raw`, an untyped decoding of a program, and the tag that it ends at.

    The path has the names of fields, such as ``steps[3].parts[1].params``. The tag is None unless the last index is
    that of a struct's tag, which the path leaves out.
    """
    kind: Any = Program
    path = ""
    for index in indices:
        kind = _chosen(_plain(kind), raw)
        raw = raw[index] if isinstance(raw, list) and index < len(raw) else None
        if _is_struct(kind):
            tagged = kind.__struct_config__.tag is not None
            if tagged and index == 0:
                return path or "program", raw
            fields = msgspec.structs.fields(kind)
            if index - tagged >= len(fields):
                break
            field = fields[index - tagged]
            path += f".{field.name}" if path else field.name
            kind = field.type
        elif get_origin(kind) is tuple:
            path += f"[{index}]"
            kind = _element(kind, index)
        else:  # inside a blob's [offset, length]
            break
    return path or "program", None


def mistyped(program: object) -> tuple[str, str] | None:
    """Return the path and the fault of the first value of `program` that is not of its field's type, or None."""
    return _fault(program, Program, "", 0)


def _fault(value: Any, kind: Any, path: str, loops: int) -> tuple[str, str] | None:
    kind = _plain(kind)
    if _is_union(kind):
        members = [_plain(member) for member in get_args(kind)]
        if value is None and type(None) in members:
            return None
        structs = [member for member in members if _is_struct(member)]
        if type(value) in structs:
            return _fault(value, type(value), path, loops)
        others = [member for member in members if member not in structs and member is not type(None)]
        if not others:
            return path, f"{_shown(value)}, not one of {', '.join(member.__name__ for member in structs)}"
        return _fault(value, others[0], path, loops)
    if _is_struct(kind):
        return _struct_fault(value, kind, path, loops)
    if get_origin(kind) is tuple:
        return _tuple_fault(value, kind, path, loops)
    return _leaf_fault(value, kind, path)


def _struct_fault(value: Any, kind: Any, path: str, loops: int) -> tuple[str, str] | None:
    if type(value) is not kind:
        return path or "program", f"{_shown(value)}, not {kind.__name__}"
    if kind.__name__ == "Loop":
        loops += 1
        if loops > MAX_LOOPS:
            return path, f"a loop inside {loops - 1} others; at most {MAX_LOOPS} loops may be inside each other"
    for field in msgspec.structs.fields(kind):
        inner = f"{path}.{field.name}" if path else field.name
        found = _fault(getattr(value, field.name), field.type, inner, loops)
        if found:
            return found
    return None


def _tuple_fault(value: Any, kind: Any, path: str, loops: int) -> tuple[str, str] | None:
    if type(value) is not tuple:
        return path, f"{_shown(value)}, not a tuple"
    arguments = get_args(kind)
    if arguments[-1] is not Ellipsis and len(arguments) != len(value):
        return path, f"a tuple of {len(value)}, not of {len(arguments)}"
    for index, item in enumerate(value):
        found = _fault(item, _element(kind, index), f"{path}[{index}]", loops)
        if found:
            return found
    return None


def _leaf_fault(value: Any, kind: Any, path: str) -> tuple[str, str] | None:
    if kind is Blob:
        return blob_fault(value, path)
    if kind is str:
        if not isinstance(value, str):
            return path, f"{_shown(value)}, not a string"
        try:
            value.encode()
        except UnicodeEncodeError:
            return path, f"{value!r} has lone surrogates, which are not text"
        return None
    if not isinstance(value, int) or isinstance(value, bool):
        return path, f"{_shown(value)}, not an integer"
    if isinstance(kind, type) and issubclass(kind, enum.IntEnum):
        allowed = [member.value for member in kind]
        return None if value in allowed else (path, f"{value} is none of {kind.__name__}'s {allowed}")
    if not I64_MIN <= value <= I64_MAX:
        return path, f"{value} is past a signed 64-bit integer"
    return None


def blob_fault(value: Any, path: str) -> tuple[str, str] | None:
    """Return `path` and why `value` cannot be a description's bytes, or None."""
    if isinstance(value, bytes):
        return None
    if not isinstance(value, memoryview):
        return path, f"{_shown(value)}, not bytes or a memoryview of bytes"
    if value.ndim != 1 or value.format != "B" or not value.c_contiguous:
        return path, f"a memoryview of shape {value.shape} and format {value.format!r}, not of contiguous bytes"
    return None


def _shown(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 40 else text[:37] + '...'}"


def _plain(kind: Any) -> Any:
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _is_union(kind: Any) -> bool:
    return get_origin(kind) in (Union, types.UnionType)


def _element(kind: Any, index: int) -> Any:
    arguments = get_args(kind)
    if arguments[-1] is Ellipsis:
        return arguments[0]
    return arguments[min(index, len(arguments) - 1)]


def _chosen(kind: Any, raw: Any) -> Any:
    """Return the member of a union that `raw` is an encoding of; any other type as it is."""
    if not _is_union(kind):
        return kind
    members = [_plain(member) for member in get_args(kind)]
    structs = [member for member in members if _is_struct(member)]
    tag = raw[0] if isinstance(raw, list) and raw else None
    for member in structs:
        if member.__struct_config__.tag == tag:
            return member
    rest = [member for member in members if member not in structs and member is not type(None)]
    return rest[0] if rest else structs[0]
