"""Trace a tensor function into a `Schedule`: nothing of it runs, and no device of tinygrad is opened."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tinygrad import Tensor

from rig.errors import Invalid
from rig.model.extents import bounds
from tolk_engine.frontend import adapter, kernels, symbolic
from tolk_engine.frontend.adapter import Recorder, Uop
from tolk_engine.frontend.build import Labels, Port, build
from tolk_engine.frontend.control import Frame
from tolk_engine.frontend.evaluate import evaluate
from tolk_engine.frontend.fold import fold
from tolk_engine.frontend.spec import Spec
from tolk_engine.schedule import Schedule, Var

__all__ = ["Trace", "capture", "read_only", "trace"]


def capture(fn: Callable[..., Any], /, *inputs: Spec | Tensor | Var, **named: Spec | Tensor | Var) -> Schedule:
    """Return the schedule of `fn`, called with one tensor for each input.

    A Tensor given as an input stands for its shape, dtype and device; its content is not used. A `Var` stands for a
    number that each run gives; `fn` gets a variable of tinygrad, as it does in the shape of an input that has one. A
    variable of tinygrad that `fn` binds itself keeps that value in runs that give none. Inputs are named by
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


def _bind(
    fn: Callable[..., Any], inputs: Sequence[Any], named: Mapping[str, Any]
) -> list[tuple[str | None, Spec | Var]]:
    """Return a named Spec or a Var for each input, with its keyword where it is given by one."""
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
    specs: list[tuple[str | None, Spec | Var]] = []
    for i, given in enumerate(inputs):
        specs.append((None, _spec(given, labels[i], f"input {i} ({labels[i]!r})")))
    for key, given in named.items():
        specs.append((key, _spec(given, key, f"input {key!r}")))
    seen: set[str] = set()
    for _, spec in specs:
        if isinstance(spec, Var):
            continue
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


def _spec(given: Any, name: str, label: str) -> Spec | Var:
    if isinstance(given, Var):
        return given
    if isinstance(given, Spec):
        return given if given.name else replace(given, name=name)
    if not isinstance(given, Tensor):
        raise Invalid(
            f"{label} is {type(given).__name__}, expected a Spec, a Tensor or a Var "
            "(bind other values with functools.partial)"
        )
    device = given.device
    if isinstance(device, tuple):
        raise Invalid(f"{label} lies on several devices {device}, expected one")
    if device is None or device.split(":")[0] in adapter.HOST_DEVICES:
        device = "CPU"
    return Spec(tuple(_extent(n, label, axis) for axis, n in enumerate(given.shape)), given.dtype, name, device)


def _extent(extent: Any, label: str, axis: int) -> int | Var:
    if isinstance(extent, int):
        return extent
    found = symbolic.extent_variable(extent)
    if found is None or found.multiple != 1:
        raise Invalid(f"{label}: axis {axis} is computed from variables; expected a number or one variable")
    return Var(found.name, found.min, found.max)


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


class _Again(Exception):
    """The function has to be traced again with a tensor as state from its start."""

    def __init__(self, tensor: Any) -> None:
        super().__init__()
        self.tensor = tensor


