"""Trace a tensor function into a `Schedule`: nothing of it runs, and no device of tinygrad is opened."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tinygrad import Tensor

from rig.errors import Invalid
from tolk_engine.frontend import adapter
from tolk_engine.frontend.adapter import Recorder, Uop
from tolk_engine.frontend.build import Labels, Port, build
from tolk_engine.frontend.evaluate import evaluate
from tolk_engine.frontend.fold import fold
from tolk_engine.schedule import Schedule

__all__ = ["Spec", "capture", "read_only", "trace"]


@dataclass(frozen=True, slots=True)
class Spec:
    """What a function takes: the shape of a tensor in elements, its dtype (a NumPy-like name), its name and device.

    Without a `name` the function's parameter names it. The device is a name that linking maps to a device.
    """

    shape: tuple[int, ...]
    dtype: str = "float32"
    name: str | None = None
    device: str = "CPU"

    def __post_init__(self) -> None:
        label = f"input {self.name!r}" if self.name else "an input"
        shape = (self.shape,) if isinstance(self.shape, int) else tuple(self.shape)
        for axis, n in enumerate(shape):
            if isinstance(n, bool) or not isinstance(n, int) or n < 0:
                raise Invalid(f"{label}: axis {axis} of the shape is {n!r}, expected a whole number from 0")
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "dtype", _dtype(self.dtype))
        object.__setattr__(self, "device", self.device.upper())


def _dtype(given: Any) -> str:
    """Return the name of a dtype that is given as a name, a NumPy dtype or type, or tinygrad's own."""
    if isinstance(given, str):
        return adapter.dtype_name(adapter.dtype_of(given))
    name = getattr(given, "__name__", None) or getattr(given, "name", None)
    if isinstance(given, type) and given in (bool, float, int):
        raise Invalid(f"dtype {given.__name__} has no width: name one, such as 'float32'")
    if type(given).__module__.startswith("tinygrad"):
        return adapter.dtype_name(given)
    return adapter.dtype_name(adapter.dtype_of(str(name)))


def capture(fn: Callable[..., Any], /, *inputs: Spec | Tensor, **named: Spec | Tensor) -> Schedule:
    """Return the schedule of `fn`, called with one tensor for each input.

    A Tensor given as an input stands for its shape, dtype and device; its content is not used. Inputs are named by
    their Spec, else by `fn`'s parameters; outputs ``out``, or ``out0``... for several, or by the keys of a dict or the
    fields of a named tuple. Tensors that `fn` takes from elsewhere become constants, each once. One of them that `fn`
    assigns to in place is state: it starts as it is now, and what a run leaves in it the next run finds. So do
    tinygrad's random counters, so that each run draws anew; a tensor made inside `fn` is made anew by each run.

    Nothing is computed but constants, and every tensor is afterwards what it was before. Raises `Invalid` for inputs
    that `fn` does not take, a result that is no tensor, a value asked for (``item``, ``tolist``) that depends on an
    input, and a tensor that holds nothing.
    """
    specs = _bind(fn, inputs, named)
    positional = [s for key, s in specs if key is None]
    keywords = {key: s for key, s in specs if key is not None}

    def call(placeholders: Sequence[Any]) -> dict[str, Any]:
        keyed = dict(zip(keywords, placeholders[len(positional) :], strict=True))
        return _named_results(fn(*placeholders[: len(positional)], **keyed))

    name = getattr(fn, "__name__", None) or type(fn).__name__
    return trace(name, [*positional, *keywords.values()], call, owners=_owners(fn), again=True)


def _bind(fn: Callable[..., Any], inputs: Sequence[Any], named: Mapping[str, Any]) -> list[tuple[str | None, Spec]]:
    """Return a named Spec for each input, with its keyword where it is given by one."""
    if not callable(fn):
        raise Invalid(f"expected a function, found {type(fn).__name__}")
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):
        labels = [f"in{i}" for i in range(len(inputs))]
    else:
        try:
            signature.bind(*inputs, **named)
        except TypeError as e:
            raise Invalid(f"the function's parameters are {signature}: {e}") from None
        labels = _parameter_names(signature, len(inputs))
    specs: list[tuple[str | None, Spec]] = []
    for i, given in enumerate(inputs):
        specs.append((None, _spec(given, labels[i], f"input {i} ({labels[i]!r})")))
    for key, given in named.items():
        specs.append((key, _spec(given, key, f"input {key!r}")))
    seen: set[str] = set()
    for _, spec in specs:
        if spec.name in seen:
            raise Invalid(f"two inputs are named {spec.name!r}")
        seen.add(str(spec.name))
    return specs


