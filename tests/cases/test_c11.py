"""C11: no elements are no work: results have the right shape and type, and the neighbours' order stays."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import made
import pytest
from kernels import (
    Words,
    alloc,
    buffer,
    copy,
    given,
    launch,
    load,
    loop,
    memory,
    memory_devices,
    move,
    on_each,
    opened,
    program,
    reads,
    run,
    submit,
    values,
    writes,
)

import rig
from rig.model import Weight
from rig.program.codec import of_bytes, to_bytes

np = pytest.importorskip("numpy")

pytestmark = pytest.mark.case("C11")

DTYPES = ("bool", "int8", "uint8", "int16", "int32", "int64", "uint64", "float16", "bfloat16", "float32", "float64")
SHAPES = ((0,), (3, 0), (0, 3), (2, 0, 4))
NONE, ROWS, TWO = np.zeros(0, "float32"), np.zeros((3, 0), "float32"), np.array([1, 2], "float32")
INF, NAN = float("inf"), float("nan")

# What is computed, on what, and what comes out: with its shape.
WORKS: dict[str, tuple[Callable[..., Any], dict[str, Any], Any]] = {
    "add": (lambda x: x + 1, {"x": ROWS}, np.zeros((3, 0))),
    "sum": (lambda x: x.sum(), {"x": NONE}, 0.0),
    "sum of each": (lambda x: x.sum(1), {"x": ROWS}, [0, 0, 0]),
    "sums of none": (lambda x: x.sum(0), {"x": ROWS}, np.zeros(0)),
    "product": (lambda x: x.prod(1), {"x": ROWS}, [1, 1, 1]),
    "mean": (lambda x: x.mean(), {"x": NONE}, NAN),
    "mean of each": (lambda x: x.mean(1), {"x": ROWS}, [NAN] * 3),
    "largest": (lambda x: x.max(), {"x": NONE}, -INF),
    "largest of each": (lambda x: x.max(1), {"x": ROWS}, [-INF] * 3),
    "smallest": (lambda x: x.min(), {"x": NONE}, INF),
    "joined": (lambda x, y: x.cat(y), {"x": NONE, "y": TWO}, [1, 2]),
    "joined between": (lambda x, y: y.cat(x, y), {"x": NONE, "y": TWO}, [1, 2, 1, 2]),
    "product of matrices": (lambda x, y: x @ y, {"x": ROWS, "y": np.zeros((0, 2), "float32")}, np.zeros((3, 2))),
    "rows of none": (lambda x, y: x @ y, {"x": ROWS.T.copy(), "y": np.ones((3, 2), "float32")}, np.zeros((0, 2))),
    "softmax": (lambda x: x.softmax(-1), {"x": ROWS}, np.zeros((3, 0))),
    "none taken": (lambda x, i: x[i], {"x": TWO, "i": np.zeros(0, "int32")}, np.zeros(0)),
    "taken of none": (lambda x, i: x[i], {"x": NONE, "i": np.zeros(2, "int32")}, [0, 0]),
    "padded": (lambda x: x.pad(((2, 1),)), {"x": NONE}, [0, 0, 0]),
    "reshaped": (lambda x: x.reshape(0, 5, 3) * 2, {"x": ROWS}, np.zeros((0, 5, 3))),
    "an empty part": (lambda x: x[1:1] + 1, {"x": TWO}, np.zeros(0)),
    "itself": (lambda x: x, {"x": ROWS}, np.zeros((3, 0))),
    "sorted": (lambda x: x.sort()[0], {"x": NONE}, np.zeros(0)),
}

CHILD = """
import sys
sys.path[:0] = eval(sys.argv[1])
import numpy as np
import rig
from pathlib import Path
for path in sorted(Path(sys.argv[2]).glob("*.rig")):
    model, given = rig.open(path), dict(np.load(path.with_suffix(".npz")))
    np.save(path.with_suffix(".npy"), model(**given))
    y = np.empty(model.signature.outputs[0].shape, model.signature.outputs[0].dtype)
    model.bind(given, {model.signature.outputs[0].name: y}).run()
    assert np.array_equal(y, np.load(path.with_suffix(".npy")), equal_nan=True)
