"""A model: a loaded program that is called with arrays by name."""

from __future__ import annotations

from rig.buffer import Buffer
from rig.errors import Invalid, Refused
from rig.model.arrays import describe, difference, spell
from rig.model.ports import MISSING, fields, gather, ports, refuse, require_numpy

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

    from rig.device import Device
    from rig.model.ports import Port
    from rig.model.signature import Signature, Tensor
    from rig.point import Point
    from rig.program.run import Loaded

__all__ = ["Bound", "Model", "open"]

_MANY_CASES = 256  # so many shapes are remembered


def open(
    source: Any,
    *,
    device: Device | Sequence[Device] | None = None,
    mmap: bool = False,
    verify: bool = True,
    progress: Callable[[int, int], None] | None = None,
) -> Model:
    """Open a model: read its file, check every byte, and make it ready to run.

    `source` is a path, or the file's bytes in memory (any object with the buffer protocol); a pipe is read whole. The
    model does not depend on the file afterwards. `device` is where it runs: the host by default, one device, or one for
    each device of the program. `progress` is called with the bytes of weights that were read and their total; an
    exception it raises ends the load and passes unchanged.

    With `mmap` the host uses the weights where they lie in the mapped file, so that processes share them; those that a
    run writes are read as usual. The file must then stay as it is while the model is in use: bytes that are changed
    later change results, and the process is killed when it touches what was cut off. `verify=False` leaves the weights
    of a mapped file unread and unchecked until a run uses them.

    `FormatError`: no artifact, another version of the format, or damage, with the place. `Invalid`: the program is for
    devices of another kind or processor. `Refused`: its code is; or with `mmap`, it is no regular file or runs
    elsewhere than on the host. `OutOfMemory`, `Lost`: from the device. `OSError`: the file cannot be read.

    >>> import rig
    >>> model = rig.open("model.rig")  # doctest: +SKIP
    >>> model(image)  # doctest: +SKIP
    """
    from rig.model.artifact import Artifact
    from rig.program.load import load

    if not verify and not mmap:
        raise Invalid("verify=False is for mmap=True: what is read is always checked")
    with Artifact(source, progress, mmap=mmap, verify=verify) as artifact:
        devices = _devices(device, len(artifact.to_load.devices))
        for index, one in enumerate(devices if mmap else ()):
            if one.kind != "host":
                raise Refused(
                    f"mmap=True gives mapped memory to the host, but device {index} is {one.name} ({one.kind})"
                )
        return Model(load(artifact.to_load, devices, initial=artifact.initial), artifact.signature)


def _devices(device: Device | Sequence[Device] | None, count: int) -> tuple[Device, ...]:
    if device is None:
        from rig.device import host

        return (host(),) * count
    if isinstance(device, (tuple, list)):
        if len(device) != count:
            raise Invalid(f"the program runs on {count} devices, {len(device)} were given")
        return tuple(device)
    return (device,) * count  # type: ignore[return-value]