def _parameter_names(signature: inspect.Signature, count: int) -> list[str]:
    labels: list[str] = []
    for parameter in signature.parameters.values():
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            labels += [f"{parameter.name}{i}" for i in range(count - len(labels))]
        elif parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
            labels.append(parameter.name)
    return labels[:count]


def _spec(given: Any, name: str, label: str) -> Spec:
    if isinstance(given, Spec):
        return given if given.name else replace(given, name=name)
    if not isinstance(given, Tensor):
        raise Invalid(
            f"{label} is {type(given).__name__}, expected a Spec or a Tensor (bind other values with functools.partial)"
        )
    device = given.device
    if isinstance(device, tuple):
        raise Invalid(f"{label} lies on several devices {device}, expected one")
    if device is None or device.split(":")[0] in adapter.HOST_DEVICES:
        device = "CPU"
    return Spec(tuple(given.shape), given.dtype, name, device)


def _named_results(result: Any) -> dict[str, Any]:
    """Return the function's results by name."""
    found: dict[str, Any]
    if isinstance(result, Tensor):
        found = {"out": result}
    elif isinstance(result, Mapping):
        found = {str(k): v for k, v in result.items()}
    elif isinstance(result, tuple) and hasattr(result, "_fields"):
        found = dict(zip(result._fields, result, strict=True))
    elif isinstance(result, list | tuple):
        found = {f"out{i}": v for i, v in enumerate(result)}
    else:
        raise Invalid(
            f"the function returned {type(result).__name__}, expected a Tensor, or a tuple, list or dict of them"
        )
    if not found:
        raise Invalid("the function returned no tensor")
    for name, value in found.items():
        if not isinstance(value, Tensor):
            raise Invalid(f"output {name!r} is {type(value).__name__}, expected a Tensor")
    return found


def _owners(fn: Callable[..., Any]) -> list[tuple[str, Any]]:
    """Return where the function may take its weights from, each with the start of their names."""
    from functools import partial

    found: list[tuple[str, Any]] = []
    while isinstance(fn, partial):
        fn = fn.func
    if getattr(fn, "__self__", None) is not None:
        found.append(("", fn.__self__))  # type: ignore[attr-defined]
    elif not inspect.isfunction(fn):
        found.append(("", fn))
    closure = getattr(fn, "__closure__", None) or ()
    code = getattr(fn, "__code__", None)
    for label, cell in zip(code.co_freevars if code else (), closure, strict=False):
        try:
            found.append((label, cell.cell_contents))
        except ValueError:  # a cell that is not filled yet
            continue
    known = getattr(fn, "__globals__", {})
    found += [(label, known[label]) for label in (code.co_names if code else ()) if label in known]
    return found