class Trace:
    """One trace: the inputs' placeholders, what was recorded, and the constants that were asked for."""

    def __init__(self, name: str, given: Sequence[Spec | Var]) -> None:
        self.name = name
        self.recorder = Recorder()
        self.given = given
        self.specs = [g for g in given if isinstance(g, Spec)]
        self.variables = _variables(given)
        self.device = self.specs[0].device if self.specs else "CPU"
        self.names: Labels = {}
        self.values: dict[tuple[Uop, int], bytes] = {}
        self.before: dict[int, Uop] = {}
        self.roots: set[Uop] = set()
        self.held: list[Uop] = []
        self.inputs: list[Port] = []
        self.frames: list[Frame] = []
        self.older: list[tuple[Any, Uop]] = []
        self.redirected: dict[Uop, Uop] = {}
        self.loops = 0
        self.placeholders: list[Any] = []

    def begin(self) -> list[Any]:
        """Make what stands for the inputs; what is older than that was there before. Returns it in their order."""
        # The value is not looked at; the largest is in every range that the function may slice by.
        numbers = {v.name: symbolic.new_variable(v.name, v.min, v.max, v.max) for v in self.variables}
        made = iter([
            adapter.new_placeholder([numbers[n.name] if isinstance(n, Var) else n for n in s.shape], s.dtype, s.device)
            for s in self.specs
        ])  # fmt: skip
        marker, _ = adapter.new_placeholder((1,), "uint8", self.device)
        self.first = adapter.age(adapter.view_of(marker.uop).buffer) - len(self.specs)
        out = []
        for given in self.given:
            if isinstance(given, Var):
                out.append(numbers[given.name])
                continue
            tensor, whole = next(made)
            port = self.port(str(given.name), whole)
            names = tuple(n.name if isinstance(n, Var) else n for n in given.shape)
            self.inputs.append(replace(port, shape=names))
            self.placeholders += [tensor, whole]
            out.append(tensor)
        return out

    def remember(self, before: Sequence[tuple[Any, Uop]]) -> None:
        """Take note of the tensors that were there before the function is called."""
        self.before = {id(t): uop for t, uop in before}
        self.older = list(before)
        self.roots = {adapter.root(uop) for uop in self.before.values()}

    def close(self) -> None:
        """Let empty memory that was assigned to be empty again."""
        for buffer in self.held:
            adapter.release(buffer)

    def port(self, name: str, tensor: Any) -> Port:
        """Return a realized tensor as an input or output."""
        dtype = adapter.dtype_name(tensor.dtype)
        view = None if symbolic.has_zero(tensor.shape) else adapter.view_of(tensor.uop)
        try:
            shape = tuple(symbolic.extent_text(n) for n in tensor.shape)
        except Invalid as e:
            raise Invalid(f"output {name!r}: {e}") from None
        most = adapter.itemsize(dtype)
        for n in tensor.shape:
            most *= n if isinstance(n, int) else int(n.vmax)
        return Port(name, dtype, shape, most, self.device if view is None else view.buffer.device, view)

    def build(self, calls: Sequence[adapter.Entry], outputs: Sequence[Port], *, state: bool = True) -> Schedule:
        """Return the schedule that computes `outputs`, and with `state` what it leaves for the next run."""
        given = (self.names, self.variables, self.redirected)
        return build(self.name, calls, self.inputs, outputs, *given, state=state)

    def pretend(self, buffer: Uop) -> None:
        """Let tinygrad take memory of a loop for filled until the trace ends."""
        adapter.pretend(buffer)
        self.held.append(buffer)

    def device_of(self, tensor: Any) -> str:
        """Return the device that computes a tensor; what only holds bytes, or is nowhere, is on the first input's."""
        device = tensor.device
        held = not isinstance(device, str) or device.split(":")[0] in adapter.HOST_DEVICES
        return self.device if held else str(device)

    def loop_name(self) -> str:
        """Return a name for another loop, which no variable has."""
        while True:
            self.loops += 1
            name = f"trip{self.loops}"
            if name not in {v.name for v in self.variables}:
                return name

    def most(self, text: str) -> int:
        """Return the largest value of an expression of the run's variables."""
        return bounds(text, {v.name: (v.min, v.max) for v in self.variables})[1]

    # What tinygrad asks for while it traces.

    def read(self, tensor: Any) -> bytes | memoryview:
        """Return a tensor's bytes; `Invalid` where they depend on an input."""
        if symbolic.varies(tensor.shape):
            raise Invalid("the function asks for a tensor's value whose shape varies: it is not known before a run")
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
            try:
                found = self.values[key] = self.evaluate(tensor)
            except Invalid as e:
                if not self.frames:
                    raise
                raise Invalid(f"the loop's body asks for a tensor's value (item, tolist): {e}") from None
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
        calls = [*self.recorder.calls, *inner.calls]
        schedule = self.build(calls, [self.port("value", out)], state=False)
        return evaluate(self.without_inputs(schedule, "the function asks for a tensor's value, which"))[0]

    def without_inputs(self, schedule: Schedule, what: str) -> Schedule:
        """Return a schedule that reads no input as one that has none; `Invalid` where it reads one."""
        used = schedule.inputs_read()
        if used:
            names = ", ".join(repr(schedule.slots[i].name) for i in used)
            raise Invalid(f"{what} depends on input {names}: it is not known before a run")
        if varying := schedule.variables_read():
            raise Invalid(f"{what} depends on variable {varying[0]!r}: it is not known before a run")
        return schedule.drop_inputs()

    def write(self, tensor: Any) -> None:
        """Give what is assigned to in place memory that holds its value, if it was there before: it is state."""
        if self.frames:
            self.frames[-1].check_write(tensor)
        node = adapter.root(tensor.uop)
        if adapter.is_memory(node):
            self.write_buffer(node)
        elif not adapter.is_placeable(tensor):
            if self.before.get(id(tensor)) is tensor.uop:
                raise Invalid(
                    f"the function assigns in place to a constant of shape {tuple(tensor.shape)}, which has no memory:"
                    " make it with a device and a dtype, such as Tensor.zeros(4, device='CPU')"
                )
        elif node in self.roots or any(t.uop is not was and adapter.root(t.uop) is node for t, was in self.older):
            self.write_constant(tensor, node)

    def write_constant(self, tensor: Any, node: Uop) -> None:
        """Give a constant from before the trace memory that holds it, which what was recorded before reads too."""
        whole = adapter.as_tensor(node)
        origin = adapter.plain_view(whole)
        if origin is None and self.recorder.calls:  # what was recorded may have computed it anew
            raise _Again(next((t for t, _ in self.older if adapter.root(t.uop) is node), tensor))
        held = adapter.new_held(node, self.read(whole), self.device_of(whole))
        if origin is not None:
            place = adapter.view_of(held)
            if (origin.buffer, origin.offset) in self.names:
                self.names[place.buffer, 0] = self.names[origin.buffer, origin.offset]
            for call, _ in adapter.flat(self.recorder.calls):
                if kernels.kind_of(call) == "copy":  # of it, or into what it is a copy of
                    ends = [adapter.view_of(end) for end in kernels.arguments(call)]
                    if any(
                        (v.buffer, v.offset, v.nbytes) == (origin.buffer, origin.offset, place.nbytes) for v in ends
                    ):
                        self.redirected[call] = place.buffer
        adapter.replace_everywhere(node, held)

    def write_buffer(self, buffer: Uop) -> None:
        """Let a BUFFER from before the trace that holds nothing yet hold its first value; zeros if it has none."""
        made_here = adapter.age(buffer) >= self.first and not self._was_there(buffer)
        if made_here or adapter.held_bytes(buffer) is not None or any(buffer is held for held in self.held):
            return
        value: bytes | memoryview = bytes(int(buffer.max_numel()) * int(buffer.dtype.itemsize))
        filling = [c for c, _ in adapter.flat(self.recorder.calls) if buffer in kernels.written_buffers(c)]
        if filling:  # what was still to be done on it was recorded: it is part of the first value, not of each run
            value = self.read(adapter.as_tensor(buffer))
            self.recorder.calls = [e for e in self.recorder.calls if not isinstance(e, tuple) or e[0] not in filling]
        adapter.hold(buffer, value)
        self.held.append(buffer)

    def _was_there(self, buffer: Uop) -> bool:
        """Whether a BUFFER is a tensor from before the trace, which had none until the trace read it."""
        return any(t.uop is not was and adapter.memory_of(t.uop) is buffer for t, was in self.older)

    def keep(self, others: Sequence[Any]) -> None:
        """Fill what the function made and keeps (a table in an attribute), so that the next trace finds it.

        `others` are the tensors of which this is not to be asked.
        """
        known = {id(t) for t in others}
        calls = [call for call, _ in adapter.flat(self.recorder.calls)]
        written = {adapter.view_of(a).buffer for call in calls for a in kernels.arguments(call)}
        inputs = {p.view.buffer for p in self.inputs if p.view is not None}
        for tensor in adapter.live_tensors():
            if id(tensor) in known:
                continue
            for buffer in adapter.buffers_of(tensor):
                if buffer not in written or buffer in inputs or adapter.held_bytes(buffer) is not None:
                    continue
                view = adapter.view_of(buffer)
                port = Port("kept", view.dtype, tuple(buffer.shape), view.nbytes, buffer.device, view)
                try:
                    schedule = self.without_inputs(
                        self.build(self.recorder.calls, [port], state=False), "a kept tensor"
                    )
                except Invalid:
                    continue  # the next trace says so if it reads it
                adapter.hold(buffer, evaluate(schedule)[0])