class Model:
    """A loaded program with named inputs and outputs.

    What a caller passes in is never written and never kept past the call; what a call returns is never changed by a
    later one. Calls from several threads are right, one after the other.
    """

    __slots__ = (
        "_array", "_cases", "_count", "_empty", "_idle", "_inputs", "_loaded", "_outputs", "_result", "_signature",
        "_staged", "_wait",
    )  # fmt: skip

    def __init__(self, loaded: Loaded, signature: Signature) -> None:
        """Make a model of a loaded program; `signature` must fit it (`rig.model.signature.check`).

        `Invalid`: a run of the program writes an input of the signature, or does not write one of its outputs.
        """
        self._loaded = loaded
        self._signature = signature
        largest = signature.largest()
        self._inputs = ports("input", largest.inputs)
        self._outputs = ports("output", largest.outputs)
        self._cases: dict[tuple[int, ...], Case] | None = None
        if signature.variables:
            self._cases = {}
            tensors = (*signature.inputs, *signature.outputs)
            for port, tensor in zip((*self._inputs, *self._outputs), tensors, strict=True):
                port.text = spell(tensor.dtype, tensor.shape)
        self._count = len(self._inputs)
        self._staged: dict[int, Device] = {}
        self._wait = not loaded.host_only
        refuse(f"{p.label}: the program writes it" for p in self._inputs if loaded.input_written(p.slot))
        unwritten = [p for p in self._outputs if p.nbytes and not loaded.input_written(p.slot)]
        refuse(f"{p.label}: the program does not write it" for p in unwritten)
        for port in (*self._inputs, *self._outputs):
            device = loaded.devices[loaded.inputs[port.slot].device]
            if device.kind != "host":
                self._staged[port.slot] = device
        self._idle: list[dict[int, Buffer]] = []
        self._array: Any = None
        self._empty: Any = None
        self._result: Callable[[list[Any]], Any] | None = None

    @property
    def signature(self) -> Signature:
        """The inputs and outputs, and what made the model."""
        return self._signature

    @property
    def loaded(self) -> Loaded:
        """The loaded program, whose inputs are the slots that the signature names."""
        return self._loaded

    def __repr__(self) -> str:
        """Say the model's name, inputs and outputs."""
        takes = ", ".join([_say(t) for t in self._signature.inputs] + [v.name for v in self._signature.variables])
        gives = ", ".join(map(_say, self._signature.outputs))
        return f"<rig.Model {self._signature.name or 'unnamed'}({takes}) -> ({gives})>"

    def __call__(self, /, *args: Any, out: Mapping[str, Any] | None = None, **named: Any) -> Any:
        """Run the model on NumPy arrays, by position or by name, and return its outputs as new NumPy arrays.

        One output comes as an array, several as a named tuple. `out` maps names of outputs to arrays that are written
        in place and returned. Strided, byte-swapped and misaligned inputs are copied, values kept; nothing is cast.
        Other objects with the buffer protocol or DLPack are taken as NumPy takes them. An input whose name is no Python
        name, or is ``out``, is given by position or as ``**{name: array}``. A variable that no input's shape gives is
        given by its name, as a whole number.

        `Invalid`, before anything runs: each input or output that is missing, unknown, or of another element type or
        shape than the signature's, by name, with what was expected and found. `ImportError`: NumPy is not installed.
        """
        result = self._result or self._learn()
        if self._cases is not None:
            return result(self._call_varying(args, named, out))
        sources = self._in_order(args, named) if named else args
        if sources is None or out is not None or len(sources) != self._count:
            sources, results = self._arranged(gather(self._inputs, args, named, "input"), out)
        else:
            for port, value in zip(self._inputs, sources, strict=True):
                if (
                    type(value) is not self._array
                    or value.dtype != port.array
                    or value.shape != port.shape
                    or value.flags.num & 0x101 != 0x101  # in C order and aligned
                    or not port.plain
                ):
                    sources, results = self._arranged(gather(self._inputs, args, named, "input"), out)
                    break
            else:
                results = [self._empty(port.shape, port.array) for port in self._outputs]
        self._run(sources, results)
        return result(results)

    def _call_varying(self, args: Sequence[Any], named: Mapping[str, Any], out: Mapping[str, Any] | None) -> list[Any]:
        """Run once where shapes depend on variables; return the outputs in order."""
        names = {port.name for port in self._inputs}
        numbers = {
            name: value
            for name, value in named.items()
            if name in self._signature.ranges or (isinstance(value, int) and name not in names)
        }
        arrays = {name: value for name, value in named.items() if name not in numbers}
        given, problems = gather(self._inputs, args, arrays, "input")
        case = self._case(given, problems, numbers)
        sources, results = self._arranged((given, []), out, case.inputs, case.outputs)
        self._run(sources, results, case.ints)
        return results

    def _case(self, given: Sequence[Any], problems: Sequence[str], numbers: Mapping[str, Any]) -> Case:
        """Return the ports for the shapes that were given, which stand for all values of the variables."""
        from rig.model.variables import settle

        signature = self._signature
        shapes = {}
        wrong = list(problems)
        for port, tensor, value in zip(self._inputs, signature.inputs, given, strict=True):
            shape = None if value is MISSING else _shape(value)
            if not tensor.varies or shape is None:
                continue
            shapes[port.name] = shape
            if len(shape) != len(tensor.shape):
                wrong.append(f"{port.wants()}, found {describe(value)}: {difference(tensor.shape, shape)}")
        refuse(wrong)
        values = settle(signature, shapes, numbers)
        key = tuple(values.values())
        cases = self._cases if self._cases is not None else {}
        case = cases.get(key)
        if case is None:
            if len(cases) >= _MANY_CASES:
                cases.clear()
            case = cases[key] = Case(signature.at(values), signature.ints(values))
        if self._result is not None and not case.learned:
            case.learn()
        return case

    def reset(self) -> None:
        """Let the next call find the state that the first one found: caches, counters, what a function assigned to.

        It waits for the work of earlier calls. A model without state stays as it is. Raises `Lost` if a device is lost.
        """
        self._loaded.reset()

    def bind(
        self, inputs: Mapping[str, Any], outputs: Mapping[str, Any], variables: Mapping[str, int] | None = None
    ) -> Bound:
        """Bind memory to all inputs and outputs, to be read and written in place by each run of the result.

        Values are objects with the buffer protocol, dense, in C order, native byte order and aligned to their elements:
        arrays of the signature's element type and shape, or flat memory of single bytes (such as a bytearray) of
        exactly the size. They are kept alive as long as the result. NumPy is not needed. `variables` are the values of
        the model's variables, for those that no input's shape gives.

        `Invalid`: as for a call; also memory that is read-only, strided, misaligned or byte-swapped, and an output that
        shares bytes with an input or another output.

        >>> result = bytearray(40)
        >>> model.bind({"image": image}, {"logits": result}).run()  # doctest: +SKIP
        """
        given, problems = gather(self._inputs, (), inputs, "input")
        wanted, more = gather(self._outputs, (), outputs, "output")
        problems += more
        takes, gives = self._inputs, self._outputs
        ints: tuple[int, ...] = ()
        if self._cases is not None or variables:
            case = self._case(given, problems, variables or {})
            takes, gives, ints = case.inputs, case.outputs, case.ints
        refuse(problems)
        buffers: dict[int, Buffer] = {}
        spans: list[tuple[int, int, Port, bool]] = []
        for port, value, writable in (
            *((port, value, False) for port, value in zip(takes, given, strict=True)),
            *((port, value, True) for port, value in zip(gives, wanted, strict=True)),
        ):
            view, problem = port.buffer_of(value, writable=writable)
            if not problem:
                buffer = buffers[port.slot] = Buffer.of(view, writable=writable)
                problem = port.misaligned(buffer.address)
                spans.append((buffer.address, buffer.address + port.nbytes, port, writable))
            problems.append(problem)
        problems += _shared(spans)
        refuse(problems)
        return self._bound(buffers, ints)

    def _learn(self) -> Callable[[list[Any]], Any]:
        """Import NumPy and prepare what calls need of it."""
        np = require_numpy()
        for port in (*self._inputs, *self._outputs):
            port.learn(np)
        self._array = np.ndarray
        self._empty = np.empty
        if len(self._outputs) == 1:
            self._result = _first
        else:
            from collections import namedtuple

            kind: Any = namedtuple("Outputs", fields([p.name for p in self._outputs]))  # type: ignore[misc]
            self._result = kind._make
        return self._result

    def _in_order(self, args: tuple[Any, ...], named: Mapping[str, Any]) -> Sequence[Any] | None:
        """Return the values in the inputs' order, or None where `_arranged` must say what is wrong."""
        if len(args) + len(named) != self._count:
            return None
        try:
            return (*args, *[named[port.name] for port in self._inputs[len(args) :]])
        except KeyError:
            return None

    def _arranged(
        self,
        given: tuple[list[Any], list[str]],
        out: Mapping[str, Any] | None,
        takes: Sequence[Port] | None = None,
        gives: Sequence[Port] | None = None,
    ) -> tuple[list[Any], list[Any]]:
        """Bring any arguments into the form that `_run` takes; raise `Invalid` with all that is wrong."""
        np = require_numpy()
        takes = self._inputs if takes is None else takes
        gives = self._outputs if gives is None else gives
        values, problems = given
        sources = []
        for port, value in zip(takes, values, strict=True):
            array, problem = (None, "") if value is MISSING else port.array_of(np, value)
            sources.append(array)
            problems.append(problem)
        wanted, more = gather(gives, (), out or {}, "output", optional=True)
        problems += more
        for port, value in zip(gives, wanted, strict=True):
            if value is not MISSING:
                problems.append(port.written(np, value))
        refuse(problems)
        return self._apart(np, sources, wanted, gives)

    def _apart(
        self, np: Any, sources: list[Any], wanted: list[Any], gives: Sequence[Port]
    ) -> tuple[list[Any], list[Any]]:
        """Make the arrays that are missing, and copies of the inputs that the outputs would overwrite."""
        results: list[Any] = []
        for port, value in zip(gives, wanted, strict=True):
            if value is MISSING:
                value = self._empty(port.shape, port.array)
            elif any(np.may_share_memory(value, other) for other in results):
                raise Invalid(f"{port.label}: its memory is also that of another output")
            else:
                sources = [source.copy() if np.may_share_memory(source, value) else source for source in sources]
            results.append(value)
        return sources, results

    def _run(self, sources: Sequence[Any], results: Sequence[Any], ints: tuple[int, ...] = ()) -> None:
        """Run once from arrays into arrays, and wait until the results are there."""
        slots: list[Any] = [None] * len(self._loaded.inputs)
        staged = self._staging() if self._staged else {}
        for port, array in zip(self._inputs, sources, strict=True):
            slot = port.slot
            if slot in staged:
                staged[slot].view(0, array.nbytes).write(array)
                slots[slot] = staged[slot]
            else:
                slots[slot] = Buffer.of(array)
        for port, array in zip(self._outputs, results, strict=True):
            slot = port.slot
            slots[slot] = staged[slot] if slot in staged else Buffer.of(port.exportable(array), writable=True)
        points = self._loaded.run(self._loaded.frame(slots, ints))
        if self._wait:
            for point in points:
                point.wait()
        if staged:
            for port, array in zip(self._outputs, results, strict=True):
                if port.slot in staged:
                    staged[port.slot].view(0, array.nbytes).read(port.exportable(array))
            self._idle.append(staged)  # not after an error: its work may still run

    def _staging(self) -> dict[int, Buffer]:
        """Return a buffer for each slot whose device is not the host, which no other call uses."""
        try:
            return self._idle.pop()
        except IndexError:
            most = {port.slot: port.nbytes for port in (*self._inputs, *self._outputs)}
            return {slot: Buffer.create(device, most[slot]) for slot, device in self._staged.items()}

    def _bound(self, buffers: Mapping[int, Buffer], ints: tuple[int, ...]) -> Bound:
        slots = [buffers[slot] for slot in range(len(buffers))]
        if not self._staged:
            native = self._loaded.bound(self._loaded.frame(slots, ints))
            return Bound(native.run, native.submit)
        staged = self._staging()
        frame = self._loaded.frame([staged.get(slot, buffer) for slot, buffer in enumerate(slots)], ints)

        def ends(port: Port) -> tuple[Buffer, Buffer]:
            outside = buffers[port.slot]
            return outside, staged[port.slot].view(0, outside.nbytes)

        ins = [ends(p) for p in self._inputs if p.slot in staged]
        outs = [ends(p)[::-1] for p in self._outputs if p.slot in staged]

        def submit() -> tuple[Point, ...]:
            for source, target in ins:
                source.submit_copy(target)
            points = self._loaded.run(frame)
            return (*points, *[source.submit_copy(target) for source, target in outs])

        def run() -> None:
            for point in submit():
                point.wait()

        return Bound(run, submit)


