"""What we rely on in tinygrad's internals beside its kernels and variables, and the only guard of its global state.

tinygrad keeps its settings, its hook for captured schedules and its table of tensors in module variables. `pinned`
and `recording` take one lock for the whole process, set what they need and put everything back. Objects of tinygrad are
`Any` here: it has no types that outlive a release. `tests/engine/test_adapter.py` pins the shapes that are used.
"""

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import tinygrad
from tinygrad import Tensor as _Tensor
from tinygrad.device import Allocator, Buffer, BufferSpec, Device
from tinygrad.dtype import AddrSpace, dtypes
from tinygrad.engine.realize import capturing
from tinygrad.helpers import Context, Target
from tinygrad.tensor import _apply_map_to_tensors, all_tensors
from tinygrad.uop.ops import GroupOp, Ops, buffers

from rig.errors import Error, Invalid, Refused
from tolk_engine.frontend.comparisons import right_comparisons
from tolk_engine.frontend.repairs import repair
from tolk_engine.frontend.symbolic import varies

__all__ = [
    "HOST_DEVICES", "VERSION", "Entry", "Hooks", "RecordedLoop", "Recorder", "Tensor", "Uop", "View", "age",
    "as_tensor", "buffers_of", "constant", "contiguous_output", "current_hooks", "default_dtype", "dtype_name",
    "dtype_of", "flat", "held_bytes", "hold", "is_memory", "is_pending", "is_placeable", "itemsize", "live_tensors",
    "loop_names", "make_target", "memory_of", "new_held", "new_placeholder", "onnx_runner", "own_memory",
    "pinned", "plain_view", "pretend", "random_counters", "realize", "recording", "release",
    "replace_everywhere", "rng_counters", "root", "stored", "view_of",
]  # fmt: skip

VERSION = "0.14.0"
"""The version of tinygrad that this module was written for."""

_found = getattr(tinygrad, "__version__", None)
if _found is None:
    import importlib.metadata

    _found = importlib.metadata.version("tinygrad")
if _found != VERSION:
    raise Refused(f"tinygrad {_found} is installed, this engine works with {VERSION} only")

repair()

Uop: TypeAlias = Any
"""A node of tinygrad's graph."""
Tensor: TypeAlias = Any
"""A tinygrad Tensor."""

HOST_DEVICES = ("PYTHON", "NPY", "DISK")
"""tinygrad's devices that only hold bytes: what is copied from them is a constant of the program."""

_LOCK = threading.RLock()

# What decides the generated code, and what would make tinygrad open a device or search. DEFAULT_FLOAT, TRAINING and
# such, which decide what a tensor function means, stay as the caller set them.
_SETTINGS: dict[str, Any] = {
    "ALLOW_DEVICE_USAGE": 0, "ALLOW_TF32": 0, "BEAM": 0, "CAPTURING": 1, "CCACHE": 0, "DEV": "CPU",
    "DISABLE_FAST_IDIV": 1, "EMULATED_DTYPES": "", "IMAGE": 0, "NOLOCALS": 0, "NOOPT": 0, "NUM_CPU_THREADS": 1, "TC": 1,
    "TC_OPT": 0, "TC_SELECT": -1, "TRANSCENDENTAL": 1, "TUPLE_ORDER": 1, "VALIDATE_WITH_CPU": 0, "VIZ": 0,
}  # fmt: skip

_NAMES: dict[Any, str] = {
    dtypes.bool: "bool", dtypes.int8: "int8", dtypes.int16: "int16", dtypes.int32: "int32", dtypes.int64: "int64",
    dtypes.uint8: "uint8", dtypes.uint16: "uint16", dtypes.uint32: "uint32", dtypes.uint64: "uint64",
    dtypes.float16: "float16", dtypes.bfloat16: "bfloat16", dtypes.float32: "float32", dtypes.float64: "float64",
}  # fmt: skip
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}


def dtype_name(dtype: Any) -> str:
    """Return the NumPy-like name of a tinygrad dtype; `Invalid` for one that a program's buffers cannot hold."""
    name = _NAMES.get(dtype)
    if name is None:
        raise Invalid(f"dtype {dtype} is not supported: allowed are {', '.join(_DTYPES)}")
    return name


def dtype_of(name: str) -> Any:
    """Return tinygrad's dtype of a NumPy-like name."""
    dtype = _DTYPES.get(name)
    if dtype is None:
        raise Invalid(f"dtype {name!r} is not known: allowed are {', '.join(_DTYPES)}")
    return dtype


