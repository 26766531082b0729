"""What kernels compute, against NumPy, and the form of their text."""

from __future__ import annotations

import ctypes
import math
import re
import sys
from collections.abc import Callable

import numpy as np
import pytest
from tensors import numbers, run

pytest.importorskip("tinygrad")

from tinygrad import Tensor

from rig.errors import Invalid, Refused
from tolk_engine.frontend import Spec, capture, lower
from tolk_engine.frontend.evaluate import Evaluator
from tolk_engine.schedule import Lowered

V3 = "x86_64,x86-64-v3"
WHOLE = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
FLOATS = {"float16": 2e-3, "float32": 2e-6, "float64": 1e-14}


def whole_numbers(dtype: str, count: int = 67, seed: int = 0) -> np.ndarray:
    """Return numbers over the whole range, the ends included."""
    info = np.iinfo(dtype)
    drawn = np.random.default_rng(seed).integers(info.min, info.max, count, dtype=dtype, endpoint=True)
    drawn[:2] = info.min, info.max
    return drawn


def out(function: Callable[..., Tensor], *arrays: np.ndarray) -> np.ndarray:
    """Return what a function computes from arrays."""
    return run(capture(function, *(Spec(a.shape, str(a.dtype)) for a in arrays)), *arrays)["out"]


def lowered(function: Callable[..., Tensor], *specs: Spec, arch: str = V3) -> Lowered:
    """Return the function's last kernel."""
    return lower(capture(function, *specs).kernels[-1], arch)


# --- numbers


@pytest.mark.parametrize("dtype", WHOLE)
def test_whole_numbers(dtype: str) -> None:
    a, b = whole_numbers(dtype), whole_numbers(dtype, seed=1)

    def f(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {
            "add": x + y, "sub": x - y, "mul": x * y, "and": x & y, "or": x | y, "xor": x ^ y, "less": x < y,
            "same": x.eq(y),
            "max": x.maximum(y), "sum": x.sum(dtype=dtype), "float": x.cast("float64"), "bool": x.cast("bool"),
        }  # fmt: skip

    got = run(capture(f, Spec(a.shape, dtype), Spec(b.shape, dtype)), a, b)
    with np.errstate(over="ignore"):
        wanted = {
            "add": a + b, "sub": a - b, "mul": a * b, "and": a & b, "or": a | b, "xor": a ^ b, "less": a < b,
            "same": a == b,
            "max": np.maximum(a, b), "sum": a.sum(dtype=dtype), "float": a.astype("float64"), "bool": a.astype(bool),
        }  # fmt: skip
    for name, value in wanted.items():
        np.testing.assert_array_equal(got[name], value, err_msg=f"{name} of {dtype}")


@pytest.mark.parametrize("dtype", WHOLE)
def test_a_division_by_zero_is_zero_and_never_traps(dtype: str) -> None:
    a, b = whole_numbers(dtype), whole_numbers(dtype, seed=1)
    info = np.iinfo(dtype)
    a[2:6], b[2:6] = (info.min, info.max, 7, info.min), (0, 0, 0, -1 if info.min else 1)
    b[6:40] = np.arange(34) % 7 - (3 if info.min else 0)

    def quotient(x: int, y: int) -> int:
        if y == 0:
            return 0
        found = abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)
        return (found - info.min) % (info.max - info.min + 1) + info.min

    wanted = [quotient(int(x), int(y)) for x, y in zip(a, b, strict=True)]
    got = out(lambda x, y: x.div(y, rounding_mode="trunc"), a, b)
    assert got.tolist() == wanted


def test_sums_of_data_wrap() -> None:
    a = np.int32([2**31 - 1, -(2**31), 5])
    assert out(lambda x: (x + 1 > x).cast("int32"), a).tolist() == [0, 1, 1]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("count", [64, 37])