class Case:
    """A model's ports for one value of each of its variables, which are the first words of a run's ints."""

    __slots__ = ("inputs", "ints", "learned", "outputs")

    def __init__(self, signature: Signature, ints: tuple[int, ...]) -> None:
        """Make the ports of a signature whose shapes are numbers."""
        self.learned = False
        self.inputs = ports("input", signature.inputs)
        self.outputs = ports("output", signature.outputs)
        self.ints = ints

    def learn(self) -> None:
        """Look up the NumPy types."""
        np = require_numpy()
        for port in (*self.inputs, *self.outputs):
            port.learn(np)
        self.learned = True


class Bound:
    """A model with memory bound to its inputs and outputs.

    `run()` runs once and returns when the outputs are written. `submit()` returns the points at which they are; until
    then the memory must be left alone. Nothing is allocated or checked for each run on the host. Runs of one `Bound`
    must not overlap: call it from one thread at a time.
    """

    __slots__ = ("run", "submit")

    run: Callable[[], None]
    submit: Callable[[], tuple[Point, ...]]

    def __init__(self, run: Callable[[], None], submit: Callable[[], tuple[Point, ...]]) -> None:
        """Keep the two calls, which hold everything that they need."""
        self.run = run
        self.submit = submit


def _shape(value: Any) -> tuple[int, ...] | None:
    """Return the shape of an array, None for what has none, as flat memory of single bytes."""
    if isinstance(value, memoryview) and value.itemsize == 1 and value.ndim == 1:
        return None
    shape = getattr(value, "shape", None)
    return shape if isinstance(shape, tuple) else None


def _say(tensor: Tensor) -> str:
    return f"{tensor.name}: {tensor.dtype}[{', '.join(map(str, tensor.shape))}]"


def _first(results: list[Any]) -> Any:
    return results[0]


def _shared(spans: Sequence[tuple[int, int, Port, bool]]) -> list[str]:
    """Say which outputs share bytes with something else that is bound; a span is begin, end, port, written."""
    problems = []
    for i, (begin, end, port, written) in enumerate(spans):
        for other_begin, other_end, other, _ in spans[:i]:
            if written and begin < other_end and other_begin < end:
                problems.append(f"{port.label}: its memory is also that of {other.label}")
    return problems