def itemsize(name: str) -> int:
    """Return the bytes of one element of dtype `name`."""
    return int(dtype_of(name).itemsize)


def make_target(arch: str) -> Any:
    """Return tinygrad's description of host code for `arch`, such as ``x86_64,x86-64-v3``."""
    return Target("CPU", "LLVM", arch)


def _name_a_default_device() -> None:
    """Let tinygrad name CPU as its default where no device can be opened, as without a C compiler, instead of failing.

    Tensors can then be made and captured as everywhere; only running them through tinygrad itself fails.
    """
    select = type(Device).__dict__["_select_device"].func

    def selected(self: Any) -> str:
        try:
            return str(select(self))
        except RuntimeError:
            return "CPU"

    named = functools.cached_property(selected)
    named.__set_name__(type(Device), "_select_device")
    type(Device)._select_device = named


_name_a_default_device()

# --- the process-wide state ------------------------------------------------------------------------------------------


@contextlib.contextmanager
def pinned() -> Iterator[None]:
    """Hold the lock with every setting at the value that the generated code is defined for; nothing is captured."""
    with _LOCK:
        before = capturing[:]
        try:
            with Context(**_SETTINGS):
                capturing.clear()
                yield
        finally:
            capturing[:] = before


@dataclass
class RecordedLoop:
    """A loop that was recorded: what one trip does; `flag` is a byte that is read before each trip."""

    name: str
    trips: int | str
    calls: list[Entry]
    flag: Uop | None = None


Entry: TypeAlias = "tuple[Uop, dict[str, int]] | RecordedLoop"
"""What was recorded: a call with the values of its variables, or a loop."""


def flat(entries: Iterable[Entry]) -> Iterator[tuple[Uop, dict[str, int]]]:
    """Give the calls in order, each loop's once in its place."""
    for entry in entries:
        if isinstance(entry, RecordedLoop):
            yield from flat(entry.calls)
        else:
            yield entry


def loop_names(entries: Iterable[Entry]) -> set[str]:
    """Return the names of all loops."""
    found: set[str] = set()
    for entry in entries:
        if isinstance(entry, RecordedLoop):
            found |= {entry.name} | loop_names(entry.calls)
    return found


@dataclass
class Recorder:
    """What a traced function scheduled: each call with the values of its variables, in order."""

    calls: list[Entry] = field(default_factory=list)
    thread: int = field(default_factory=threading.get_ident)

    def add_linear(self, linear: Uop, values: dict[str, int]) -> None:
        """Take a schedule that tinygrad would run (its hook's name and form)."""
        if threading.get_ident() != self.thread:
            raise Invalid("a tensor was realized in another thread while a function is being captured")
        self.calls.extend((call, dict(values)) for call in linear.src)


class Hooks(Protocol):
    """What a trace does where tinygrad would run something."""

    def read(self, tensor: Tensor) -> bytes | memoryview:
        """Return the value of a tensor that the function asks for while it is traced."""

    def write(self, tensor: Tensor) -> None:
        """Prepare a tensor that the function assigns to in place."""


_tracing = threading.local()


def current_hooks() -> Hooks | None:
    """Return the hooks of this thread's innermost trace, None outside of one."""
    found: Hooks | None = getattr(_tracing, "hooks", None)
    return found


@contextlib.contextmanager
def recording(recorder: Recorder, hooks: Hooks) -> Iterator[list[tuple[Tensor, Uop]]]:
    """Trace: schedules go to `recorder`, reads and in-place writes to `hooks`, and no tensor remembers it afterwards.

    Yields the tensors that were there before, each with what it was.

    Every tensor that was there before means the same after, so that the function can be traced again: tinygrad would
    otherwise take for computed what was only recorded.
    """
    with pinned(), right_comparisons():
        before = [(t, t.uop) for t in live_tensors()]
        state = {k: dict(getattr(_Tensor, k)) for k in ("_device_seeds", "_device_rng_counters")}
        undo = _patch(recorder, hooks)
        capturing[:] = [recorder]
        outer, _tracing.hooks = getattr(_tracing, "hooks", None), hooks
        try:
            yield before
        finally:
            _tracing.hooks = outer
            undo()
            for tensor, uop in before:
                tensor.uop = uop
            for name, value in state.items():
                setattr(_Tensor, name, value)


