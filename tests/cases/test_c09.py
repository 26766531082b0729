"""C09: each operation rounds or wraps to its element type, and constants survive compile and file bit for bit.

A table of operations for each element type, held against NumPy as bits: compiled for each level of the processor that
this machine has, run right after the compile, and from a file in a fresh process without a compiler. What is left open
is left out, by `Op.defined`: a float that no whole number holds, a division by zero of whole numbers, the larger one of
a number and a NaN, and the sign of a zero where the operation is made of others.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import rig

np = pytest.importorskip("numpy")
ml_dtypes = pytest.importorskip("ml_dtypes")
pytest.importorskip("tinygrad")

from tinygrad import Tensor, dtypes  # noqa: E402

from tolk_engine import Spec, capture, compile, link, run, slots  # noqa: E402
from tolk_engine.target import X86_LEVELS  # noqa: E402

pytestmark = [pytest.mark.case("C09"), pytest.mark.timeout(240)]

N = 512  # of each array: a whole number of vectors, so that what is compiled is vector code
SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
WHOLE = (*SIGNED, *UNSIGNED)
FLOATS = ("float16", "bfloat16", "float32", "float64")
ALL = ("bool", *WHOLE, *FLOATS)
MINE = rig.host().arch
LEVELS = [level for level in X86_LEVELS[1:] if level <= MINE] if MINE.startswith("x86") else [MINE]
MAIN = "x86-64-v3" if "x86-64-v3" in LEVELS else LEVELS[0]
# Beside the main level's, those types whose code differs from level to level.
PAIRS = [(level, name) for level in LEVELS for name in (ALL if level == MAIN else (*FLOATS, "int8", "uint8", "uint64"))]

# Significant bits, the exponent of the smallest normal number, the bits of a quiet NaN.
FORMATS = {
    "float16": (11, -14, 0x7E00), "bfloat16": (8, -126, 0x7FC0), "float32": (24, -126, 0x7FC00000),
    "float64": (53, -1022, 0x7FF8000000000000),
}  # fmt: skip


def kind(name: str) -> Any:
    return np.dtype(getattr(ml_dtypes, name) if name == "bfloat16" else name)


def bits(array: Any) -> Any:
    """Return an array's elements as whole numbers without a sign."""
    return np.ascontiguousarray(array).view(f"u{array.dtype.itemsize}")


# --- what to compute on