class _Trace:
    """One trace: the inputs' placeholders, what was recorded, and the constants that were asked for."""

    def __init__(self, name: str, specs: Sequence[Spec]) -> None:
        self.name = name
        self.recorder = Recorder()
        self.specs = specs
        self.device = specs[0].device if specs else "CPU"
        self.names: Labels = {}
        self.values: dict[tuple[Uop, int], bytes] = {}
        self.before: dict[int, Uop] = {}
        self.roots: set[Uop] = set()
        self.held: list[Uop] = []

    def begin(self) -> list[Any]:
        """Make the placeholders; what is older than they are was there before."""
        self.placeholders = [adapter.new_placeholder(s.shape, s.dtype, s.device) for s in self.specs]
        marker = adapter.new_placeholder((1,), "uint8", self.device)
        self.first = adapter.age(adapter.view_of(marker.uop).buffer) - len(self.specs)
        self.inputs = [self.port(str(s.name), t) for s, t in zip(self.specs, self.placeholders, strict=True)]
        return self.placeholders

    def remember(self, before: Sequence[tuple[Any, Uop]]) -> None:
        """Take note of the tensors that were there before the function is called."""
        self.before = {id(t): uop for t, uop in before}
        self.roots = {adapter.root(uop) for uop in self.before.values()}

    def close(self) -> None:
        """Let empty memory that was assigned to be empty again."""
        for buffer in self.held:
            adapter.release(buffer)

    def port(self, name: str, tensor: Any) -> Port:
        """Return a realized tensor as an input or output."""
        dtype = adapter.dtype_name(tensor.dtype)
        shape = tuple(tensor.shape)
        if not all(isinstance(n, int) for n in shape):
            raise Invalid(f"output {name!r} has the shape {shape}, which is not fixed")
        view = None if 0 in shape else adapter.view_of(tensor.uop)
        return Port(name, dtype, shape, self.device if view is None else view.buffer.device, view)

    def build(self, calls: Sequence[tuple[Uop, dict[str, int]]], outputs: Sequence[Port]) -> Schedule:
        """Return the schedule that computes `outputs`."""
        return build(self.name, calls, self.inputs, outputs, names=self.names)

    # What tinygrad asks for while it traces.

    def read(self, tensor: Any) -> bytes | memoryview:
        """Return a tensor's bytes; `Invalid` where they depend on an input."""
        if 0 in tensor.shape:
            return b""
        view = adapter.plain_view(tensor)
        if view is not None and view.buffer.device.split(":")[0] in adapter.HOST_DEVICES:
            held = adapter.held_bytes(view.buffer)
            if held is not None:
                return held[view.offset : view.offset + view.nbytes]
        key = (tensor.uop, len(self.recorder.calls))  # what was recorded since may have written it
        found = self.values.get(key)
        if found is None:
            found = self.values[key] = self.evaluate(tensor)
        return found

    def evaluate(self, tensor: Any) -> bytes:
        """Compute a constant."""
        device = tensor.device
        if isinstance(device, str) and device.split(":")[0] in adapter.HOST_DEVICES:
            tensor = tensor.to(self.device)
        inner = Recorder()
        with adapter.recording(inner, self):
            out = adapter.contiguous_output(tensor, self.device)
            adapter.realize([out])
        schedule = self.build([*self.recorder.calls, *inner.calls], [self.port("value", out)])
        return evaluate(self.without_inputs(schedule, "the function asks for a tensor's value, which"))[0]

    def without_inputs(self, schedule: Schedule, what: str) -> Schedule:
        """Return a schedule that reads no input as one that has none; `Invalid` where it reads one."""
        used = schedule.inputs_read()
        if used:
            names = ", ".join(repr(schedule.slots[i].name) for i in used)
            raise Invalid(f"{what} depends on input {names}: it is not known before a run")
        return schedule.drop_inputs()

    def write(self, tensor: Any) -> None:
        """Give what is assigned to in place memory that holds its value, if it was there before: it is state."""
        node = adapter.root(tensor.uop)
        if adapter.is_memory(node):
            self.write_buffer(node)
        elif not adapter.is_placeable(tensor):
            if self.before.get(id(tensor)) is tensor.uop:
                raise Invalid(
                    f"the function assigns in place to a constant of shape {tuple(tensor.shape)}, which has no memory:"
                    " make it with a device and a dtype, such as Tensor.zeros(4, device='CPU')"
                )
        elif node in self.roots:
            whole = adapter.as_tensor(node)
            device = whole.device
            if not isinstance(device, str) or device.split(":")[0] in adapter.HOST_DEVICES:
                device = self.device
            held = adapter.new_held(node, self.read(whole), device)
            origin = adapter.plain_view(whole)
            if origin is not None and (origin.buffer, origin.offset) in self.names:
                self.names[adapter.view_of(held).buffer, 0] = self.names[origin.buffer, origin.offset]
            adapter.replace_everywhere(node, held)

    def write_buffer(self, buffer: Uop) -> None:
        """Let a BUFFER from before the trace that holds nothing yet hold its first value; zeros if it has none."""
        if adapter.age(buffer) >= self.first or adapter.held_bytes(buffer) is not None:
            return
        value: bytes | memoryview = bytes(int(buffer.max_numel()) * int(buffer.dtype.itemsize))
        filling = [c for c, _ in self.recorder.calls if buffer in adapter.written_buffers(c)]
        if filling:  # what was still to be done on it was recorded: it is part of the first value, not of each run
            value = self.read(adapter.as_tensor(buffer))
            self.recorder.calls = [(c, v) for c, v in self.recorder.calls if c not in filling]
        adapter.hold(buffer, value)
        self.held.append(buffer)

    def keep(self, others: Sequence[Any]) -> None:
        """Fill what the function made and keeps (a table in an attribute), so that the next trace finds it.

        `others` are the tensors of which this is not to be asked.
        """
        known = {id(t) for t in others}
        written = {adapter.view_of(a).buffer for call, _ in self.recorder.calls for a in adapter.arguments(call)}
        inputs = {p.view.buffer for p in self.inputs if p.view is not None}
        for tensor in adapter.live_tensors():
            if id(tensor) in known:
                continue
            for buffer in adapter.buffers_of(tensor):
                if buffer not in written or buffer in inputs or adapter.held_bytes(buffer) is not None:
                    continue
                port = Port(
                    "kept",
                    adapter.dtype_name(buffer.dtype),
                    tuple(buffer.shape),
                    buffer.device,
                    adapter.view_of(buffer),
                )
                try:
                    schedule = self.without_inputs(self.build(self.recorder.calls, [port]), "a kept tensor")
                except Invalid:
                    continue  # the next trace says so if it reads it
                adapter.hold(buffer, evaluate(schedule)[0])


