"""`rig bench`: how long a model's runs take."""

from __future__ import annotations

from time import perf_counter, perf_counter_ns
from typing import TYPE_CHECKING, Any

from rig.cli.inputs import INPUT_FILES, input_options, read_inputs
from rig.errors import Invalid

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Sequence

    from rig.model import Signature
    from rig.model.artifact import Artifact

    Inputs = dict[str, bytes | bytearray]

__all__ = ["register"]

_EPILOG = (
    """\
Memory is bound once and each run is timed alone. The first run is apart from the others, and so is the load, which
finds the file in the system's cache if it was read before. Inputs that no --input gives are made: floats from -1 to 1,
integers 0 and 1, the same in each process. A variable that neither --var nor an input gives is as large as it may be.

--kernels runs each launch and copy as a program of its own, over the same memory and in the order of a run, so that
each finds its data and the caches about as it does there; what a call costs alone is taken off. The line below the
table compares their sum with the whole run. Rates need the compiler's estimates. Use --threads 1 with it: a kernel
alone may be split over threads in another way than in the run.

--against onnx FILE times ONNX Runtime in the same process on the same inputs, with memory bound, one run of each in
turn; both use one thread unless --threads says otherwise. A ratio above 1 means that rig takes longer.

With --json, times are in seconds: model, arch, threads, load, first, runs, median, q1, q3, p99, min; with --kernels,
kernels (each where, kind, symbol, name, median, share, gflops, gbs), kernels_sum and call; with --against, against
(what, version, median, q1, q3, p99, min, ratio, difference).

"""
    + INPUT_FILES
    + """
examples:
  rig bench model.rig
  rig bench model.rig --threads 1 --kernels
  rig bench model.rig --against onnx model.onnx --seconds 10
"""
)

_FEW = 40
_LEAST = 5
_MOST = 1_000_000


