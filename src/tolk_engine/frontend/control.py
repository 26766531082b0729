"""Loops inside a captured function: its body is traced once and becomes a loop of the program.

The meaning is that of their namesakes in JAX. What is carried from trip to trip lies in memory of the loop's own, which
the initial values are copied into, so that no trip leaves them; what a trip computes is copied there at its end, unless
the body changed the carried tensor in place.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from tinygrad import Tensor

from rig.errors import Invalid
from tolk_engine.frontend import adapter, symbolic
from tolk_engine.frontend.adapter import Recorder, Uop

if TYPE_CHECKING:
    from tolk_engine.frontend.capture import Trace

__all__ = ["Frame", "fori_loop", "scan", "while_loop"]

_MOST = (1 << 62) - 1  # trips of a loop that only its flag ends


def fori_loop(
    lower: Any, upper: Any, body: Callable[[Any, Any], Any], init: Any, *, cond: Callable[[Any], Any] | None = None
) -> Any:
    """Return what is carried after ``for i in range(lower, upper): carried = body(i, carried)``, from `init`.

    `init` and what `body` returns are one tensor, or tuples, lists or dicts of them, of the same shapes and dtypes.
    `lower` and `upper` are whole numbers or variables, or computed from them; `i` is computed from a variable, with
    which tensors are sliced and numbers made. `body` is traced once. Tensors from outside are read by it and not
    assigned to; what it carries it may assign to in place. With `cond` the loop ends before the first trip for which
    ``cond(carried)``, a tensor of one element, is zero; see `while_loop`.

    Raises `Invalid`, naming the line of `body`, where the carried shapes or dtypes change, a value is read back
    (``item``, ``tolist``), or a tensor from outside is assigned to; and outside of a capture.
    """
    trace = _trace("fori_loop")
    count = upper - lower
    trips = symbolic.extent_text(count)
    most = count if isinstance(count, int) else int(count.vmax)
    carried = _Carried(trace, init, "init")
    if most > 0:
        flag = None if cond is None else _Carried(trace, _truth(cond(carried.tree())), "cond")
        with _loop(trace, trips, carried, body, flag) as (trip, frame):
            new = frame.call(body, _plus(lower, _index(trip, most)), carried.tree())
            carried.store(new, frame)
            if cond is not None and flag is not None:
                _again(cond, carried, flag, frame)
    return carried.tree()


def while_loop(cond: Callable[[Any], Any], body: Callable[[Any], Any], init: Any) -> Any:
    """Return what is carried after ``while cond(carried): carried = body(carried)``, from `init`.

    `cond` returns a tensor of one element, which is taken as true if it is not zero; it is traced twice: before the
    loop, and after the body. For the rest see `fori_loop`.
    """
    trace = _trace("while_loop")
    carried = _Carried(trace, init, "init")
    flag = _Carried(trace, _truth(cond(carried.tree())), "cond")
    with _loop(trace, _MOST, carried, body, flag) as (_, frame):
        new = frame.call(body, carried.tree())
        carried.store(new, frame)
        _again(cond, carried, flag, frame)
    return carried.tree()


def scan(f: Callable[[Any, Any], Any], init: Any, xs: Any, length: int | None = None) -> tuple[Any, Any]:
    """Return what is carried after ``for x in xs: carried, y = f(carried, x)``, from `init`, and the stacked `y`.

    `xs` is a tensor, or tuples, lists or dicts of them, each of whose first axis is gone through, or None with a
    `length`; `y` may be None. For the rest see `fori_loop`.
    """
    trace = _trace("scan")
    leaves = list(_leaves(xs, "xs"))
    lengths = {int(t.shape[0]) if t.shape else -1 for _, t in leaves} | ({length} if length is not None else set())
    if len(lengths) != 1 or -1 in lengths:
        raise Invalid(f"scan goes through first axes of lengths {sorted(lengths)}, expected one length")
    (count,) = lengths
    carried = _Carried(trace, init, "init")
    stacked: Any = None
    with _loop(trace, count, carried, f) as (trip, frame):
        at = _index(trip, max(count, 1))
        one = _rebuild(xs, [t[at : at + 1].reshape(t.shape[1:]) if count else _nothing(t) for _, t in leaves])
        result = frame.call(f, carried.tree(), one)
        if not isinstance(result, tuple) or len(result) != 2:
            wrong = Invalid(f"scan's function returns what is carried and a result, not {_describe(result)}")
            raise frame.located(wrong, f)
        new, y = result
        rows = []
        for _, t in _leaves(y, "y"):
            whole = adapter.new_placeholder((count, *t.shape), adapter.dtype_name(t.dtype), trace.device_of(t))[0]
            if count and 0 not in t.shape:
                row = adapter.own_memory(t, trace.device_of(t))
                target = whole[at : at + 1].reshape(t.shape)
                adapter.realize([row])
                whole.uop = whole.uop.after(target.uop.store(row.uop))
                adapter.realize([whole])
            rows.append(whole)
        stacked = _rebuild(y, rows)
        carried.store(new, frame)
    return carried.tree(), stacked


def _again(cond: Callable[[Any], Any], carried: _Carried, flag: _Carried, frame: Frame) -> None:
    """Let the next trip find whether there is to be one."""
    flag.store(frame.call(lambda tree: _truth(cond(tree)), carried.tree(), at=cond), frame)


def _nothing(t: Any) -> Any:
    """Return what stands for an element of an axis that has none."""
    return adapter.new_placeholder(tuple(t.shape[1:]), adapter.dtype_name(t.dtype), str(t.device))[0]


def _trace(what: str) -> Trace:
    from tolk_engine.frontend.capture import Trace

    found = adapter.current_hooks()
    if not isinstance(found, Trace):
        raise Invalid(f"{what} works inside a function that is captured (tolk_engine.capture)")
    return found


def _plus(lower: Any, index: Any) -> Any:
    return index if isinstance(lower, int) and lower == 0 else lower + index


def _index(trip: Uop, most: int) -> Any:
    return trip if most > 1 else 0


def _truth(value: Any) -> Any:
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise Invalid(f"cond returned {_describe(value)}, expected a tensor of one element")
    return (value.reshape(1) != 0).contiguous()


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} of shape {tuple(value.shape)}"
    return type(value).__name__


# Tensors in tuples, lists and dicts.


def _leaves(tree: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Give the tensors of a tree, each with its place; numbers become tensors. `Invalid` for anything else."""
    if isinstance(tree, Mapping):
        for key in tree:
            yield from _leaves(tree[key], f"{name}[{key!r}]")
    elif isinstance(tree, tuple | list):
        for i, one in enumerate(tree):
            yield from _leaves(one, f"{name}[{i}]")
    elif isinstance(tree, Tensor):
        yield name, tree
    elif isinstance(tree, bool | int | float):
        yield name, Tensor(tree, dtype=adapter.default_dtype(tree))
    elif tree is not None:
        raise Invalid(f"{name} is {type(tree).__name__}, expected a tensor or tuples, lists and dicts of them")


