"""Variables in shapes and as numbers: one program for every value, in this process, saved and opened, and linked."""

from __future__ import annotations

import mmap
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensors import launches
from tinygrad import Tensor, Variable

import rig
import tolk_engine
from rig.errors import Invalid
from rig.model import Model
from tolk_engine import Spec, Var, capture

N = Var("n", 0, 8)
K = Var("k", 0, 3)


def body(x: Tensor, y: Tensor, k: Any) -> dict[str, Tensor]:
    """Elementwise, reductions, joins, products, moves, and outputs that are inputs."""
    return {
        "next": x + 1, "total": x.sum(), "twice": x.cat(x), "turned": x.transpose(0, 1) * 2, "soft": x.softmax(),
        "flat": x.reshape(-1), "product": y @ x, "same": x, "again": x, "scaled": x * (k + 1),
        "blocks": x.sum() * ((x.shape[0] + 3) // 4), "padded": x.pad(((1, 0), (0, 2))), "halves": x.reshape(-1, 2),
    }  # fmt: skip


def wanted(x: np.ndarray, y: np.ndarray, k: int) -> dict[str, np.ndarray]:
    e = np.exp(x - x.max(1, keepdims=True)) if x.size else x
    return {
        "next": x + 1, "total": x.sum(), "twice": np.concatenate([x, x]), "turned": x.T * 2,
        "soft": e / e.sum(1, keepdims=True) if x.size else x, "flat": x.reshape(-1), "product": y @ x, "same": x,
        "again": x, "scaled": x * (k + 1), "blocks": x.sum() * ((x.shape[0] + 3) // 4),
        "padded": np.pad(x, ((1, 0), (0, 2))), "halves": x.reshape(-1, 2),
    }  # fmt: skip


@pytest.fixture(scope="module")
def compiled() -> tolk_engine.Compiled:
    return tolk_engine.compile(capture(body, Spec((N, 4)), Spec((2, N)), K), jobs=1)


@pytest.fixture(scope="module")
def file(compiled: tolk_engine.Compiled, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("variables") / "model.rig"
    compiled.save(path)
    return path


@pytest.fixture(scope="module")
def model(file: Path) -> Model:
    return rig.open(file)


def arrays(n: int) -> tuple[np.ndarray, np.ndarray]:
    chance = np.random.default_rng(n)
    return chance.standard_normal((n, 4), "float32"), chance.standard_normal((2, n), "float32")


@pytest.mark.spec("E-link-vars")
@pytest.mark.case("C11")
@pytest.mark.parametrize("n", [0, 1, 3, 7, 8])
@pytest.mark.parametrize("k", [0, 3])
def test_every_value_gives_what_numpy_gives(model: Model, n: int, k: int) -> None:
    x, y = arrays(n)
    found = model(x, y, k=k)
    for name, want in wanted(x, y, k).items():
        got = getattr(found, name)
        assert got.shape == want.shape and got.dtype == np.float32, name
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5, err_msg=name)


def test_a_fresh_process_without_the_compiler_runs_every_value(file: Path) -> None:
    script = f"""
import sys, rig, numpy as np
model = rig.open({str(file)!r})
for n in (3, 0, 8):
    x, y = np.ones((n, 4), "float32"), np.ones((2, n), "float32")
    found = model(x, y=y, k=2)
    assert found.twice.shape == (2 * n, 4) and found.product.tolist() == [[n] * 4] * 2, found
    assert found.scaled.tolist() == [[3.0] * 4] * n
assert "tinygrad" not in sys.modules and "tolk_engine" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_kept_result_stays_when_a_smaller_one_is_made(model: Model) -> None:
    x, y = arrays(8)
    kept = model(x, y, k=0)
    copies = [np.copy(a) for a in kept]
    model(*arrays(3), k=3)
    assert all(np.array_equal(a, b) for a, b in zip(kept, copies, strict=True))


@pytest.mark.skipif(sys.platform != "linux", reason="protects pages")
@pytest.mark.parametrize("n", [1, 3, 7])
def test_nothing_past_an_array_of_the_given_shape_is_touched(model: Model, n: int) -> None:
    import ctypes

    whole = mmap.mmap(-1, 2 * mmap.PAGESIZE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(whole))
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.mprotect(ctypes.c_void_p(start + mmap.PAGESIZE), mmap.PAGESIZE, 0) == 0
    x, y = arrays(n)
    end = mmap.PAGESIZE
    out = np.frombuffer(whole, "float32", n * 4, end - n * 16).reshape(n, 4)
    edge = np.frombuffer(whole, "float32", n * 4, end - 2 * n * 16).reshape(n, 4)
    edge[:] = x
    model(edge, y, k=1, out={"next": out})  # an output that ends at the border
    np.testing.assert_allclose(out, x + 1)
    out[:] = x
    found = model(out, y, k=1)  # an input that does
    np.testing.assert_allclose(found.twice, np.concatenate([x, x]))


def test_bound_memory_is_used_in_place(model: Model) -> None:
    x, y = arrays(5)
    outputs = {t.name: bytearray(t.nbytes) for t in model.signature.at({"n": 5, "k": 2}).outputs}
    model.bind({"x": x, "y": y}, outputs, {"k": 2}).run()
    for name, want in wanted(x, y, 2).items():
        np.testing.assert_allclose(np.frombuffer(outputs[name], "float32"), want.reshape(-1), rtol=1e-5, atol=1e-5)
    flat = {"x": x.tobytes(), "y": y.tobytes()}
    with pytest.raises(Invalid, match=r"variable 'n' \(0 to 8\) is not given"):
        model.bind(flat, outputs, {"k": 2})
    model.bind(flat, outputs, {"k": 2, "n": 5}).run()
    with pytest.raises(Invalid, match=r"input 'x' .* 80 raw bytes where 64 are expected"):
        model.bind(flat, outputs, {"k": 2, "n": 4})


def test_a_far_device_takes_every_shape(file: Path) -> None:
    for knobs in ({}, {"borrows": False, "alignment": 1}):
        model = rig.open(file, device=rig.memory_device("far", **knobs))  # type: ignore[arg-type]
        for n in (8, 3, 0):
            x, y = arrays(n)
            found = model(x, y, k=1)
            for name, want in wanted(x, y, 1).items():
                np.testing.assert_allclose(getattr(found, name), want, rtol=1e-5, atol=1e-5, err_msg=name)


X5, Y5 = arrays(5)


@pytest.mark.parametrize(
    ("args", "named", "message"),
    [
        ((X5[:3], Y5), {"k": 1}, "variable 'n' is 3 by axis 0 of input 'x' and 5 by axis 1 of input 'y'"),
        ((X5, Y5), {}, "variable 'k' (0 to 3) is not given"),
        ((X5, Y5), {"k": 4}, "variable 'k' is 4 as given, allowed are 0 to 3"),
        ((X5, Y5), {"k": -1}, "variable 'k' is -1 as given, allowed are 0 to 3"),
        ((X5, Y5), {"k": 1.0}, "variable 'k' is 1.0, expected a whole number"),
        ((X5, Y5), {"k": True}, "variable 'k' is True, expected a whole number"),
        ((X5, Y5), {"k": 1, "kk": 2}, "'kk' is no variable of the model: it has 'n', 'k'"),
        ((X5, Y5), {"k": 1, "n": 4}, "variable 'n' is 4 as given and 5 by axis 0 of input 'x'"),
        ((X5[0], Y5), {"k": 1}, "input 'x' (position 0): expected float32 of shape (n, 4), found float32 of shape "
         "(4,): 1 axes where 2 are expected"),
        ((X5[:, :3], Y5), {"k": 1}, "expected float32 of shape (5, 4), found float32 of shape (5, 3): axis 1 is 3, "
         "expected 4"),
        ((X5,), {"k": 1}, "input 'y' (position 1): expected float32 of shape (2, n), but it is missing"),
        ((X5.astype("float64"), Y5), {"k": 1}, "expected float32 of shape (5, 4), found float64 of shape (5, 4)"),
        ((np.ones((9, 4), "float32"), np.ones((2, 9), "float32")), {"k": 1},
         "variable 'n' is 9 by axis 0 of input 'x', allowed are 0 to 8"),
    ],
)  # fmt: skip
@pytest.mark.case("C34")
def test_a_wrong_value_or_shape_is_refused_by_name(
    model: Model, args: tuple[Any, ...], named: dict[str, Any], message: str
) -> None:
    out = np.full(X5.shape, 7, "float32")
    with pytest.raises(Invalid) as e:
        model(*args, **named, out={"next": out})
    assert message in str(e.value)
    assert (out == 7).all()
    assert model(X5, Y5, k=1).total.shape == ()


def test_a_variable_of_any_whole_type_is_taken(model: Model) -> None:
    assert model(X5, Y5, k=np.int64(2)).scaled.tolist() == (X5 * 3).tolist()


@pytest.mark.spec("E-run-vars")
def test_a_linked_schedule_takes_values_by_name(compiled: tolk_engine.Compiled) -> None:
    host = rig.host()
    linked = tolk_engine.link(compiled, {"CPU": host})
    given = tolk_engine.slots(linked)
    x, y = arrays(6)
    assert given[0] is not None and given[1] is not None and given[2] is not None
    given[0].view(0, x.nbytes).write(x)
    given[1].view(0, y.nbytes).write(y)
    tolk_engine.run(linked, given, vars={"n": 6, "k": 0})
    assert np.frombuffer(given[2].read(), "float32", 24).tolist() == (x + 1).reshape(-1).tolist()
    for values, message in [
        ({"n": 6}, r"variable 'k' \(0 to 3\) has no value"),
        ({"n": 9, "k": 0}, "variable 'n' is 9, allowed are 0 to 8"),
        ({"n": "6", "k": 0}, "variable 'n' is '6', expected a whole number from 0 to 8"),
        ({"n": 6, "k": 0, "m": 1}, r"there is no variable 'm': the schedule has 'n' \(0 to 8\), 'k' \(0 to 3\)"),
    ]:
        with pytest.raises(Invalid, match=message):
            tolk_engine.run(linked, given, vars=values)  # type: ignore[arg-type]
    small = [*given]
    small[0] = given[0].view(0, 5 * 16)
    with pytest.raises(Invalid, match=r"input slot 0 \('x'\) needs 96 bytes, but its buffer has 80"):
        tolk_engine.run(linked, small, vars={"n": 6, "k": 0})
    tolk_engine.run(linked, small, vars={"n": 5, "k": 0})


# What a function binds itself.


@pytest.mark.spec("E-run-vars")
def test_a_value_that_the_function_binds_is_the_default(tmp_path: Path) -> None:
    def f(x: Tensor) -> Tensor:
        return x[: Variable("n", 1, 8).bind(3)].sum()

    made = tolk_engine.compile(capture(f, Spec((8,))), jobs=1)
    made.save(tmp_path / "m.rig")
    model = rig.open(tmp_path / "m.rig")
    x = np.arange(8, dtype="float32")
    assert model(x) == 3 and model(x, n=5) == 10 and model(x) == 3
    assert [(v.name, v.min, v.max, v.default) for v in model.signature.variables] == [("n", 1, 8, 3)]
    linked = tolk_engine.link(made, {"CPU": rig.host()})
    buffers = [rig.Buffer.of(x), rig.Buffer.create(rig.host(), 4)]
    for given, want in (({}, 3), ({"n": 4}, 6)):
        tolk_engine.run(linked, buffers, vars=given)  # type: ignore[arg-type]
        assert np.frombuffer(buffers[1].read(), "float32") == want


def test_state_is_written_where_a_variable_says(tmp_path: Path) -> None:
    cache = Tensor.zeros(8, 2, device="CPU").contiguous()

    def f(row: Tensor, at: Any) -> Tensor:
        cache[at : at + 1] = row
        return cache[: at + 1].sum(axis=0)

    tolk_engine.compile(capture(f, Spec((1, 2)), Var("at", 0, 7)), jobs=1).save(tmp_path / "m.rig")
    model = rig.open(tmp_path / "m.rig")
    for at in range(8):
        assert model(np.float32([[at, 1]]), at=at).tolist() == [at * (at + 1) / 2, at + 1]
    assert model(np.float32([[5, 5]]), at=0).tolist() == [5, 5]


def test_a_slice_by_a_variable_keeps_what_it_leaves() -> None:
    def f(x: Tensor, n: Any) -> Tensor:
        y = (x * 2).contiguous()
        y[:n] = 0
        return y

    made = tolk_engine.compile(capture(f, Spec((6,)), Var("n", 1, 6)), jobs=1)
    linked = tolk_engine.link(made, {"CPU": rig.host()})
    buffers = [rig.Buffer.of(np.arange(6, dtype="float32")), rig.Buffer.create(rig.host(), 24)]
    tolk_engine.run(linked, buffers, vars={"n": 2})
    assert np.frombuffer(buffers[1].read(), "float32").tolist() == [0, 0, 4, 6, 8, 10]


def test_nothing_that_varies_is_folded() -> None:
    table = Tensor(np.arange(64, dtype="float32")).to("CPU")
    s = capture(lambda n: table[:n].sum(), Var("n", 1, 64))
    assert [c.values for c in launches(s)] == [("n",)]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Var("a b", 0, 1), "a variable is named 'a b', which is no identifier"),
        (lambda: Var("n", 2, 1), "variable 'n': min 2 is more than max 1"),
        (lambda: Var("n", 0, 1 << 31), "variable 'n': max is 2147483648, expected a whole number of 32 bits"),
        (lambda: Var("n", 0, 4, 5), "variable 'n': default 5 is not from 0 to 4"),
        (lambda: Spec((Var("n", -1, 4),), name="x"), "input 'x': axis 0 of the shape is n, which may be -1"),
        (lambda: capture(lambda x, n: x, Spec((N,)), Var("n", 0, 9)), "variable 'n' is given twice"),
        (lambda: capture(lambda x: x, Spec((Var("x", 1, 4),))), "an input and a variable are named 'x'"),
        (lambda: capture(lambda x: x.sum().item() + x, Spec((N,))), "depends on input 'x'"),
        (lambda: capture(lambda x, k: x * Tensor.arange(9)[: k + 1].sum().item(), Spec((2,)), K),
         "depends on variable 'k': it is not known before a run"),
        (lambda: capture(lambda x: x.assign(x + 1), Spec((N,))), "whose shape varies: assign to a copy of it"),
        (lambda: capture(lambda x: x[: Variable("n", 1, 5).bind(2)], Spec((N, 2))),
         "the function binds variable 'n' to several values"),
        (lambda: capture(lambda n: Tensor.arange(9)[: Variable("n", 1, 9).bind(8)].sum(), N),
         "variable 'n' has two ranges: 0 to 8 and 1 to 9"),
    ],
)  # fmt: skip
def test_what_no_program_can_say_is_refused_at_capture(make: Any, message: str) -> None:
    with pytest.raises(Invalid) as e:
        make()
    assert message in str(e.value)