def register(parser: ArgumentParser) -> Callable[[Namespace], int | None]:
    """Time a model's runs, its kernels, and ONNX Runtime beside it."""
    parser.description = "Time a model: load, first run, and the median, quartiles, 99th percentile and least of runs."
    parser.epilog = _EPILOG
    parser.add_argument("model", help="the model's file")
    input_options(parser)
    parser.add_argument("--runs", type=_positive, metavar="N", help="how many runs (as many as --seconds allows)")
    parser.add_argument("--seconds", type=_seconds, default=2.0, metavar="S", help="how long to measure (2)")
    parser.add_argument("--threads", type=int, metavar="N", help="the number of threads (all cores by default)")
    parser.add_argument("--kernels", action="store_true", help="time each launch and copy too")
    parser.add_argument("--all", "-a", action="store_true", help=f"list all kernels, not the {_FEW} slowest")
    parser.add_argument(
        "--against", nargs=2, metavar=("onnx", "FILE"), help="time ONNX Runtime on an ONNX file beside it"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    return _run


def _run(space: Namespace) -> None:
    from rig.device import host
    from rig.model import open as open_model

    if space.against and space.against[0] != "onnx":
        raise Invalid(f"--against {space.against[0]}: ONNX Runtime is what can be timed beside it: onnx MODEL.onnx")
    threads = 1 if space.against and space.threads is None else space.threads
    device = host(threads=threads)
    start = perf_counter()
    model = open_model(space.model, device=device)
    found: dict[str, Any] = {
        "model": space.model, "arch": device.arch, "threads": device.cores if threads is None else threads,
        "load": perf_counter() - start,
    }  # fmt: skip
    given = read_inputs(space, model.signature, largest=True)
    inputs = {**_made(given.signature), **given.data}
    outputs = {tensor.name: bytearray(tensor.nbytes) for tensor in given.signature.outputs}
    bound = model.bind(inputs, outputs, given.variables)
    found["first"] = _timed(bound.run) / 1e9
    other = None
    if space.against:
        from rig.cli.onnx import Session

        other = Session(space.against[1], given.signature, inputs, found["threads"])
    times = _measured([bound.run, *([other.run] if other else [])], space.runs, space.seconds)
    found |= {"runs": len(times[0]), **_statistics(times[0])}
    if other:
        theirs = {"what": "onnxruntime", "version": other.version, **_statistics(times[1])}
        ratio = found["median"] / theirs["median"]
        found["against"] = {**theirs, "ratio": ratio, "difference": other.difference(outputs)}
    if space.kernels:
        ints = model.signature.ints(given.variables)
        del bound, model  # their memory
        found |= _kernels(space, inputs, outputs, device, ints)
    _show(found, space)


def _show(found: dict[str, Any], space: Namespace) -> None:
    if space.json:
        import json

        print(json.dumps(found, indent=1))
    else:
        print(*_lines(found, None if space.all else _FEW), sep="\n")


def _positive(text: str) -> int:
    from argparse import ArgumentTypeError

    if not text.isdecimal() or not 0 < int(text) <= _MOST:
        raise ArgumentTypeError(f"{text!r} is no number of runs: 1 to {_MOST}")
    return int(text)


def _seconds(text: str) -> float:
    from argparse import ArgumentTypeError

    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number <= 86400:
        raise ArgumentTypeError(f"{text!r} is no number of seconds: 0 to 86400")
    return number


def _made(signature: Signature) -> Inputs:
    """Make inputs: a block of random numbers, repeated."""
    from random import Random
    from struct import pack

    from rig.model.arrays import dtype

    made: Inputs = {}
    for tensor in signature.inputs:
        kind, chance = dtype(tensor.dtype), Random(tensor.name)
        count = min(tensor.nbytes // kind.itemsize, 4099)  # a prime, so that rows differ
        if kind.kind == "f" and kind.code:
            block = pack(f"<{count}{kind.code}", *(chance.uniform(-1, 1) for _ in range(count)))
        elif kind.kind == "f":  # the high bytes of small numbers
            small = {"bfloat16": b"\x80\x3e", "float8_e4m3fn": b"\x28", "float8_e5m2": b"\x34"}[tensor.dtype]
            block = b"".join(chance.choice((small, bytes(kind.itemsize))) for _ in range(count))
        else:
            block = b"".join(chance.randrange(2).to_bytes(kind.itemsize, "little") for _ in range(count))
        made[tensor.name] = bytearray((block * (tensor.nbytes // max(len(block), 1) + 1))[: tensor.nbytes])
    return made


def _timed(call: Callable[[], Any]) -> int:
    start = perf_counter_ns()
    call()
    return perf_counter_ns() - start


def _measured(calls: Sequence[Callable[[], Any]], runs: int | None, seconds: float) -> list[list[int]]:
    """Time the calls in turn, after some runs that do not count; return the nanoseconds of each."""
    clock = perf_counter_ns
    warm = clock() + int(min(seconds, 1.0) * 1e8)
    for _ in range(_LEAST if runs is None else min(runs, _LEAST)):
        for call in calls:
            call()
        if clock() > warm:
            break
    times: list[list[int]] = [[] for _ in calls]
    end = clock() + int(seconds * 1e9)
    most = _MOST if runs is None else runs
    while len(times[0]) < most and (runs is not None or len(times[0]) < _LEAST or clock() < end):
        for call, its in zip(calls, times, strict=True):
            start = clock()
            call()
            its.append(clock() - start)
    return times


def _statistics(times: Sequence[int]) -> dict[str, float]:
    ordered = sorted(times)

    def at(fraction: float) -> float:
        return ordered[min(int(fraction * len(ordered)), len(ordered) - 1)] / 1e9

    return {"median": at(0.5), "q1": at(0.25), "q3": at(0.75), "p99": at(0.99), "min": at(0)}


def _kernels(
    space: Namespace, inputs: Inputs, outputs: dict[str, bytearray], device: Any, ints: tuple[int, ...]
) -> dict[str, Any]:
    """Time each part: over rounds of all parts in order, the median of each without what an empty call takes."""
    from rig.buffer import Buffer
    from rig.model.artifact import Artifact
    from rig.program.apart import load_apart

    with Artifact(space.model) as artifact:
        p, signature = artifact.program, artifact.signature
        loaded, empty = load_apart(p, [device] * len(p.devices), initial=artifact.initial)
    slots: list[Any] = [None] * len(p.inputs)
    for tensor in signature.inputs:
        slots[tensor.slot] = Buffer.of(inputs[tensor.name])
    for tensor in signature.outputs:
        slots[tensor.slot] = Buffer.of(outputs[tensor.name], writable=True)
    calls = [empty.bind(slots, ints).run, *(native.bind(slots, ints).run for _, native in loaded)]
    times = _measured(calls, space.runs, space.seconds)
    call, *medians = (_statistics(its)["median"] for its in times)
    medians = [max(one - call, 0.0) for one in medians]
    total = sum(medians) or 1.0
    notes = _notes(artifact)
    rows = []
    for (part, _), median in zip(loaded, medians, strict=True):
        name, ops, mem = notes.get(part.name, ("", 0, 0)) if part.kind == "launch" else ("", 0, _copied(part))
        rows.append({
            "where": part.where, "kind": part.kind, "symbol": part.name, "name": name, "median": median,
            "share": median / total, "gflops": ops / median / 1e9 if ops and median else None,
            "gbs": mem / median / 1e9 if mem and median else None,
        })  # fmt: skip
    return {"kernels": rows, "kernels_sum": sum(medians), "call": call}


def _notes(artifact: Artifact) -> dict[str, tuple[str, int, int]]:
    return {k.symbol: (k.name, k.ops, k.mem) for k in artifact.notes.kernels} if artifact.notes else {}


def _copied(part: Any) -> int:
    return 2 * part.touches[0].nbytes if part.kind in ("copy", "move") and part.touches else 0


def _lines(found: dict[str, Any], few: int | None) -> list[str]:
    threads = f"{found['threads']} thread{'s' if found['threads'] != 1 else ''}"
    lines = [
        f"{found['model']}: {threads}, {found['runs']} runs on {found['arch']}",
        f"  load       {_time(found['load'])}",
        f"  first run  {_time(found['first'])}",
        *_spread(found),
    ]
    if "against" in found:
        other = found["against"]
        lines += ["", f"{other['what']} {other['version']}: {threads}, in turn with it", *_spread(other)]
        lines.append(f"  ratio      {other['ratio']:.3f} (rig / {other['what']}, of the medians)")
        if other["difference"] is not None:
            lines.append(f"  outputs differ by at most {other['difference']:.2g} of the largest value")
    if "kernels" in found:
        lines += ["", *_table(found, few)]
    return lines


def _spread(found: dict[str, Any]) -> list[str]:
    return [
        f"  median     {_time(found['median'])}",
        f"  quartiles  {_time(found['q1'])} to {_time(found['q3'])}",
        f"  p99        {_time(found['p99'])}",
        f"  least      {_time(found['min'])}",
    ]


def _table(found: dict[str, Any], few: int | None) -> list[str]:
    from rig.cli.inspect import table

    kernels = sorted(found["kernels"], key=lambda k: -k["median"])
    rows = [("part", "kernel", "median", "share", "GFLOP/s", "GB/s")]
    for k in kernels[:few]:
        name = k["name"] or k["symbol"] or k["kind"]
        rates = ("-" if k[key] is None else f"{k[key]:.2f}" for key in ("gflops", "gbs"))
        rows.append((_place(k["where"]), name, _time(k["median"]), f"{100 * k['share']:.1f} %", *rates))
    lines = [f"kernels ({len(kernels)}), the slowest first", *table(rows, "llrrrr")]
    if few is not None and len(kernels) > few:
        rest = sum(k["share"] for k in kernels[few:])
        lines.append(f"  ... and {len(kernels) - few} more with {100 * rest:.1f} % (--all shows them)")
    share = 100 * found["kernels_sum"] / found["median"]
    lines.append(f"  together {_time(found['kernels_sum'])}, {share:.0f} % of the whole run's median")
    return lines


def _place(where: str) -> str:
    """Shorten ``steps[0].parts[3]`` to ``0.3``."""
    return where.replace("steps[", "").replace("].parts[", ".").rstrip("]")


def _time(seconds: float) -> str:
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= unit:
            return f"{seconds / unit:.3f} {name}"
    return f"{seconds * 1e9:.0f} ns"