def trace(
    name: str,
    specs: Sequence[Spec],
    call: Callable[[Sequence[Any]], dict[str, Any]],
    *,
    owners: Sequence[tuple[str, Any]] = (),
    again: bool = False,
) -> Schedule:
    """Return the schedule of `call`, which takes a tensor for each Spec and returns tensors by name.

    `owners` are objects, each with the start of a name, whose tensors' names name the constants. With `again`, `call`
    may be traced another time: constants that it makes and keeps are computed now.
    """
    state = _Trace(name, specs)
    with adapter.pinned():
        for device in {s.device for s in specs} or {state.device}:
            adapter.rng_counters(device)
        placeholders = state.begin()
        with contextlib.closing(state), adapter.recording(state.recorder, state) as before:
            state.remember(before)
            state.names.update(_weight_names(owners))
            results = call(placeholders)
            outs = {key: adapter.contiguous_output(t, state.device) for key, t in results.items()}
            adapter.realize([t for t in outs.values() if 0 not in t.shape])
            adapter.realize([t for t, was in before if t.uop is not was and adapter.is_pending(t)])
            ports = [state.port(key, t) for key, t in outs.items()]
            state.names.update(_weight_names(owners))
            schedule = state.build(state.recorder.calls, ports)
            if again:
                state.keep([*(t for t, _ in before), *placeholders, *results.values(), *outs.values()])
        return fold(schedule)


def read_only(action: Callable[[], Any]) -> Any:
    """Return what `action` returns, with the values of constants that it asks for computed here."""
    state = _Trace("constants", [])
    with adapter.pinned():
        state.begin()
        with adapter.recording(state.recorder, state) as before:
            state.remember(before)
            return action()


def _weight_names(owners: Sequence[tuple[str, Any]]) -> Labels:
    """Return the names and shapes of the memory that the owners' tensors are."""
    from tinygrad.nn.state import get_state_dict

    found: Labels = {}
    for label, owner in owners:
        if inspect.ismodule(owner) or inspect.isclass(owner) or inspect.isroutine(owner):
            continue
        for name, tensor in get_state_dict(owner, prefix=label).items():
            view = adapter.plain_view(tensor)
            if view is not None:
                found.setdefault((view.buffer, view.offset), (name.strip("."), tuple(tensor.shape)))
    return found