assert "tinygrad" not in sys.modules
"""


def compiled(function: Callable[..., Any], inputs: dict[str, Any]) -> Any:
    pytest.importorskip("tinygrad")
    from tolk_engine import Spec, capture, compile

    return compile(capture(function, **{k: Spec(v.shape, v.dtype.name) for k, v in inputs.items()}), jobs=1)


def test_works_on_nothing(tmp_path: Path) -> None:
    """Right after the compile, and from files in a fresh process."""
    from rig.program import load as load_program

    direct = {}
    for name, (function, inputs, _) in WORKS.items():
        made_here = compiled(function, inputs)
        made_here.save(tmp_path / f"{name}.rig")
        np.savez(tmp_path / f"{name}.npz", **inputs)
        model = rig.model.Model(load_program(made_here.to_program(), [rig.host()]), made_here.signature)
        direct[name] = model(**inputs)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, repr(sys.path), str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for name, (_, _, wanted) in WORKS.items():
        for got in (direct[name], np.load(tmp_path / f"{name}.npy")):
            assert (got.dtype, got.shape) == ("float32", np.shape(wanted)), name
            assert np.array_equal(got, np.asarray(wanted), equal_nan=True), name


@pytest.mark.parametrize("shape", SHAPES)
def test_a_sum_keeps_shape_and_type(tmp_path: Path, shape: tuple[int, ...]) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kinds = {name: np.dtype(getattr(ml_dtypes, name, name)) for name in DTYPES}
    inputs = {name: np.zeros(shape, kind) for name, kind in kinds.items()}
    made_here = compiled(lambda **x: {f"{k}_out": v + v for k, v in x.items()}, inputs)
    made_here.save(tmp_path / "model.rig")
    for result, (name, kind) in zip(rig.open(tmp_path / "model.rig")(**inputs), kinds.items(), strict=True):
        assert (result.dtype, result.shape) == (kind, shape), name


def test_empty_constants_and_results_beside_full_ones(tmp_path: Path) -> None:
    tinygrad = pytest.importorskip("tinygrad")
    none = tinygrad.Tensor(np.zeros((0, 4), "float32"), device="CPU")
    large = tinygrad.Tensor(np.arange(2000, dtype="float32").reshape(2, 1000), device="CPU")

    def compute(x: Any, y: Any) -> dict[str, Any]:
        return {"zeros": x @ none, "none": none, "sum": x.sum() + y, "rows": y @ large, "empty": y[:0]}

    compiled(compute, {"x": ROWS, "y": TWO}).save(tmp_path / "model.rig")
    got = rig.open(tmp_path / "model.rig")(ROWS, TWO)
    assert got.zeros.tolist() == [[0] * 4] * 3 and got.none.shape == (0, 4) and got.empty.shape == (0,)
    assert got.sum.tolist() == [1, 2]
    assert np.array_equal(got.rows, TWO @ np.arange(2000, dtype="float32").reshape(2, 1000))


@pytest.mark.parametrize("place", ["host", "far"])
def test_an_empty_weight_in_a_file(tmp_path: Path, place: str) -> None:
    """Before, between and behind others, and alone."""
    kind = ("float32", (4,))
    data = np.arange(4, dtype="float32").tobytes()
    names = ("first", "floats", "between", "more", "last")
    weights = tuple((Weight(n, i, "float32", (4 * (i % 2),)), data * (i % 2)) for i, n in enumerate(names))
    step = made.step(made.launch("times", 3, 4), slots=(1, 0, made.memory(3, 16)))
    model = made.Made({"x": kind}, {"y": kind}, step, weights=weights)
    with memory_devices(1) as (far,):
        opened_ = model.open(tmp_path, far if place == "far" else None)
        assert opened_(np.full(4, 2, "float32")).tolist() == [0, 2, 4, 6]
        alone = made.Made({"x": kind}, {"y": kind}, made.step(made.copy(0, 1, 16), slots=(0, 1)), weights=weights[:1])
        assert alone.open(tmp_path, far if place == "far" else None)(np.ones(4, "float32")).tolist() == [1] * 4
    for mapped in (True, False):
        assert rig.open(tmp_path / "made.rig", mmap=mapped)(np.ones(4, "float32")).tolist() == [1] * 4


def test_an_empty_input_between_two_devices() -> None:
    """It comes from one device and goes to the other, with a full one before and behind it."""
    with memory_devices(2) as (one, two):
        x, none, y, out = buffer(one, 5, 6), rig.Buffer.create(one, 0), rig.Buffer.create(two, 0), buffer(two, 0, 0)
        steps = (
            move(given(1), given(2), 0),
            move(given(0), given(3), 16),
            move(given(1), given(2), 0),
            submit(1, launch("addk", writes(0), writes(0), 10, n=2), slots=(given(3),)),
            move(given(3), given(0), 16),
        )
        loaded = load([one, two], *steps, inputs=[(0, 16), (0, 0), (1, 0), (1, 16)])
        for already in (0, 10, 20):
            run(loaded, [x, none, y, out])
            assert values(x) == values(out) == [15 + already, 16 + already]


@pytest.mark.parametrize("coded", [False, True], ids=["made", "from bytes"])
@on_each
def test_nothing_in_the_middle_keeps_the_order(kind: str, coded: bool) -> None:
    """Kernels over no iterations and no blocks, copies and moves of no bytes and loops of no trips, between others."""
    seen = Words(40)

    def say(number: int) -> Any:
        return submit(0, launch("append", seen.at(), number))

    nothing = (
        submit(0, launch("append", seen.at(), 90, n=0)),
        submit(0, launch("append", seen.at(), 91, blocks=0)),
        submit(0, launch("addk", writes(0, 16), reads(0, 16), 100, n=0), slots=(given(0),)),
        submit(0, copy(0, 1, 0, 16, 0), copy(0, 0, 0, 3, 3), slots=(given(0), memory(0, 0))),
        move(given(0), memory(0, 0), 0),
        loop(0, say(92), move(given(0), memory(1, 16), 16)),
        loop(3, loop(0, say(93))),
        submit(0),
        loop(5),
    )
    with opened(kind) as device:
        steps = [say(0)]
        for number, one in enumerate(nothing, 1):
            steps += [one, submit(0, launch("addk", writes(0), reads(0), 1), slots=(given(0),)), say(number)]
        p = program([device], *steps, inputs=[(0, 16)], memory=[alloc(0, 0), alloc(0, 16)])
        loaded = load([device], *steps, inputs=[(0, 16)], memory=[alloc(0, 0), alloc(0, 16)])
        if coded:
            from rig.program import load as load_program

            loaded = load_program(of_bytes(to_bytes(p)), [device])
        x = buffer(device, 7, 8)
        for done in (1, 2):
            seen[0] = 0
            run(loaded, [x])
            assert [seen[i] for i in range(seen[0] + 1)] == [len(nothing) + 1, *range(len(nothing) + 1)]
            assert values(x) == [7 + done * len(nothing), 8]


@on_each
def test_nothing_by_the_ints_of_a_run(kind: str) -> None:
    """The same loop and the same kernel with 0, some and 0 again."""
    from rig.program import description as d

    with opened(kind) as device:
        body = submit(0, launch("addk", writes(0), reads(0), 1, n=d.Int(1)), slots=(given(0),))
        loaded = load([device], loop(d.Int(0), body), inputs=[(0, 16)], ints=2)
        x = buffer(device, 0, 0)
        for trips, n, wanted in ((0, 2, [0, 0]), (3, 0, [0, 0]), (3, 2, [3, 3]), (0, 2, [3, 3]), (1, 1, [4, 3])):
            run(loaded, [x], [trips, n])
            assert values(x) == wanted