def test_floats(dtype: str, count: int) -> None:
    a, b = numbers(count, dtype=dtype), numbers(count, seed=1, dtype=dtype)
    tolerance = FLOATS[dtype]

    def f(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {
            "add": x + y, "mul": x * y, "div": x / y, "max": x.maximum(y), "exp": x.exp(), "log": x.abs().log(),
            "sin": x.sin(), "sqrt": x.abs().sqrt(), "tanh": x.tanh(), "less": x < y, "trunc": (x * 9).trunc(),
            "round": (x * 9).round(), "floor": (x * 9).floor(), "int": (x * 9).cast("int32"), "bool": x.cast("bool"),
            "constants": x * 1e-4 + 12345.0 - 3e4,
        }  # fmt: skip

    got = run(capture(f, Spec(a.shape, dtype), Spec(b.shape, dtype)), a, b)
    one = np.dtype(dtype).type
    wanted = {
        "add": a + b, "mul": a * b, "div": a / b, "max": np.maximum(a, b), "exp": np.exp(a), "log": np.log(np.abs(a)),
        "sin": np.sin(a), "sqrt": np.sqrt(np.abs(a)), "tanh": np.tanh(a), "less": a < b, "trunc": np.trunc(a * one(9)),
        "round": np.round(a * one(9)), "floor": np.floor(a * one(9)), "int": (a * one(9)).astype("int32"),
        "bool": a.astype(bool), "constants": a * one(1e-4) + one(12345.0) - one(3e4),
    }  # fmt: skip
    for name, value in wanted.items():
        assert got[name].dtype == value.dtype, name
        np.testing.assert_allclose(
            got[name], value, rtol=2 * tolerance, atol=2 * tolerance, err_msg=f"{name} of {dtype}"
        )


@pytest.mark.parametrize("dtype", FLOATS)
def test_what_is_no_number_and_what_is_infinite(dtype: str) -> None:
    a = np.array([math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, -1.0, np.finfo(dtype).max], dtype)

    def f(x: Tensor) -> dict[str, Tensor]:
        chosen = (x > 0).where(math.nan, -math.inf).cast(dtype)
        return {
            "nan": x.isnan(),
            "inf": x.isinf(),
            "bool": x.cast("bool"),
            "chosen": chosen,
            "positive": x + math.inf,
            "constant": x * 0 - math.inf,
        }

    got = run(capture(f, Spec(a.shape, dtype)), a)
    np.testing.assert_array_equal(got["nan"], np.isnan(a))
    np.testing.assert_array_equal(got["inf"], np.isinf(a))
    np.testing.assert_array_equal(got["bool"], a.astype(bool))
    np.testing.assert_array_equal(got["chosen"], np.where(a > 0, math.nan, -math.inf).astype(dtype))
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(got["positive"], a + math.inf)
    assert np.isneginf(got["constant"]).all(), "a number times zero is taken for zero"


@pytest.mark.parametrize("source", FLOATS)
@pytest.mark.parametrize("target", FLOATS)
def test_conversions_between_floats(source: str, target: str) -> None:
    a = numbers(33, dtype=source)
    np.testing.assert_array_equal(out(lambda x: x.cast(target), a), a.astype(target))


def test_bfloat16() -> None:
    a = numbers(64)
    bits = (a.view(np.uint32) >> 16).astype(np.uint16)
    wide = (bits.astype(np.uint32) << 16).view(np.float32)
    got = run(capture(lambda x: (x.cast("float32") * 2, x * 2), Spec((64,), "bfloat16")), bits)
    np.testing.assert_array_equal(got["out0"], wide * 2)
    np.testing.assert_array_equal((got["out1"].astype(np.uint32) << 16).view(np.float32), wide * 2)


@pytest.mark.parametrize("count", [64, 37])
def test_booleans(count: int) -> None:
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 2, count).astype(bool) for _ in range(2))

    def f(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        return {
            "and": x & y, "or": x | y, "xor": x ^ y, "not": x.logical_not(), "any": x.any(), "count": x.sum(),
            "back": x.flip(0), "chosen": x.where(3, 4), "float": x.cast("float32"),
        }  # fmt: skip

    got = run(capture(f, Spec((count,), "bool"), Spec((count,), "bool")), a, b)
    wanted = {
        "and": a & b, "or": a | b, "xor": a ^ b, "not": ~a, "any": a.any(), "count": a.sum(), "back": a[::-1],
        "chosen": np.where(a, 3, 4), "float": a.astype("float32"),
    }  # fmt: skip
    for name, value in wanted.items():
        np.testing.assert_array_equal(got[name], value, err_msg=name)


def test_any_byte_but_zero_is_true() -> None:
    """A caller's array of bytes, seen as booleans, must not turn into something undefined."""
    raw = np.array([0, 1, 2, 128, 255, 0, 7, 1], np.uint8)
    got = run(capture(lambda x: (x.cast("int32"), x.logical_not(), x & x), Spec((8,), "bool")), raw.view(bool))
    truth = raw != 0
    assert got["out0"].tolist() == truth.astype(int).tolist()
    for name, value in (("out1", ~truth), ("out2", truth)):
        assert got[name].view(np.uint8).tolist() == value.astype(np.uint8).tolist()


def test_a_padded_and_gathered_sum() -> None:
    x, at = numbers(6, 8), np.int32([5, 0, 3])
    got = out(lambda a, i: a.pad(((1, 1), (2, 0)))[1:][i].sum(1), x, at)
    wanted = np.pad(x, ((1, 1), (2, 0)))[1:][at].sum(1)
    np.testing.assert_allclose(got, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("offset", [4, 8, 12, 20])
def test_a_buffer_may_start_at_any_element(offset: int) -> None:
    """Vector accesses ask for the alignment of one element only."""
    s = capture(lambda a, b: a * 2 + b, Spec((64,)), Spec((64,)))
    assert lower(s.kernels[0], V3).aligns == (4, 4, 4)
    evaluator = Evaluator(s)
    a, b = numbers(64), numbers(64, seed=1)
    blocks = [(ctypes.c_char * 400)() for _ in range(3)]
    starts = [-(-ctypes.addressof(block) // 64) * 64 + offset for block in blocks]
    ctypes.memmove(starts[1], a.tobytes(), 256)
    ctypes.memmove(starts[2], b.tobytes(), 256)
    evaluator._code.run(s.calls[0], starts, {})  # type: ignore[arg-type]
    np.testing.assert_allclose(np.frombuffer(ctypes.string_at(starts[0], 256), np.float32), a * 2 + b, rtol=1e-6)


@pytest.mark.parametrize("level", ["x86-64-v1", "x86-64-v2", "x86-64-v3"])
def test_each_operation_on_halves_is_rounded_at_each_level(level: str) -> None:
    """In floats, which hold what halves do not, 30000 * 200 - 30000 would be 5970000 and not infinite."""
    text = lowered(lambda x, y: x * y - y, Spec((64,), "float16"), Spec((64,), "float16"), arch=f"x86_64,{level}").text
    assert re.search("fmul .*half", text) and re.search("fadd .*half", text)
    assert " float " not in text


# --- the text


def test_the_text_is_a_kernel_and_its_wrapper() -> None:
    k = lowered(lambda a, b: a @ b, Spec((8, 8)), Spec((8, 8)))
    assert re.findall(r"^define (.*?)\(", k.text, re.M) == ["internal void @__K__", "void @__W__"]
    assert "define void @__W__(ptr noalias readonly %words, i64 %begin, i64 %end)" in k.text
    assert k.text.count('"no-builtins"') == 2 and "target triple" not in k.text
    assert (k.arg_order, k.n_values, k.aligns, k.iterations) == ((0, 1, 2), 0, (4, 4, 4), 1)
    assert k.ops >= 2 * 8**3 - 64 and k.mem == 3 * 256
    assert all(type(n) is int for n in (k.ops, k.mem, k.iterations))


def test_loads_and_stores_state_the_alignment_of_an_element() -> None:
    text = lowered(lambda a: a * 2, Spec((64,))).text
    accesses = re.findall(r"^.*(?:= load|  store) .*$", text.split("@__W__")[0], re.M)
    assert any("<" in line for line in accesses), "a vector is loaded"
    assert accesses and all(line.endswith("align 4") for line in accesses)


def test_only_work_of_more_operations_than_bytes_is_split() -> None:
    matmul = lowered(lambda a, b: a @ b, Spec((128, 128)), Spec((128, 128)))
    assert matmul.iterations > 1 and matmul.ops > matmul.mem
    gemv = lowered(lambda a, b: a @ b, Spec((1, 1024)), Spec((1024, 1024)))
    assert gemv.iterations == 1 and gemv.ops <= gemv.mem
    small = lowered(lambda a, b: a @ b, Spec((16, 16)), Spec((16, 16)))
    assert small.iterations == 1


def test_the_split_does_not_depend_on_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    from tinygrad.helpers import Context

    def f(a: Tensor, b: Tensor) -> Tensor:
        return a @ b

    with Context(NUM_CPU_THREADS=3):
        first = lowered(f, Spec((128, 128)), Spec((128, 128)))
    with Context(NUM_CPU_THREADS=64):
        second = lowered(f, Spec((128, 128)), Spec((128, 128)))
    assert first == second


def test_each_range_of_iterations_does_its_part() -> None:
    s = capture(lambda a, b: a @ b, Spec((128, 128)), Spec((128, 128)))
    k = lower(s.kernels[0], V3)
    a, b = numbers(128, 128), numbers(128, 128, seed=1)
    evaluator = Evaluator(s)
    blocks = [ctypes.create_string_buffer(a.nbytes + 64) for _ in range(3)]
    starts = [-(-ctypes.addressof(block) // 64) * 64 for block in blocks]
    ctypes.memmove(starts[1], a.tobytes(), a.nbytes)
    ctypes.memmove(starts[2], b.tobytes(), b.nbytes)
    form = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64)
    function = form(evaluator._code._engine.get_function_address("f0"))
    words = (ctypes.c_uint64 * 3)(*starts)
    half = k.iterations // 2
    function(ctypes.addressof(words), half, half)  # an empty range does nothing
    assert np.frombuffer(ctypes.string_at(starts[0], a.nbytes), np.float32).any() == False  # noqa: E712
    function(ctypes.addressof(words), half, k.iterations)
    function(ctypes.addressof(words), 0, half)
    got = np.frombuffer(ctypes.string_at(starts[0], a.nbytes), np.float32).reshape(128, 128)
    np.testing.assert_allclose(got, a @ b, rtol=1e-4, atol=1e-4)


def test_tuning_for_a_processor_does_not_change_the_text() -> None:
    def f(a: Tensor) -> Tensor:
        return a.exp()

    assert lowered(f, Spec((64,))) == lowered(f, Spec((64,)), arch="x86_64,x86-64-v3,tune=native")


def test_variables_are_words_after_the_pointers() -> None:
    from tinygrad import Variable

    def f(x: Tensor) -> Tensor:
        rows, columns = Variable("rows", 1, 8).bind(3), Variable("columns", 1, 8).bind(5)
        return x[:rows, :columns].sum()

    s = capture(f, Spec((8, 8)))
    (call,) = s.calls
    assert call.values == ("columns", "rows")  # type: ignore[union-attr]
    k = lower(s.kernels[0], V3)
    assert (k.n_values, len(k.arg_order)) == (2, 2)
    x = numbers(8, 8)
    np.testing.assert_allclose(run(s, x)["out"], x[:3, :5].sum(), rtol=1e-5)


def test_code_for_arm_is_text_too() -> None:
    k = lowered(lambda a, b: a @ b, Spec((8, 8)), Spec((8, 8)), arch="arm64,generic")
    assert "define void @__W__" in k.text


def test_a_type_without_code_is_refused() -> None:
    with pytest.raises(Invalid, match="fp8e4m3 is not supported"):
        capture(lambda x: x.cast("fp8e4m3").cast("float32"), Spec((4,))).kernels[0]
        out(lambda x: x.cast("fp8e4m3"), numbers(4))


def test_a_kernel_that_tinygrad_cannot_make_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    (kernel,) = capture(lambda x: x + 1, Spec((4,))).kernels

    def broken(*_: object) -> object:
        raise RuntimeError("no such thing")

    monkeypatch.setattr(sys.modules["tolk_engine.frontend.lower"], "to_program", broken)
    with pytest.raises(Refused, match=r"kernel kernel0: no text for x86_64.*no such thing"):
        lower(kernel, V3)