def trace(
    name: str,
    specs: Sequence[Spec | Var],
    call: Callable[[Sequence[Any]], dict[str, Any]],
    *,
    owners: Sequence[tuple[str, Any]] = (),
    again: bool = False,
) -> Schedule:
    """Return the schedule of `call`, which takes a tensor for each Spec, a number for each Var, and returns tensors.

    `owners` are objects, each with the start of a name, whose tensors' names name the constants. With `again`, `call`
    may be traced another time: constants that it makes and keeps are computed now.
    """
    early: list[Any] = []
    with adapter.pinned():
        while True:
            try:
                return fold(_traced(Trace(name, specs), call, owners, again, early))
            except _Again as e:
                if any(t is e.tensor for t in early):
                    raise Invalid(f"a tensor of shape {tuple(e.tensor.shape)} cannot be assigned to here") from None
                early.append(e.tensor)


def _traced(
    state: Trace,
    call: Callable[[Sequence[Any]], dict[str, Any]],
    owners: Sequence[tuple[str, Any]],
    again: bool,
    early: Sequence[Any],
) -> Schedule:
    """Trace once; the tensors `early` are state from the start."""
    for device in {s.device for s in state.specs} or {state.device}:
        adapter.rng_counters(device)
    arguments = state.begin()
    with contextlib.closing(state), adapter.recording(state.recorder, state) as before:
        state.remember(before)
        state.names.update(_weight_names(owners))
        for tensor in early:
            state.write(tensor)
        results = call(arguments)
        outs = _outputs(results, state.device)
        adapter.realize([t for t in outs.values() if not symbolic.has_zero(t.shape)])
        adapter.realize([t for t, was in before if t.uop is not was and adapter.is_pending(t)])
        ports = [state.port(key, t) for key, t in outs.items()]
        state.names.update(_weight_names(owners))
        schedule = state.build(state.recorder.calls, ports)
        if again:
            state.keep([*(t for t, _ in before), *state.placeholders, *results.values(), *outs.values()])
    return schedule