def _patch(recorder: Recorder, hooks: Hooks) -> Callable[[], None]:
    """Divert reads and in-place writes of this thread's tensors; returns what puts the originals back."""
    names = ("_buffer", "assign", "__setitem__")
    originals = {name: _Tensor.__dict__[name] for name in names}

    def read(self: Tensor) -> Any:
        if threading.get_ident() != recorder.thread:
            return originals["_buffer"](self)
        data = hooks.read(self)
        held = Buffer("PYTHON", max(self.uop.max_numel(), 1), self.dtype, preallocate=True)
        held.as_memoryview(force_zero_copy=True)[: len(data)] = data
        return held

    def prepare(self: Tensor) -> None:
        if threading.get_ident() == recorder.thread:
            hooks.write(self)

    def assign(self: Tensor, x: Any) -> Any:
        prepare(self)
        return originals["assign"](self, x)

    def setitem(self: Tensor, indices: Any, v: Any) -> None:
        prepare(self)
        originals["__setitem__"](self, indices, v)

    for name, function in zip(names, (read, assign, setitem), strict=True):
        setattr(_Tensor, name, function)

    def undo() -> None:
        for name, original in originals.items():
            setattr(_Tensor, name, original)

    return undo


def live_tensors() -> list[Tensor]:
    """Return every tensor of the process."""
    return [t for ref in list(all_tensors) if (t := ref()) is not None]


_ROUNDS = 4  # a value whose shape masks vary may take two: the first makes only what it is made from


def realize(tensors: list[Tensor]) -> None:
    """Schedule what computes `tensors`; `Invalid` with tinygrad's reason where it cannot be done."""
    if not tensors:
        return
    try:
        for _ in range(_ROUNDS):
            _Tensor.realize(*tensors)
            tensors = [t for t in tensors if root(t.uop).op not in (Ops.BUFFER, Ops.AFTER)]
            if not tensors:
                break
    except Error:
        raise
    except Exception as e:
        head, _, rest = str(e).partition("bind mismatch on ")
        if rest and not head:
            name = rest.split(",")[0]
            raise Invalid(
                f"the function binds variable {name!r} to several values at once, or beside the one that it is given"
            ) from e
        raise Invalid(f"the function cannot be scheduled: {type(e).__name__}: {e}") from e


# --- tensors and their memory ----------------------------------------------------------------------------------------


def new_placeholder(shape: Sequence[int | Uop], dtype: str, device: str) -> tuple[Tensor, Tensor]:
    """Return a tensor over a new buffer that holds nothing, and the buffer as a flat tensor.

    Where the shape varies the buffer has room for the largest; the elements lie dense from its start.
    """
    if not varies(shape):
        whole = _Tensor.empty(*shape, dtype=dtype_of(dtype), device=device)
        return whole, whole
    count: Any = 1
    most = 1
    for n in shape:
        count = count * n
        most *= n if isinstance(n, int) else int(n.vmax)
    whole = _Tensor.empty(most, dtype=dtype_of(dtype), device=device)
    return whole.shrink(((0, count),)).reshape(tuple(shape)), whole


def rng_counters(device: str) -> None:
    """Make tinygrad's random counters of `device`, so that a trace finds them there and advances them as state."""
    if device not in _Tensor._device_seeds:
        _Tensor._next_counter(device, 0)
        _Tensor._device_rng_counters[device] = _Tensor([0, 0], device=device, dtype=dtypes.uint32)


def is_placeable(tensor: Tensor) -> bool:
    """Whether the tensor has a device and a dtype of its own: a bare ``arange`` or constant has not."""
    return not tensor.uop.is_virtual


def contiguous_output(tensor: Tensor, device: str) -> Tensor:
    """Return a tensor of the same value that a realize leaves as consecutive bytes of one buffer."""
    if not is_placeable(tensor):
        return _Tensor(tensor.uop.clone(device=device))
    if varies(tensor.shape):  # dense whatever its shape is
        return tensor.flatten().contiguous().reshape(tensor.shape)
    uop = tensor.uop
    while uop.op is Ops.RESHAPE:  # a reshape of something shares its buffer with it
        uop = uop.src[0]
    if uop.op in GroupOp.Movement or uop.op is Ops.BITCAST:
        uop = uop.contiguous()
    return _Tensor(uop.reshape(tensor.shape))


