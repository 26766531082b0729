"""C08: offsets are exact in 64 bits or refused: none wraps, in a description's parts and in the code of kernels."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kernels import as_bytes, buffer, given, launch, loop, moving, offset, on_each, opened, program, run, submit, values

import rig
from rig.errors import Invalid
from rig.program import description as d
from rig.program import load as load_program
from rig.program.codec import of_bytes, to_bytes

np = pytest.importorskip("numpy")

pytestmark = pytest.mark.case("C08")

SIZE, LENGTH = 64, 8
WORD = d.Int(0)
BEFORE = list(range(1, 9))

PARTS: dict[str, Callable[[d.Offset], d.Step]] = {
    "a copy's source": lambda at: submit(0, d.Copy(0, at, 1, (), LENGTH), slots=(given(0), given(1))),
    "a copy's destination": lambda at: submit(0, d.Copy(1, (), 0, at, LENGTH), slots=(given(0), given(1))),
    "a move's source": lambda at: d.Move(given(0), at, given(1), (), LENGTH),
    "a move's destination": lambda at: d.Move(given(1), (), given(0), at, LENGTH),
    "a copy in a loop": lambda at: loop(2, submit(0, d.Copy(1, (), 0, at, LENGTH), slots=(given(0), given(1)))),
}
"""Steps that use 8 bytes of input 0, which has 64, at an offset; what they write comes from input 1."""

OUTSIDE = {
    "0 modulo 2**64": (2**62, 4), "and again": (-(2**62), 4), "of the sign": (2**60, 8),
    "56 modulo 2**64": (2**61 + 7, 8), "0 modulo 2**32": (2**32, 1), "not 31 bits": (2**31, 3),
    "a half of 2**32": (2**30, 2), "negative": (-8, 1),
    "negative by its factor": (8, -1), "one past": (57, 1), "its end": (64, 1), "the most": (2**63 - 1, 1),
    "the least": (-(2**63), 1), "the most times the most": (2**63 - 1, 2**63 - 1), "the least negated": (-(2**63), -1),
    "all of both": (-(2**63), -(2**63)),
}  # fmt: skip
INSIDE = {"the start": (0, 4), "the last": (56, 1), "by its factor": (7, 8), "a negative word": (-7, -8)}


def check(loaded: Any, name: str, target: rig.Buffer, other: rig.Buffer) -> None:
    """Run with one of the offsets: done as asked or refused with the number, with nothing changed."""
    word, factor = {**OUTSIDE, **INSIDE}[name]
    target.write(as_bytes(*BEFORE))
    other.write(as_bytes(99))
    if name in INSIDE:
        run(loaded, [target, other], [word])
        index = word * factor // 8
        wanted = [*BEFORE[:index], 99, *BEFORE[index + 1 :]]
        assert (values(target), values(other)) in ((BEFORE, [BEFORE[index]]), (wanted, [99]))
        return
    past = word * factor not in range(-(2**63), 2**63)
    said = f"which holds {word}, times {factor}" if past else rf"offset {word * factor} is not within .* 64 bytes"
    with pytest.raises(Invalid, match=rf"^steps\[0\].*{said}|offset {word * factor} into"):
        run(loaded, [target, other], [word])
    assert (values(target), values(other)) == (BEFORE, [99])


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("coded", [False, True], ids=["made", "from bytes"])
@on_each
def test_an_offset_is_exact_or_refused(kind: str, coded: bool, part: str) -> None:
    with opened(kind) as device:
        target, other = buffer(device, *BEFORE), buffer(device, 99)
        for factor in {factor for _, factor in (*OUTSIDE.values(), *INSIDE.values())}:
            p = program([device], PARTS[part](offset((WORD, factor))), inputs=[(0, SIZE), (0, LENGTH)], ints=1)
            loaded = load_program(of_bytes(to_bytes(p)) if coded else p, [device])
            for name, (_, its) in {**OUTSIDE, **INSIDE}.items():
                if its == factor:
                    check(loaded, name, target, other)


CHILD = """
import sys
sys.path[:0] = eval(sys.argv[1])
import rig
from rig.program import load
from rig.program.codec import of_bytes
host = rig.host()
loaded = load(of_bytes(open(sys.argv[2], "rb").read()), [host])
target, other = rig.Buffer.create(host, 64), rig.Buffer.create(host, 8)
other.write(b"9" * 8)
for word in eval(sys.argv[3]):
    target.write(bytes(64))
    try:
        loaded.run(loaded.frame([target, other], [word]))
    except rig.Invalid as error:
        print("refused", bytes(target.read()) == bytes(64), "64-bit" in str(error) or "offset" in str(error))
    else:
        print("ran", bytes(target.read()).find(b"9" * 8))