def _rebuild(tree: Any, tensors: list[Any]) -> Any:
    """Return a tree of `tree`'s form over other tensors, in order."""
    left = iter(tensors)

    def make(one: Any) -> Any:
        if isinstance(one, Mapping):
            return {key: make(value) for key, value in one.items()}
        if isinstance(one, tuple) and hasattr(one, "_fields"):
            return type(one)(*map(make, one))
        if isinstance(one, tuple | list):
            return type(one)(map(make, one))
        return None if one is None else next(left)

    return make(tree)


class _Carried:
    """Tensors that a loop carries, each over memory of its own that holds its first value."""

    def __init__(self, trace: Trace, init: Any, name: str) -> None:
        self._init = init
        self._names: list[str] = []
        self.tensors: list[Any] = []
        for label, tensor in _leaves(init, name):
            if symbolic.varies(tensor.shape):
                raise Invalid(f"{label} has the shape {tuple(tensor.shape)}: what a loop carries has a fixed shape")
            self._names.append(label)
            self.tensors.append(adapter.own_memory(tensor, trace.device_of(tensor)))
        adapter.realize([t for t in self.tensors if 0 not in t.shape])
        self._part(trace)
        self._memory = [t.uop for t in self.tensors]
        for buffer in self.buffers():
            trace.pretend(buffer)

    def _part(self, trace: Trace) -> None:
        """See to it that no tensor from outside lies in the loop's memory: a copy may be realized right into it."""
        mine = {id(t) for t in self.tensors}
        outside = {adapter.memory_of(t.uop) for t in adapter.live_tensors() if id(t) not in mine} - {None}
        shared = [i for i, t in enumerate(self.tensors) if adapter.memory_of(t.uop) in outside]
        for i in shared:
            self.tensors[i] = adapter.own_memory(self.tensors[i], trace.device_of(self.tensors[i]))
        adapter.realize([self.tensors[i] for i in shared if 0 not in self.tensors[i].shape])

    def tree(self) -> Any:
        """Return the tensors in the form that they came in, as tensors that nothing was done to yet."""
        self.tensors = [Tensor(uop) for uop in self._memory]
        return _rebuild(self._init, self.tensors)

    def buffers(self) -> list[Uop]:
        """Return the memory of all."""
        found = [adapter.memory_of(uop) for uop in self._memory]
        return [buffer for buffer in found if buffer is not None]

    def store(self, new: Any, frame: Frame) -> None:
        """Let the next trip find `new`."""
        values = list(_leaves(new, "the result"))
        if len(values) != len(self._memory):
            raise frame.located(
                Invalid(f"the body returns {len(values)} tensors, but it carries {len(self._memory)}"), frame.body
            )
        pending = []
        for label, (_, value), uop in zip(self._names, values, self._memory, strict=True):
            given = Tensor(uop)
            if tuple(value.shape) != tuple(given.shape) or (adapter.is_placeable(value) and value.dtype != given.dtype):
                wrong = Invalid(f"{label} starts as {_describe(given)}, but the body makes it {_describe(value)}")
                raise frame.located(wrong, frame.body)
            if 0 not in given.shape:
                pending.append((given, value))
        in_place = [v for t, v in pending if adapter.memory_of(v.uop) is adapter.memory_of(t.uop)]
        fresh = [(t, v) for t, v in pending if not any(v is one for one in in_place)]
        if len(fresh) == 1 and not in_place:  # tinygrad sees to what the value reads of its own old one
            ((target, value),) = fresh
            target.assign(value.cast(target.dtype))
            adapter.realize([target])
            return
        # All new values are there before the first is stored: one may be computed from another's old value.
        made = [(t, adapter.own_memory(v.cast(t.dtype), str(t.device))) for t, v in fresh]
        adapter.realize([*in_place, *(v for _, v in made)])
        for target, value in made:
            target.uop = adapter.stored(target.uop, value.uop)
        adapter.realize([t for t, _ in made])