def own_memory(tensor: Tensor, device: str) -> Tensor:
    """Return a tensor of the same value over a new buffer of its own, which a realize fills."""
    if 0 in tensor.shape or not is_placeable(tensor):
        return _Tensor(tensor.uop.clone(device=device))
    return _Tensor(tensor.flatten().uop.clone(device=device)).reshape(tensor.shape)


def stored(target: Uop, value: Uop) -> Uop:
    """Return memory `target` after `value` is stored in it."""
    return target.after(target.store(value))


def default_dtype(number: bool | int | float) -> Any:
    """Return the dtype that tinygrad gives a Python number."""
    if isinstance(number, bool):
        return dtypes.bool
    return dtypes.default_int if isinstance(number, int) else dtypes.default_float


class _HeldDevice:
    """Stands for the device of memory that is held here, so that tinygrad opens none."""

    device = "CPU"

    def synchronize(self) -> None:
        """Nothing runs here."""


class _HeldAllocator(Allocator):  # type: ignore[misc]
    def _as_buffer(self, src: memoryview) -> memoryview:
        return src

    def _offset(self, buf: memoryview, size: int, offset: int) -> memoryview:
        return buf[offset : offset + size]


def hold(uop: Uop, data: bytes | memoryview) -> None:
    """Let a BUFFER hold `data` for tinygrad, without opening its device."""
    memory = uop.buffer
    memory.options = BufferSpec(external_ptr=1)  # not counted as memory of its device
    memory.allocator = _HeldAllocator(_HeldDevice())
    memory._bufs[memory.device] = memoryview(bytearray(data))


def pretend(uop: Uop) -> None:
    """Let tinygrad take a BUFFER for filled, so that it writes parts of it in place; it still holds nothing."""
    hold(uop, b"")
    _PRETENDED.add(uop)


def release(uop: Uop) -> None:
    """Undo `hold` and `pretend`."""
    uop.buffer._bufs.clear()
    _PRETENDED.discard(uop)


_PRETENDED: set[Uop] = set()


def root(uop: Uop) -> Uop:
    """Return the node that a view is a view of."""
    while uop.op in GroupOp.Movement or uop.op in (Ops.BITCAST, Ops.DETACH):
        uop = uop.src[0]
    return uop


def is_memory(uop: Uop) -> bool:
    """Whether a node is a BUFFER of a device that computes."""
    return bool(uop.op is Ops.BUFFER and isinstance(uop.device, str) and uop.device not in HOST_DEVICES)


def as_tensor(uop: Uop) -> Tensor:
    """Return a node as a tensor."""
    return _Tensor(uop)


def new_held(uop: Uop, data: bytes | memoryview, device: str) -> Uop:
    """Return a node of `uop`'s shape and type over a new BUFFER that holds `data`."""
    fresh = uop.empty_like(device=device)
    hold(fresh.base, data)
    return fresh


def replace_everywhere(old: Uop, new: Uop) -> None:
    """Let every tensor that is computed from node `old` be computed from `new`."""
    _apply_map_to_tensors({old: new}, name="state")


def held_bytes(uop: Uop) -> memoryview | None:
    """Return the bytes that a BUFFER holds, or None where tinygrad has given it no memory.

    Bytes of Python lists and byte strings are shared, since tinygrad owns them; a NumPy array's are copied.
    """
    if uop in _PRETENDED:
        return None
    memory = buffers.get(uop)
    if memory is None or not hasattr(memory, "as_memoryview") or not memory.is_allocated():
        if not str(uop.device).startswith("DISK"):
            return None
        memory = uop.buffer.ensure_allocated()
    before = capturing[:]
    capturing.clear()  # a device that has no address copies through a schedule of its own
    try:
        with Context(ALLOW_DEVICE_USAGE=1):
            data = memory.as_memoryview(allow_zero_copy=True)
    finally:
        capturing[:] = before
    view = memoryview(data).cast("B")
    return view.toreadonly() if uop.device == "PYTHON" else memoryview(bytes(view))


def onnx_runner(data: bytes) -> Any:
    """Return tinygrad's reader of an ONNX model; call it inside a trace."""
    # That module makes tensors when it is imported: only where the settings are pinned.
    from tinygrad.nn.onnx import OnnxPBParser, OnnxRunner

    class Parser(OnnxPBParser):  # type: ignore[misc]
        def _parse_TypeProto(self) -> dict[str, Any]:
            """Read a type; outputs of a branch may have none, and theirs is not used."""
            found: dict[str, Any] = super()._parse_TypeProto()
            return found or {"tensor_type": {"elem_type": 1, "shape": {"dim": []}}}

    runner = OnnxRunner.__new__(OnnxRunner)
    runner._init_from_graph(Parser(_Tensor(data, device="PYTHON"), load_external_data=True).parse()["graph"])
    return runner