"""


def test_in_a_fresh_process(tmp_path: Path) -> None:
    step = PARTS["a copy's destination"](offset((WORD, 4)))
    (tmp_path / "program").write_bytes(to_bytes(program([rig.host()], step, inputs=[(0, SIZE), (0, LENGTH)], ints=1)))
    words = [2**62, -(2**62), 2**61, 2**30, -2, 15, 14, 0]
    done = subprocess.run(
        [sys.executable, "-c", CHILD, repr(sys.path), str(tmp_path / "program"), repr(words)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.stderr == ""
    assert done.stdout.splitlines() == ["refused True True"] * 6 + ["ran 56", "ran 0"]


@on_each
def test_a_kernel_gets_memory_within_its_slot_or_nothing(kind: str) -> None:
    """An address in a kernel's parameters is a hole, which by its definition keeps 64 bits: so it is held to those."""
    with opened(kind) as device:
        target = buffer(device, *BEFORE)
        for word, factor in (*OUTSIDE.values(), *INSIDE.values()):
            step = submit(0, launch("store", moving(0, d.Use.WRITE, (WORD, factor)), 77), slots=(given(0),))
            loaded = load_program(program([device], step, inputs=[(0, SIZE)], ints=1), [device])
            target.write(as_bytes(*BEFORE))
            held = (word * factor + 2**63) % 2**64 - 2**63
            if 0 <= held < SIZE and held % 8 == 0:
                run(loaded, [target], [word])
                assert values(target) == [*BEFORE[: held // 8], 77, *BEFORE[held // 8 + 1 :]]
            elif not 0 <= held <= SIZE:  # what a kernel does within the slot is its own affair
                with pytest.raises(Invalid, match=rf"^steps\[0\].*a ref's offset is {held}, its slot has 64 bytes"):
                    run(loaded, [target], [word])
                assert values(target) == BEFORE


@pytest.mark.parametrize("factor", [4, 2**31, -1, 2**63 - 1])
def test_an_offset_that_is_known_is_refused_too(factor: int) -> None:
    """At load where 64 bits do not hold it; an input may be larger than the program asks for, so else at the run."""
    host = rig.host()
    target, other = buffer(host, *BEFORE), buffer(host, 99)
    for value in (2**62, 2**31, -(2**63), 65):
        for part in PARTS.values():
            p = program([host], part(offset((d.Fixed(value), factor))), inputs=[(0, SIZE), (0, LENGTH)])
            if 0 <= value * factor < 2**63:
                with pytest.raises(Invalid, match=rf"^steps\[0\].* offset {value * factor} is not within .* 64 bytes"):
                    run(load_program(p, [host]), [target, other])
                continue
            with pytest.raises(Invalid, match=r"^steps\[0\].*(past a signed 64-bit integer|may not be negative)"):
                load_program(p, [host])
    assert (values(target), values(other)) == (BEFORE, [99])


# --- in kernels


EDGE = 2**31
COUNT = EDGE + 8
INDICES = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


def compiled(function: Callable[..., Any], given: dict[str, Any], path: Path) -> Any:
    """Compile a function of arrays, save it, and open it."""
    pytest.importorskip("tinygrad")
    from tolk_engine import Spec, capture, compile

    compile(capture(function, **{k: Spec(v.shape, v.dtype.name) for k, v in given.items()}), jobs=1).save(path)
    return rig.open(path)


def same(got: Any, wanted: dict[str, Any]) -> None:
    assert {name: getattr(got, name).tolist() for name in wanted} == {k: v.tolist() for k, v in wanted.items()}


@pytest.mark.parametrize("dtype", INDICES)
def test_an_index_of_any_type_finds_its_element(tmp_path: Path, dtype: str) -> None:
    """Also from the end, several of them, and where the array has more elements than the index's type has numbers."""
    table, line = np.arange(300 * 300, dtype="float32").reshape(300, 300), np.arange(70_000, dtype="float32")
    low, high = max(-300, np.iinfo(dtype).min), min(299, np.iinfo(dtype).max)
    i, j = np.random.default_rng(0).integers(low, high, (2, 32), endpoint=True).astype(dtype)

    def take(x: Any, y: Any, i: Any, j: Any) -> dict[str, Any]:
        return {"row": x[i], "both": x[i, j], "part": x[5:, 3:][i % 7, j % 7], "long": y[i]}

    model = compiled(take, {"x": table, "y": line, "i": i, "j": j}, tmp_path / "model.rig")
    at, to = i.astype("int64"), j.astype("int64")
    wanted = {"row": table[at], "both": table[at, to], "part": table[5:, 3:][at % 7, to % 7], "long": line[at]}
    same(model(table, line, i, j), wanted)


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
def test_an_index_past_the_end_reads_nothing(tmp_path: Path, dtype: str) -> None:
    """What is not there is 0, and never what lies beside the array."""
    around = np.full(3000, 7, "int8")
    around[1000:2000] = 1
    least, most = int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)
    past = [1000, 1001, -1001, -2000, 65536, most, least, most - 999, 2**31, 2**31 - 1, 2**32 - 1, -(2**31), 2**63]
    i = np.array([0, 999, *(n for n in past if least <= n <= most and not -1000 <= n < 1000)], dtype)
    model = compiled(lambda x, i: x[1000:2000][i], {"x": around, "i": i}, tmp_path / "model.rig")
    assert model(around, i).tolist() == [1, 1] + [0] * (len(i) - 2)


def test_memory_past_two_gibibytes(tmp_path: Path) -> None:
    """An array of which a few pages are ever touched: indices, slices, strides and the last element."""
    x = np.zeros(COUNT, "int8")
    places = [0, 1, EDGE - 1, EDGE, EDGE + 1, COUNT - 1]
    x[places] = [3, 4, 5, 6, 7, 8]
    i, n, u = np.array(places), np.array([-1, -8, -COUNT]), np.array(places, "uint32")

    def take(x: Any, i: Any, n: Any, u: Any) -> dict[str, Any]:
        return {
            "at": x[i], "from_end": x[n], "unsigned": x[u], "slice": x[EDGE - 4 :] + 1, "stride": x[:: 2**28] + 1,
            "copy": x[EDGE - 4 :].contiguous(), "flipped": x.flip(0)[:9] + 1,
        }  # fmt: skip

    wanted = {
        "at": x[i], "from_end": x[n], "unsigned": x[i], "slice": x[EDGE - 4 :] + 1, "stride": x[:: 2**28] + 1,
        "copy": x[EDGE - 4 :], "flipped": x[::-1][:9] + 1,
    }  # fmt: skip
    same(compiled(take, {"x": x, "i": i, "n": n, "u": u}, tmp_path / "model.rig")(x, i, n, u), wanted)


def test_rows_past_two_gibibytes(tmp_path: Path) -> None:
    """A row's number times a row's bytes passes 2**31, though both are small and of 32 bits."""
    x = np.zeros((70_000, 40_000), "int8")
    x[69_999, 39_999], x[60_000, 1], x[53_687, 3648] = 9, 7, 5
    i, j = np.array([69_999, 60_000, 53_687], "int32"), np.array([39_999, 1, 3648], "int32")
    wanted = {"rows": x[i, 3640:3650], "ends": x[i, 39_990:], "both": x[i, j]}
    model = compiled(
        lambda x, i, j: {"rows": x[i, 3640:3650], "ends": x[i, 39_990:], "both": x[i, j]},
        {"x": x, "i": i, "j": j}, tmp_path / "model.rig",
    )  # fmt: skip
    same(model(x, i, j), wanted)


@pytest.mark.big
@pytest.mark.timeout(900)
@pytest.mark.parametrize("threads", [1, 2])
def test_more_elements_than_31_bits_count(tmp_path: Path, threads: int) -> None:
    x = np.zeros(COUNT, "int8")
    x[[0, EDGE - 1, EDGE, -1]] = [10, 20, 30, 127]
    rig.host(threads=threads)
    y = compiled(lambda x: x + 1, {"x": x}, tmp_path / "model.rig")(x)
    assert y[[0, EDGE - 1, EDGE, -1]].tolist() == [11, 21, 31, -128]
    assert y.nbytes == COUNT and (y == 1).sum() == COUNT - 4