def edges(name: str) -> Any:
    """Return the numbers of a type at which something changes."""
    if name == "bool":
        return np.array([False, True])
    if name in WHOLE:
        least, most = int(np.iinfo(name).min), int(np.iinfo(name).max)
        values = {0, 1, 2, 3, 5, 7, 100, 127, 128, 200, most // 2, most // 2 + 1, most - 1, most, least, least + 1}
        values |= {-1, -2, -3, -7, -100}
        return np.array(sorted(v for v in values if least <= v <= most), name)
    digits, low, _ = FORMATS[name]
    most, tiny = float(ml_dtypes.finfo(kind(name)).max), 2.0 ** (low + 1 - digits)
    values = [0.0, -0.0, 1, -1, 1.5, 2.5, -2.5, 3, 1 / 3, most, -most, tiny, -tiny, 2.0**low, 1 + 2.0 ** (1 - digits)]
    return np.array([*values, 30000, 200, np.inf, -np.inf, np.nan], "float64").astype(kind(name))


def drawn(name: str, count: int) -> Any:
    """Return random numbers of a type: whole ones of any size, floats that round in every way."""
    random = np.random.default_rng(ALL.index(name))
    if name == "bool":
        return random.integers(0, 2, count).astype(bool)
    if name in WHOLE:
        return np.frombuffer(random.bytes(count * np.dtype(name).itemsize), name)
    return (random.standard_normal(count) * 2.0 ** random.integers(-12, 7, count)).astype(kind(name))


# Values of float64 that round to another number if they are rounded to float32 on the way.
TWICE = np.array([1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-8 + 2.0**-40, 2.0**-25 + 2.0**-70, 65519.999999999])


def data(name: str) -> dict[str, Any]:
    """Return the inputs of a type's schedule: all pairs of edges, then numbers that are drawn."""
    found = edges(name)
    a, b = (x.ravel()[:N] for x in np.meshgrid(found, found))
    more = drawn(name, 2 * (N - len(a)))
    a, b = np.concatenate([a, more[: N - len(a)]]), np.concatenate([b, more[N - len(b) :]])
    if name == "float64":
        a[-len(TWICE) :] = TWICE
    width = 8 * kind(name).itemsize
    n = (np.arange(N) * 7 % (width + 3)).astype(name if name in WHOLE else "int32")
    few = (np.arange(300) % 5).astype(kind(name)) if name != "bool" else np.ones(300, bool)
    return {"a": a, "b": b, "n": n, "few": few, "zero": np.zeros(8, kind(name))}


# --- what to compute


@dataclass(frozen=True)
class Op:
    """An operation: what a user writes, what it must give, and where that is defined."""

    ours: Callable[[Any], Any]
    theirs: Callable[[Any], Any]
    defined: Callable[[Any], Any] | None = None


class Given(dict[str, Any]):
    """Inputs by name, as attributes: tensors where a schedule is captured, arrays where it is checked."""

    __getattr__ = dict.__getitem__


COMPARED = {
    "eq": lambda x: x.a == x.b, "ne": lambda x: x.a != x.b, "lt": lambda x: x.a < x.b, "le": lambda x: x.a <= x.b,
    "gt": lambda x: x.a > x.b, "ge": lambda x: x.a >= x.b,
}  # fmt: skip
ADDED = {"add": lambda x: x.a + x.b, "mul": lambda x: x.a * x.b}
SUBTRACTED = {"sub": lambda x: x.a - x.b, "neg": lambda x: -x.a, "two": lambda x: x.a + x.b - x.b * x.a}
WRAPPED = {
    "sum_below": lambda x: (x.a + 5) < 100, "sum_above": lambda x: (x.a + 1) >= 1, "negative": lambda x: -x.a < 5,
    "carry": lambda x: (x.a + x.b) < x.a, "equal": lambda x: (x.a + 5) == 3, "twice": lambda x: x.a * 2 // 2,
}  # fmt: skip
"""What a compiler may answer only if it knows that the numbers wrap."""
BITWISE = {"and": lambda x: x.a & x.b, "or": lambda x: x.a | x.b, "xor": lambda x: x.a ^ x.b}


def numeric(x: Any) -> Any:
    return ~(np.isnan(x.a) | np.isnan(x.b)) & ((x.a != 0) | (x.b != 0))


def wrapped(values: list[int], name: str) -> Any:
    width = 8 * np.dtype(name).itemsize
    return np.array([v % 2**width for v in values], f"uint{width}").view(name)


def rounded(array: Any, name: str) -> Any:
    """Round an array of a wider float type to a narrower one, once."""
    digits, low, _ = FORMATS[name]
    wide = array.astype("float64")
    with np.errstate(all="ignore"):
        step = 2.0 ** (np.maximum(np.frexp(wide)[1] - 1, low) - (digits - 1))
        near = np.rint(wide / step) * step
        near = np.where(np.isfinite(wide), near, wide)
        most = (2 - 2.0 ** (1 - digits)) * 2.0 ** (1 - low)
        near = np.where(np.abs(near) > most, np.copysign(np.inf, near), near)
    return near.astype(kind(name))


def cast(name: str, to: str) -> Op:
    """Return a cast: whole numbers wrap; a float to a whole one drops its fraction and wraps; the rest rounds."""
    given, wanted = kind(name), kind(to)

    def reference(x: Any) -> Any:
        if name in FLOATS and to in WHOLE:
            return wrapped([int(v) if np.isfinite(v) else 0 for v in x.a.astype("float64").tolist()], to)
        if name in FLOATS and to in FLOATS and wanted.itemsize < given.itemsize:
            return rounded(x.a, to)
        return x.a.astype(wanted)

    def defined(x: Any) -> Any:
        low, high = (-(2.0**31), 2.0**31) if wanted.itemsize < 4 or to == "int32" else (-(2.0**63), 2.0**63)
        whole = np.trunc(x.a.astype("float64"))
        return np.isfinite(whole) & (whole >= low) & (whole < (2.0**64 if to == "uint64" else high))

    return Op(lambda x: x.a.cast(getattr(dtypes, to)), reference, defined if name in FLOATS and to in WHOLE else None)


def summed(name: str) -> Op:
    """Return the sum of an array, which is of a type that holds more where there is one of the same size."""
    to = {"uint64": "uint64", "int64": "int64"}.get(name, "uint32" if name in UNSIGNED else "int32")
    if name in FLOATS:  # of numbers whose sum is one too, so that the order is the compiler's
        return Op(lambda x: x.few.sum(), lambda x: np.array(float(x.few.astype("float64").sum())).astype(kind(name)))
    return Op(lambda x: x.a.sum(), lambda x: wrapped([sum(map(int, x.a.tolist()))], to)[0])


def same(function: Callable[[Any], Any], defined: Callable[[Any], Any] | None = None) -> Op:
    """Return an operation that is written in the same way for both."""
    return Op(function, function, defined)


def constants(name: str) -> dict[str, Op]:
    """Return constants as they are, chosen by data, and added to zeros: each with all of its bits."""
    digits, low, nan = FORMATS[name]
    dtype = getattr(dtypes, name)
    found: dict[str, Op] = {}
    values = {
        "inf": np.inf, "minus_inf": -np.inf, "nan": np.nan, "minus_zero": -0.0, "smallest": 2.0 ** (low + 1 - digits),
        "most": float(ml_dtypes.finfo(kind(name)).max), "third": 1 / 3,
    }  # fmt: skip
    for label, value in values.items():
        array = np.full(8, value).astype(kind(name))
        if label == "nan":
            array = np.full(8, nan, f"u{kind(name).itemsize}").view(kind(name))

        def alone(x: Any, value: float = value) -> Any:
            return Tensor.full((8,), value, dtype=dtype, device="CPU")

        def chosen(x: Any, value: float = value) -> Any:
            return (x.zero == 0).where(Tensor(value, dtype=dtype, device="CPU"), x.zero)

        found[f"{label}"] = Op(alone, lambda x, array=array: array)
        found[f"{label}_chosen"] = Op(chosen, lambda x, array=array: array)
        added = np.zeros(8, kind(name)) if label == "minus_zero" else array
        found[f"{label}_added"] = Op(lambda x, value=value: x.zero + value, lambda x, added=added: added)
    return found


def table(name: str) -> dict[str, Op]:
    """Return the operations of a type."""
    ops = {label: same(function) for label, function in {**COMPARED, **ADDED}.items()}
    ops["where"] = Op(lambda x: (x.a < x.b).where(x.a, x.b), lambda x: np.where(x.a < x.b, x.a, x.b))
    ops["sum"] = summed(name)
    ops.update((f"to_{to}", cast(name, to)) for to in ALL)
    if name == "bool":
        return ops | {label: same(function) for label, function in BITWISE.items()}
    larger = numeric if name in FLOATS else None
    ops["max"] = Op(lambda x: x.a.maximum(x.b), lambda x: np.maximum(x.a, x.b), larger)
    ops["min"] = Op(lambda x: x.a.minimum(x.b), lambda x: np.minimum(x.a, x.b), larger)
    ops["abs"] = Op(lambda x: x.a.abs(), lambda x: np.abs(x.a), lambda x: x.a != 0)
    if name in WHOLE:
        ops["quotient"] = same(lambda x: x.a // x.b, lambda x: x.b != 0)
        ops["rest"] = same(lambda x: x.a % x.b, lambda x: x.b != 0)
        ops["left"], ops["right"] = same(lambda x: x.a << x.n), same(lambda x: x.a >> x.n)
        return ops | {label: same(function) for label, function in {**BITWISE, **SUBTRACTED, **WRAPPED}.items()}
    ops |= {label: same(function) for label, function in SUBTRACTED.items()}
    if kind(name).itemsize > 2:
        del ops["two"]  # a product and a sum may be fused, which rounds once
    ops["quotient"] = same(lambda x: x.a / x.b)
    ops["root"] = Op(lambda x: x.a.sqrt(), lambda x: np.sqrt(x.a))
    for label in ("floor", "ceil", "trunc"):
        ops[label] = Op(
            lambda x, label=label: getattr(x.a, label)(), lambda x, label=label: getattr(np, label)(x.a),
            lambda x: np.abs(x.a) >= 1,
        )  # fmt: skip
    return ops | constants(name)


# --- running it


CHILD = """
import sys
sys.path[:0] = eval(sys.argv[1])
import numpy as np
import rig
from pathlib import Path
for path in sorted(Path(sys.argv[2]).glob("*.rig")):
    given = dict(np.load(path.with_name(path.name.split("-")[0] + ".npz")))
    model = rig.open(path)
    results = model(**{t.name: given[t.name] for t in model.signature.inputs})
    names = [t.name for t in model.signature.outputs]
    view = lambda v: np.ascontiguousarray(v).view(f"u{v.dtype.itemsize}")
    np.savez(path.with_suffix(".out.npz"), **dict(zip(names, map(view, results))))
absent = {"tinygrad", "tolk_engine", "llvmlite"} & set(sys.modules)
assert not absent, absent
"""

Results = dict[tuple[str, str], dict[str, Any]]


def capture_all(name: str) -> Any:
    ops = table(name)

    def compute(**inputs: Any) -> dict[str, Any]:
        return {label: op.ours(Given(inputs)) for label, op in ops.items()}

    return capture(compute, **{label: Spec(v.shape, v.dtype.name) for label, v in data(name).items()})


def run_direct(compiled: Any, given: dict[str, Any]) -> dict[str, Any]:
    """Link a compiled schedule here and run it; return each output's bits."""
    linked = link(compiled, {"CPU": rig.host()})
    buffers, schedule = slots(linked), compiled.schedule
    for at in schedule.inputs_read():
        buffers[at].write(bits(given[schedule.slots[at].name]))
    run(linked, buffers)
    found = {}
    for at in schedule.outputs:
        slot = schedule.slots[at]
        raw = np.frombuffer(bytes(buffers[at].read()), f"u{kind(slot.dtype).itemsize}")
        found[slot.name] = raw.reshape(slot.shape)
    return found


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, Results, dict[tuple[str, str], str]]:
    """Return the bits of all outputs by level and type: right after the compile, and from files in a fresh process.

    Also the type of each output, by the type of its inputs and its name.
    """
    folder = tmp_path_factory.mktemp("c09")
    direct: Results = {}
    types = {}
    for name in ALL:
        given = data(name)
        np.savez(folder / f"{name}.npz", **{label: bits(v) if v.dtype.kind == "V" else v for label, v in given.items()})
        schedule = capture_all(name)
        types.update(((name, schedule.slots[i].name), schedule.slots[i].dtype) for i in schedule.outputs)
        for level in (level for level, of in PAIRS if of == name):
            compiled = compile(schedule, level, jobs=1)
            compiled.save(folder / f"{name}-{level}.rig")
            direct[level, name] = run_direct(compiled, given)
    command = [sys.executable, "-c", CHILD, repr(sys.path), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)
    assert done.returncode == 0, done.stderr
    return direct, {key: dict(np.load(folder / f"{key[1]}-{key[0]}.out.npz")) for key in direct}, types


# --- the tests


def wrong(op: Op, given: Any, got: Any, to: str) -> str:
    """Say what is wrong with an output, given as bits, or return an empty string."""
    with np.errstate(all="ignore"):
        wanted = np.asarray(op.theirs(given))
    if wanted.dtype != kind(to):
        return f"it is {to}, expected {wanted.dtype}"
    agree = got == bits(wanted).reshape(wanted.shape)
    if to in FLOATS and wanted.size != 8:  # which NaN an operation gives is the processor's choice
        agree |= np.isnan(wanted) & np.isnan(np.ascontiguousarray(got).view(kind(to)))
    if op.defined is not None:
        with np.errstate(all="ignore"):
            agree |= ~op.defined(given)
    if np.all(agree):
        return ""
    at = int(np.argmin(agree))
    inputs = ", ".join(f"{label}={given[label][at]}" for label in "abn") if agree.size == N else ""
    found = np.ascontiguousarray(got).view(kind(to)).ravel()[at]
    return (
        f"{np.size(agree) - np.sum(agree)} of {np.size(agree)}: {inputs} gives {found}, expected {wanted.ravel()[at]}"
    )


@pytest.mark.parametrize(("level", "name"), PAIRS)
def test_each_operation_gives_the_right_bits(results: Any, level: str, name: str) -> None:
    _, loaded, types = results
    given, ops = Given(data(name)), table(name)
    assert set(loaded[level, name]) == set(ops)
    found = {label: wrong(op, given, loaded[level, name][label], types[name, label]) for label, op in ops.items()}
    assert {label: text for label, text in found.items() if text} == {}


def test_a_file_gives_the_bits_that_the_compiler_gave(results: Any) -> None:
    direct, loaded, _ = results
    for key in direct:
        for label, value in direct[key].items():
            assert value.tobytes() == loaded[key][label].tobytes(), (key, label)


@pytest.mark.skipif(len(LEVELS) < 2, reason="needs a processor of two levels")
def test_each_level_gives_the_same_bits(results: Any) -> None:
    """Also where the operation leaves the result open: no level makes more of a float than another."""
    _, loaded, types = results
    for level, name in PAIRS:
        for label, value in loaded[level, name].items():
            main, to = loaded[MAIN, name][label], types[name, label]
            agree = value == main
            if to in FLOATS:
                agree |= np.isnan(value.view(kind(to))) & np.isnan(main.view(kind(to)))
            assert np.all(agree), (level, name, label)


def test_the_numbers_of_the_report(tmp_path: Path) -> None:
    def compute(half: Any, byte: Any, small: Any, large: Any, true: Any, brain: Any) -> dict[str, Any]:
        return {
            "half": half * 200, "byte": byte + 128, "small": (small + 1).cast(dtypes.int32), "large": large * 1,
            "back": large.cast(dtypes.int64).cast(dtypes.uint64), "true": true.sum(), "brain": brain + 2.5,
            "nan": (half * float("nan")) <= half,
        }  # fmt: skip

    given = {
        "half": np.array([30000], "float16"), "byte": np.array([128], "uint8"), "small": np.array([127], "int8"),
        "large": np.array([2**63 + 1], "uint64"), "true": np.ones(300, bool),
        "brain": np.array([1.5], ml_dtypes.bfloat16),
    }  # fmt: skip
    for level in LEVELS:
        schedule = capture(compute, **{label: Spec(v.shape, v.dtype.name) for label, v in given.items()})
        compile(schedule, level, jobs=1).save(tmp_path / "model.rig")
        got = rig.open(tmp_path / "model.rig")(**given)
        assert np.isinf(got.half[0]) and got.half.dtype == "float16"
        assert (int(got.byte[0]), int(got.small[0]), int(got.true), float(got.brain[0])) == (0, -128, 300, 4.0)
        assert got.large.tolist() == got.back.tolist() == [2**63 + 1]
        assert got.nan.tolist() == [False]


@pytest.mark.parametrize("to", [*WHOLE, "bool"])
def test_no_float_leads_past_the_end_of_a_table(to: str) -> None:
    """What a float that no whole number holds becomes is open, but not that it is a number of its type.

    An index of it was taken for one that needs no check, and memory in front of the table or behind it was read.
    """
    size, low = {"bool": (2, 0), "int8": (256, 128), "uint8": (256, 0)}.get(to, (1000, 0))
    whole = getattr(dtypes, to)
    floats = np.float32([300, 1e6, -5, -1e6, 3e9, -3e9, 1e19, -1e19, np.nan, np.inf, -np.inf, 0.9, 255.9, 65535.9])

    def look_up(x: Any, around: Any) -> Any:
        return around[1000 : 1000 + size][x.cast(whole).cast(dtypes.int32) + low]

    around = np.full(2000 + size, -1, "float32")
    around[1000 : 1000 + size] = np.arange(size)
    for level in LEVELS:
        compiled = compile(capture(look_up, Spec(floats.shape), Spec(around.shape)), level, jobs=1)
        got = run_direct(compiled, {"x": floats, "around": around})["out"].view("float32")
        assert (got != -1).all(), (level, got)