class Frame:
    """A loop while its body is traced: what is older than it, and what it may assign to."""

    def __init__(self, body: Any, age: int, before: list[tuple[Any, Uop]], own: list[Uop]) -> None:
        self.body = body
        self._age = age
        self._before = before
        self._known = {id(t) for t, _ in before}
        self._own = set(own)

    def check_write(self, tensor: Any) -> None:
        """Raise `Invalid` for an assignment to a tensor that was made outside of the loop."""
        if any(tensor is counter for counter in adapter.random_counters()):
            return
        buffer = adapter.memory_of(tensor.uop)
        inside = id(tensor) not in self._known
        if buffer is not None:
            inside = buffer in self._own or adapter.age(buffer) > self._age
        if not inside:
            shape = tuple(tensor.shape)
            raise Invalid(f"the loop's body assigns to a tensor of shape {shape} that was made outside of it: carry it")

    def restore(self) -> None:
        """Let tensors from outside be what they were: what the body computed of them is there in its trips only."""
        for tensor, uop in self._before:
            buffer = adapter.memory_of(uop)
            if tensor.uop is not uop and (buffer is None or buffer not in self._own):
                tensor.uop = uop

    def call(self, function: Callable[..., Any], *args: Any, at: Any = None) -> Any:
        """Call the user's function; what is wrong in it gets the line."""
        try:
            return function(*args)
        except Invalid as e:
            raise self.located(e, at or function) from None

    def located(self, error: Invalid, function: Any) -> Invalid:
        """Return the error with the file and the line of `function` that it came from."""
        code = getattr(function, "__code__", None)
        if code is None or str(error).startswith(code.co_filename):
            return error
        line, at = code.co_firstlineno, error.__traceback__
        while at is not None:
            if at.tb_frame.f_code is code:
                line = at.tb_lineno
            at = at.tb_next
        return Invalid(f"{code.co_filename}:{line}: {error}")


@contextlib.contextmanager
def _loop(
    trace: Trace, trips: int | str, carried: _Carried, body: Any, flag: _Carried | None = None
) -> Iterator[tuple[Uop, Frame]]:
    """Record what happens inside as a loop's body."""
    marker, _ = adapter.new_placeholder((1,), "uint8", trace.device)
    own = carried.buffers() + (flag.buffers() if flag else [])
    before = [(t, t.uop) for t in adapter.live_tensors()]
    frame = Frame(body, adapter.age(adapter.view_of(marker.uop).buffer), before, own)
    name = trace.loop_name()
    most = trips if isinstance(trips, int) else trace.most(trips)
    trip = symbolic.new_variable(name, 0, max(min(most, 1 << 31) - 1, 0), 0)
    recorder: Recorder = trace.recorder
    outer, recorder.calls = recorder.calls, []
    trace.frames.append(frame)
    try:
        yield trip, frame
        inner = recorder.calls
    finally:
        recorder.calls = outer
        trace.frames.pop()
        frame.restore()
    if trips != 0:
        recorder.calls.append(adapter.RecordedLoop(name, trips, inner, flag.tensors[0].uop if flag else None))
