"""`rig bench`: what it measures, and how it says it. No time is compared with another here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import made
import numpy as np
import pytest
from test_inspect import NOTES, several

import rig
from rig.cli import main
from rig.cli.bench import _made, _statistics, _table
from rig.model import Signature, Tensor
from rig.program.apart import load_apart
from rig.program.description import Alloc, Fixed, Input, Loop, Program


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made.times_weight(np.arange(1, 1001, dtype="float32").tobytes(), b"abc").save(tmp_path / "model.rig")
    return tmp_path / "model.rig"


def measured(capsys: pytest.CaptureFixture[str], *args: str) -> Any:
    assert main(("bench", *args, "--json")) == 0
    return json.loads(capsys.readouterr().out)


def test_json(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = measured(capsys, str(path), "--runs", "50", "--threads", "1")
    assert data["model"] == str(path)
    assert (data["runs"], data["threads"], data["arch"]) == (50, 1, rig.host().arch)
    assert 0 < data["min"] <= data["q1"] <= data["median"] <= data["q3"] <= data["p99"] < 5
    assert data["load"] > 0 and data["first"] > 0
    assert main(("bench", "--help")) == 0
    text = capsys.readouterr().out
    assert [key for key in data if key not in text] == []


def test_text(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(("bench", str(path), "--seconds", "0", "--threads", "1")) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{path}: 1 thread, 5 runs on {rig.host().arch}"
    assert [line.split("  ")[1] for line in lines[1:]] == ["load", "first run", "median", "quartiles", "p99", "least"]


def test_seconds_bound_the_runs(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert measured(capsys, str(path), "--seconds", "0.05")["runs"] > 5
    assert measured(capsys, str(path), "--seconds", "50", "--runs", "3")["runs"] == 3


def test_kernels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = several(NOTES, tmp_path / "several.rig")
    data = measured(capsys, str(path), "--runs", "9", "--kernels")
    kernels = data["kernels"]
    assert [k["kind"] for k in kernels] == ["launch", "launch", "copy", "launch", "launch", "move", "loop"]
    assert [k["where"] for k in kernels][2:] == [
        "steps[0].parts[2]", "steps[1].parts[0]", "steps[1].parts[1]", "steps[2]", "steps[3]",
    ]  # fmt: skip
    assert sum(k["share"] for k in kernels) == pytest.approx(1, abs=1e-9) or data["kernels_sum"] == 0
    assert kernels[0]["name"] == "r_4 & more"
    assert kernels[1]["gflops"] is None
    if kernels[0]["median"]:
        assert kernels[0]["gflops"] == pytest.approx(8e6 / kernels[0]["median"] / 1e9)
        assert kernels[0]["gbs"] == pytest.approx(48 / kernels[0]["median"] / 1e9)
    assert main(("bench", str(path), "--runs", "9", "--kernels")) == 0
    text = capsys.readouterr().out
    assert "kernels (7), the slowest first" in text
    assert "% of the whole run's median" in text


def test_long_tables_are_cut() -> None:
    row = {"where": "steps[0].parts[1]", "kind": "launch", "symbol": "f", "name": "", "gflops": None, "gbs": 2.0}
    kernels = [{**row, "median": 1e-3 * i, "share": i / 45} for i in range(10)]
    lines = _table({"kernels": kernels, "kernels_sum": 0.045, "median": 0.05}, 3)
    assert [line.split()[:2] for line in lines[2:5]] == [["0.1", "f"]] * 3
    assert lines[2].split()[2:4] == ["9.000", "ms"]
    assert lines[-2:] == [
        "  ... and 7 more with 46.7 % (--all shows them)", "  together 45.000 ms, 90 % of the whole run's median",
    ]  # fmt: skip


def test_parts_alone_make_the_whole() -> None:
    """Each part run once, in order, gives what a run gives; again and again, with state."""
    first = made.memory(0, 16)
    program = Program(
        (made.ARCH,), (Alloc(0, 16), Alloc(0, 16)), made.same_and_next().program.images, (Input(0, 16),) * 2, 0,
        (
            made.step(made.copy(0, 1, 16), made.launch("add_one_f32", 2, 4), slots=(first, made.memory(1, 16))),
            Loop(Fixed(3), (made.step(made.launch("times", 3, 4), slots=(first, first, 0)),)),
            made.step(made.copy(0, 1, 16), slots=(first, 1)),
        ),
    )  # fmt: skip
    host = rig.host()
    x = np.array([1, 2, 3, 4], "float32")
    whole, apart = np.zeros(4, "float32"), np.zeros(4, "float32")
    loaded = rig.program.load(program, [host])
    natives, empty = load_apart(program, [host])
    assert [part.where for part, _ in natives] == [
        "steps[0].parts[0]",
        "steps[0].parts[1]",
        "steps[1]",
        "steps[2].parts[0]",
    ]
    for _ in range(3):
        loaded.run(loaded.frame([rig.Buffer.of(x), rig.Buffer.of(whole, writable=True)]))
        slots = [rig.Buffer.of(x), rig.Buffer.of(apart, writable=True)]
        empty.bind(slots, ()).run()
        for _, native in natives:
            native.bind(slots, ()).run()
        assert whole.any()
        assert np.array_equal(whole, apart)


def test_inputs_are_made_the_same_each_time() -> None:
    names = ("float32", "float16", "bfloat16", "float8_e4m3fn", "int32", "bool", "uint8", "float64")
    signature = Signature(tuple(Tensor(n, n, (100, 101), i) for i, n in enumerate(names)), ())
    found = _made(signature)
    assert found == _made(signature)
    for tensor in signature.inputs:
        assert len(found[tensor.name]) == tensor.nbytes
    floats = np.frombuffer(found["float32"], "float32")
    assert -1 <= floats.min() < -0.9 and 0.9 < floats.max() <= 1
    assert set(found["bool"]) == {0, 1}
    assert set(np.frombuffer(found["int32"], "int32").tolist()) == {0, 1}
    assert _made(Signature((Tensor("e", "float32", (0, 3), 0), Tensor("s", "int64", (), 1)), ()))["e"] == b""


def test_given_inputs_are_used(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.zeros(999, "float32"))
    assert main(("bench", str(path), "--runs", "1", "--input", f"x={tmp_path / 'x.npy'}")) == 1
    assert "expected float32 of shape (1000,), found float32 of shape (999,)" in capsys.readouterr().err


def test_statistics() -> None:
    times = [int(1e9)] * 98 + [int(5e9), int(9e9)]
    assert _statistics(times) == {"median": 1, "q1": 1, "q3": 1, "p99": 9, "min": 1}
    assert _statistics([3])["p99"] == 3e-9


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        (("--runs", "0"), 2, "'0' is no number of runs"),
        (("--runs", "x"), 2, "'x' is no number of runs"),
        (("--seconds", "-1"), 2, "'-1' is no number of seconds"),
        (("--seconds", "nan"), 2, "'nan' is no number of seconds"),
        (("--against", "tvm", "x"), 1, "--against tvm: ONNX Runtime is what can be timed beside it"),
        (("--against", "onnx", "none.onnx"), 1, "none.onnx: No such file or directory"),
    ],
)
def test_wrong_usage(
    path: Path, capsys: pytest.CaptureFixture[str], args: tuple[str, ...], code: int, message: str
) -> None:
    assert main(("bench", str(path), *args)) == code
    assert message in capsys.readouterr().err


# ONNX Runtime.


def onnx_times(path: Path, count: int, *, name: str = "x", extra: bool = False) -> str:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxruntime")
    helper = onnx.helper
    floats = onnx.TensorProto.FLOAT
    weight = onnx.numpy_helper.from_array(np.arange(1, count + 1, dtype="float32"), "w")
    inputs = [helper.make_tensor_value_info(n, floats, [count]) for n in ([name, "more"] if extra else [name])]
    graph = helper.make_graph(
        [helper.make_node("Mul", [name, "w"], ["y"])], "g", inputs,
        [helper.make_tensor_value_info("y", floats, [count])], [weight],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, str(path))
    return str(path)


@pytest.mark.parametrize("name", ["x", "another"])
def test_against_onnx(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    other = onnx_times(tmp_path / "m.onnx", 1000, name=name)
    data = measured(capsys, str(path), "--against", "onnx", other, "--runs", "20")
    found = data["against"]
    assert found["what"] == "onnxruntime"
    assert found["difference"] == 0
    assert found["ratio"] == pytest.approx(data["median"] / found["median"])
    assert data["threads"] == 1
    assert main(("bench", str(path), "--against", "onnx", other, "--runs", "5")) == 0
    text = capsys.readouterr().out
    assert "outputs differ by at most 0 of the largest value" in text
    assert "  ratio  " in text


def test_against_another_model(path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = onnx_times(tmp_path / "m.onnx", 1000, extra=True)
    assert main(("bench", str(path), "--against", "onnx", other)) == 1
    assert "the ONNX file has 2 inputs (x, more), the model 1" in capsys.readouterr().err
    assert main(("bench", str(path), "--against", "onnx", onnx_times(tmp_path / "m.onnx", 999))) == 1
    assert "ONNX Runtime does not run it with these inputs" in capsys.readouterr().err
    (tmp_path / "text.onnx").write_text("no model")
    assert main(("bench", str(path), "--against", "onnx", str(tmp_path / "text.onnx"))) == 1
    assert "text.onnx: ONNX Runtime does not run it" in capsys.readouterr().err