def constant(data: bytes, dtype: str, shape: tuple[int, ...]) -> Tensor:
    """Return a constant that shares `data`."""
    if 0 in shape:
        return _Tensor([], dtype=dtype_of(dtype)).reshape(shape)
    return _Tensor(data, device="PYTHON").bitcast(dtype_of(dtype)).reshape(shape).to("CPU")


# --- graph nodes -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class View:
    """`nbytes` bytes of BUFFER `buffer` from byte `offset`, as elements of `dtype`."""

    buffer: Uop
    offset: int
    nbytes: int
    dtype: str


def view_of(uop: Uop) -> View:
    """Return the bytes that an argument of a call or a realized tensor stands for."""
    offset = 0
    node = uop
    while node.op is not Ops.BUFFER:
        if node.op in GroupOp.Movement and node.op is not Ops.RESHAPE:
            node, start = _consecutive(node)
            offset += start
            continue
        if node.op in (Ops.MSTACK, Ops.MSELECT, Ops.UNSHARD):
            raise Invalid(f"a tensor over several devices {uop.device} is not supported: move it to one device")
        if node.op not in (Ops.BITCAST, Ops.RESHAPE, Ops.AFTER, Ops.CONTIGUOUS, Ops.DETACH):
            raise Invalid(f"a call's argument is {node.op}, expected consecutive bytes of a buffer")
        node = node.src[0]
    if not isinstance(node.device, str):
        raise Invalid(f"a tensor over several devices {node.device} is not supported: move it to one device")
    return View(node, offset, int(uop.max_numel()) * int(uop.dtype.itemsize), dtype_name(uop.dtype))


def _consecutive(node: Uop) -> tuple[Uop, int]:
    """Return what a movement of consecutive elements moves in, and the byte that they start at."""
    if node.op is Ops.SHRINK and len(node.src[0].shape) == 1 and node.src[1].op is Ops.CONST:
        return node.src[0], int(node.src[1].arg) * int(node.dtype.itemsize)
    found = node.contiguous_view()
    if found is None:
        raise Invalid(f"a call's argument is {node.op} of {node.shape}, expected consecutive bytes at a fixed place")
    base, start = found
    return base, int(start) * int(base.dtype.itemsize)


def plain_view(tensor: Tensor) -> View | None:
    """Return the bytes that the tensor is, or is a copy of, without any computation; None where there is one."""
    node = tensor.uop
    while node.op in (Ops.COPY, Ops.RESHAPE, Ops.CONTIGUOUS):
        node = node.src[0]
    source = node
    while node.op in (Ops.RESHAPE, Ops.BITCAST, Ops.SHRINK, Ops.CONTIGUOUS):
        if node.op is Ops.SHRINK and len(node.src[0].shape) != 1:
            return None
        node = node.src[0]
    return view_of(source) if node.op is Ops.BUFFER and isinstance(node.device, str) else None


def memory_of(uop: Uop) -> Uop | None:
    """Return the BUFFER that a node is a view of, in-place writes that are not scheduled yet included; None if none."""
    node = root(uop)
    while node.op is Ops.AFTER:
        node = root(node.src[0])
    return node if node.op is Ops.BUFFER else None


def random_counters() -> list[Tensor]:
    """Return tinygrad's random counters."""
    return list(_Tensor._device_rng_counters.values())


def is_pending(tensor: Tensor) -> bool:
    """Whether the tensor stands for memory with an in-place write that is not scheduled yet."""
    node = root(tensor.uop)
    return bool(node.op is Ops.AFTER and root(node.src[0]).op is Ops.BUFFER)


def buffers_of(tensor: Tensor) -> list[Uop]:
    """Return every BUFFER in global memory that the tensor's value is computed from."""
    return [u for u in tensor.uop.toposort() if u.op is Ops.BUFFER and u.addrspace is AddrSpace.GLOBAL]


def age(uop: Uop) -> int:
    """Return a BUFFER's number; a later one's is larger, and negative ones were there before."""
    return int(uop.arg.slot)