def _outputs(results: Mapping[str, Any], device: str) -> dict[str, Any]:
    """Return the results as tensors that a realize leaves as consecutive bytes of one buffer."""
    outs: dict[str, Any] = {}
    seen: set[Uop] = set()
    for name, tensor in results.items():
        out = adapter.contiguous_output(tensor, device)
        if symbolic.varies(tensor.shape):
            # Copies have one length: what varies is not copied from one output to another but computed for each.
            node = adapter.root(out.uop)
            if node in seen or adapter.is_memory(node):
                out = adapter.own_memory(tensor, str(tensor.device or device))
            seen.add(node)
        outs[name] = out
    return outs


def _variables(given: Sequence[Spec | Var]) -> tuple[Var, ...]:
    """Return the variables that the inputs are or have in their shapes, each once."""
    found: dict[str, Var] = {}
    tensors = {g.name for g in given if isinstance(g, Spec)}
    for g in given:
        for v in [g] if isinstance(g, Var) else [n for n in g.shape if isinstance(n, Var)]:
            if found.setdefault(v.name, v) != v:
                raise Invalid(f"variable {v.name!r} is given twice, as {found[v.name]} and as {v}")
            if v.name in tensors:
                raise Invalid(f"an input and a variable are named {v.name!r}")
    return tuple(found.values())


def read_only(action: Callable[[], Any]) -> Any:
    """Return what `action` returns, with the values of constants that it asks for computed here."""
    state = Trace("constants", [])
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
