"""Models: calls with arrays by name, bound memory, and the rule of who owns what."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import made
import ml_dtypes
import msgspec
import numpy as np
import pytest

import rig
from rig.errors import FormatError, Invalid, Lost, Refused
from rig.model import Model, Tensor


def far(name: str = "far", **knobs: Any) -> Any:
    return rig.memory_device(name, **knobs)


WAYS: dict[str, Callable[[made.Made, Path], Model]] = {
    "loaded": lambda model, folder: model.load(),
    "opened": lambda model, folder: model.open(folder),
    "far": lambda model, folder: model.open(folder, far()),
    "far and late": lambda model, folder: model.load(far(delay=0.01)),
    "far and out of reach": lambda model, folder: model.load(far(borrows=False, alignment=1)),
}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[made.Made], Model]:
    make = WAYS[request.param]
    return lambda model: make(model, tmp_path)


FOUR = np.array([1, 2, 3, 4], "float32")

# Calls.


def test_one_output_is_an_array(way: Callable[[made.Made], Model]) -> None:
    model = way(made.add_one(4))
    for _ in range(3):
        result = model(FOUR)
        assert type(result) is np.ndarray
        assert result.dtype == np.float32
        assert result.tolist() == [2, 3, 4, 5]
    assert model(x=FOUR).tolist() == [2, 3, 4, 5]


def test_several_outputs_are_a_named_tuple(way: Callable[[made.Made], Model]) -> None:
    model = way(made.same_and_next())
    result = model(FOUR)
    assert result._fields == ("same", "next")
    assert isinstance(result, tuple)
    assert result.same.tolist() == [1, 2, 3, 4]
    assert result.next.tolist() == [2, 3, 4, 5]


def test_several_inputs_by_position_and_by_name(way: Callable[[made.Made], Model]) -> None:
    model = way(made.scaled_image())
    image, scale = np.arange(48, dtype="float32").reshape(1, 3, 4, 4), np.float64(0.5)
    want = image * np.float32(0.5)
    for result in (model(image, scale), model(image, scale=scale), model(scale=scale, image=image)):
        assert np.array_equal(result, want)


def test_weights_are_there(way: Callable[[made.Made], Model]) -> None:
    weight = np.arange(10, dtype="float32")
    model = way(made.times_weight(weight.tobytes(), b"abc"))
    assert np.array_equal(model(np.full(10, 2, "float32")), weight * 2)


def test_names_that_are_no_python_names() -> None:
    kind = ("float32", (4,))
    model = made.Made(
        {"in.0": kind}, {"out/0": kind, "class": kind},
        made.step(made.launch("add_one_f32", 2, 4), made.copy(1, 2, 16), slots=(1, 0, 2)),
    ).load()  # fmt: skip
    result = model(**{"in.0": FOUR})
    assert result._fields == ("out_0", "class_")
    assert model(FOUR, out={"out/0": FOUR.copy()}).out_0.tolist() == [2, 3, 4, 5]


def test_empty_arrays() -> None:
    kind = ("float32", (0, 3))
    model = made.Made({"x": kind}, {"y": kind}, made.step(made.launch("add_one_f32", 2, 0), slots=(1, 0))).load()
    assert model(np.zeros((0, 3), "float32")).shape == (0, 3)
    model.bind({"x": b""}, {"y": bytearray()}).run()


def test_narrow_floats() -> None:
    kind = ("bfloat16", (4,))
    model = made.Made({"x": kind}, {"y": kind}, made.step(made.copy(1, 0, 8), slots=(1, 0))).load()
    narrow = FOUR.astype(ml_dtypes.bfloat16)
    for value in (narrow, narrow.view("uint16")):
        result = model(value)
        assert result.dtype == narrow.dtype
        assert np.array_equal(result, narrow)
    out = np.zeros(4, ml_dtypes.bfloat16)
    assert model(narrow, out={"y": out}) is out
    assert np.array_equal(out, narrow)


def test_other_objects_with_memory() -> None:
    class Exports:
        def __init__(self, array: np.ndarray) -> None:
            self.array = array

        def __dlpack__(self, **kwargs: Any) -> Any:
            return self.array.__dlpack__(**kwargs)

        def __dlpack_device__(self) -> Any:
            return self.array.__dlpack_device__()

    model = made.add_one(4).load()
    for value in (memoryview(FOUR), memoryview(bytearray(FOUR.tobytes())).cast("f"), Exports(FOUR)):
        assert model(value).tolist() == [2, 3, 4, 5]


@pytest.mark.case("C04")
def test_arrays_of_any_layout_keep_their_values(way: Callable[[made.Made], Model]) -> None:
    shape = (1, 2, 2, 2)
    kind = ("float32", shape)
    model = way(made.Made({"x": kind}, {"y": kind}, made.step(made.launch("add_one_f32", 2, 8), slots=(1, 0))))
    base = np.arange(8, dtype="float32").reshape(shape)
    wide = np.arange(16, dtype="float32").reshape(1, 2, 2, 4)
    read_only = np.frombuffer(base.tobytes(), "float32").reshape(shape)
    for value in (
        base.transpose(0, 2, 3, 1), base[:, ::-1], wide[..., ::2], np.broadcast_to(np.float32(3), shape),
        np.asfortranarray(base), base.astype(">f4"), read_only,
    ):  # fmt: skip
        assert np.array_equal(model(value), value + 1)


@pytest.mark.case("C04")
def test_scalars() -> None:
    model = made.Made(
        {"x": ("float64", ())}, {"y": ("float64", ())}, made.step(made.launch("add_one_f64", 2, 1), slots=(1, 0))
    ).load()
    for value in (np.float64(1.5), np.array(1.5), np.array(1.5).astype(">f8")):
        assert model(value).tolist() == 2.5


# out=


def test_out_is_written_and_returned(way: Callable[[made.Made], Model]) -> None:
    model = way(made.same_and_next())
    out = np.zeros(4, "float32")
    result = model(FOUR, out={"next": out})
    assert result.next is out
    assert out.tolist() == [2, 3, 4, 5]
    assert result.same.tolist() == [1, 2, 3, 4]


def test_out_may_be_an_input_of_the_same_call(way: Callable[[made.Made], Model]) -> None:
    model = way(made.same_and_next())
    both = FOUR.copy()
    result = model(both, out={"next": both})
    assert result.same.tolist() == [1, 2, 3, 4]
    assert both.tolist() == [2, 3, 4, 5]


NEXT = r"output 'next' \(position 1\): "
NEXT_WANTS = NEXT + r"expected float32 of shape \(4,\), found "
READ_ONLY = np.zeros(4, "float32")
READ_ONLY.flags.writeable = False


@pytest.mark.parametrize(
    ("out", "message"),
    [
        ({"nxt": FOUR.copy()}, r"'nxt' is no output .* has 2 outputs \('same', 'next'\); did you mean 'next'"),
        ({"next": np.zeros(5, "f4")}, NEXT_WANTS + r"float32 of shape \(5,\): axis 0 is 5"),
        ({"next": np.zeros(4)}, NEXT_WANTS + r"float64 of shape \(4,\)"),
        ({"next": np.zeros(8, "f4")[::2]}, NEXT + r".* with strides \(8,\)"),
        ({"next": np.zeros(4, ">f4")}, NEXT + ".* in the other byte order"),
        ({"next": READ_ONLY}, NEXT + ".* that is read-only"),
        ({"next": np.zeros(17, "u1")[1:].view("f4")}, NEXT + "its memory starts 1 bytes past a multiple of 4"),
        ({"next": [0, 0, 0, 0]}, NEXT + ".* found a list"),
        ({"next": None}, NEXT + ".* found None"),
    ],
)  # fmt: skip
def test_out_that_does_not_fit(out: dict[str, Any], message: str) -> None:
    model = made.same_and_next().load()
    with pytest.raises(Invalid, match=message):
        model(FOUR, out=out)
    same = np.zeros(4, "float32")
    with pytest.raises(Invalid, match=message):
        model(FOUR, out={"same": same, **out})
    assert not same.any()


def test_two_outputs_may_not_share_memory() -> None:
    both = np.zeros(4, "float32")
    with pytest.raises(Invalid, match=r"output 'next' \(position 1\): its memory is also that of another output"):
        made.same_and_next().load()(FOUR, out={"same": both, "next": both})


# Binding.


def test_bound_memory_is_read_and_written_in_place(way: Callable[[made.Made], Model]) -> None:
    model = way(made.same_and_next())
    x, same, after = FOUR.copy(), np.zeros(4, "float32"), bytearray(16)
    bound = model.bind({"x": x}, {"same": same, "next": after})
    for add in range(3):
        x[:] = FOUR + add
        assert bound.run() is None
        assert np.array_equal(same, FOUR + add)
        assert np.array_equal(np.frombuffer(after, "float32"), FOUR + add + 1)


def test_submit_gives_points(way: Callable[[made.Made], Model]) -> None:
    model = way(made.add_one(4))
    y = np.zeros(4, "float32")
    bound = model.bind({"x": FOUR}, {"y": y})
    for point in bound.submit():
        assert point.wait(10)
    assert y.tolist() == [2, 3, 4, 5]


def test_bound_memory_is_kept_alive() -> None:
    model = made.add_one(4).load()
    y = np.zeros(4, "float32")
    bound = model.bind({"x": FOUR.copy()}, {"y": y})
    del model
    junk = [np.full(4, 9, "float32") for _ in range(100)]
    bound.run()
    assert y.tolist() == [2, 3, 4, 5]
    assert len(junk) == 100


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ({}, {"y": bytearray(16)}, r"input 'x' \(position 0\): expected float32 of shape \(4,\), but it is missing"),
        ({"x": FOUR}, {}, r"output 'y' \(position 0\): expected float32 of shape \(4,\), but it is missing"),
        ({"x": FOUR, "xx": FOUR}, {"y": bytearray(16)}, r"'xx' is no input .* did you mean 'x'"),
        ({"x": bytes(15)}, {"y": bytearray(16)}, r"input 'x' \(position 0\): .*15 raw bytes where 16 are expected"),
        ({"x": FOUR[::-1]}, {"y": bytearray(16)}, r"input 'x' \(position 0\): .*strides \(-4,\)"),
        ({"x": FOUR.astype(">f4")}, {"y": bytearray(16)}, r"input 'x' \(position 0\): .*in the other byte order"),
        ({"x": FOUR.astype("i4")}, {"y": bytearray(16)}, r"input 'x' \(position 0\): expected float32 .*found int32"),
        ({"x": FOUR}, {"y": bytes(16)}, r"output 'y' \(position 0\): .*read-only"),
        ({"x": [1.0]}, {"y": bytearray(16)}, r"input 'x' \(position 0\): .*found a list"),
        ({"x": memoryview(bytes(32))[3:19]}, {"y": bytearray(16)}, r"input 'x' .* starts 3 bytes past a multiple of 4"),
    ],
)  # fmt: skip
def test_bound_memory_that_does_not_fit(inputs: dict[str, Any], outputs: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        made.add_one(4).load().bind(inputs, outputs)


@pytest.mark.case("C03")
def test_bound_outputs_share_no_memory() -> None:
    model = made.same_and_next().load()
    both = np.zeros(8, "float32")
    with pytest.raises(
        Invalid, match=r"output 'same' \(position 0\): its memory is also that of input 'x' \(position 0\)"
    ):
        model.bind({"x": both[:4]}, {"same": both[3:7], "next": bytearray(16)})
    with pytest.raises(Invalid, match=r"output 'next' \(position 1\): its memory is also that of output 'same'"):
        model.bind({"x": FOUR}, {"same": both[:4], "next": both[2:6]})
    model.bind({"x": FOUR}, {"same": both[:4], "next": both[4:]}).run()


WITHOUT = """
import sys
sys.path[:0] = eval(sys.argv[2])
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "numpy":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Refuse())
import rig
model = rig.open(sys.argv[1])
y = bytearray(4)
import struct
model.bind({"x": struct.pack("f", 1.5)}, {"y": y}).run()
print(struct.unpack("f", y))
try:
    model(y)
except ImportError as error:
    print(error)
heavy = ("numpy", "tinygrad", "tolk_engine", "zipfile", "pathlib", "dataclasses", "importlib.metadata")
print([name for name in heavy if name in sys.modules])
"""


def test_binding_needs_no_numpy_and_calls_name_it(tmp_path: Path) -> None:
    made.add_one().save(tmp_path / "m.rig")
    done = subprocess.run(
        [sys.executable, "-S", "-c", WITHOUT, str(tmp_path / "m.rig"), repr(sys.path)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr
    assert lines[0] == "(2.5,)"
    assert "the package numpy is not installed: install numpy, or use Model.bind" in lines[1]
    assert lines[2] == "[]"


WRONG: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((FOUR,), {"x": FOUR}, r"input 'x' \(position 0\): it is given by position and by name"),
    ((FOUR,), {"z": FOUR}, r"'z' is no input \(found float32 of shape \(4,\)\)"),
    ((), {"z": FOUR}, r"'z' is no input .*; input 'x' \(position 0\): .* is missing"),
    ((), {}, r"input 'x' \(position 0\): .* is missing"),
    ((FOUR, FOUR), {}, r"position 1: the model has 1 input \('x'\), found one more, float32 of shape \(4,\)"),
]


@pytest.mark.case("C34")
@pytest.mark.parametrize(("args", "named", "message"), WRONG)
def test_wrong_arguments(args: tuple[Any, ...], named: dict[str, Any], message: str) -> None:
    with pytest.raises(Invalid, match=message):
        made.add_one(4).load()(*args, **named)


# Opening.


def test_open_names_the_source(tmp_path: Path) -> None:
    (tmp_path / "other.rig").write_bytes(b"words")
    with pytest.raises(FormatError, match=r"other\.rig: not a rig artifact: it looks like text"):
        rig.open(tmp_path / "other.rig")
    with pytest.raises(FileNotFoundError):
        rig.open(tmp_path / "missing.rig")
    with pytest.raises(Invalid, match="not from int"):
        rig.open(3)


def test_open_from_memory(tmp_path: Path) -> None:
    made.add_one(4).save(tmp_path / "m.rig")
    assert rig.open((tmp_path / "m.rig").read_bytes())(FOUR).tolist() == [2, 3, 4, 5]


@pytest.mark.case("C18")
def test_code_for_another_processor_is_refused(tmp_path: Path) -> None:
    model = made.add_one(4)
    other = "arm64" if made.ARCH.startswith("x86") else "x86-64-v1"
    model.program = msgspec.structs.replace(model.program, devices=(other,))
    model.save(tmp_path / "other.rig")
    with pytest.raises((Invalid, Refused)) as error:
        rig.open(tmp_path / "other.rig")
    assert other in str(error.value)
    assert rig.host().arch in str(error.value)


def test_the_wrong_number_of_devices(tmp_path: Path) -> None:
    made.add_one(4).save(tmp_path / "m.rig")
    with pytest.raises(Invalid, match="the program runs on 1 devices, 2 were given"):
        rig.open(tmp_path / "m.rig", device=[rig.host(), rig.host()])
    assert rig.open(tmp_path / "m.rig", device=[rig.host()])(FOUR).tolist() == [2, 3, 4, 5]


@pytest.mark.case("C20")
def test_a_model_does_not_depend_on_its_file(tmp_path: Path) -> None:
    weight = np.arange(100_000, dtype="float32")
    model = made.times_weight(weight.tobytes()).open(tmp_path)
    (tmp_path / "made.rig").write_bytes(b"")
    (tmp_path / "made.rig").write_bytes(bytes(1 << 20))
    assert np.array_equal(model(np.ones(100_000, "float32")), weight)


@pytest.mark.case("C20")
def test_a_changed_weight_is_noticed(tmp_path: Path) -> None:
    made.times_weight(np.arange(1, 5, dtype="float32").tobytes()).save(tmp_path / "m.rig")
    data = bytearray((tmp_path / "m.rig").read_bytes())
    data[data.index(np.arange(1, 5, dtype="float32").tobytes())] ^= 1
    with pytest.raises(FormatError, match=r"weight 'floats'.*the file is damaged"):
        rig.open(data)


@pytest.mark.case("C35")
def test_progress(tmp_path: Path) -> None:
    made.times_weight(bytes(400), b"abc").save(tmp_path / "m.rig")
    seen: list[tuple[int, int]] = []
    rig.open(tmp_path / "m.rig", progress=lambda done, total: seen.append((done, total)))
    assert seen[-1] == (403, 403)
    assert seen == sorted(seen)

    class Enough(Exception):
        pass

    def stop(done: int, total: int) -> None:
        raise Enough("enough")

    with pytest.raises(Enough, match="enough"):
        rig.open(tmp_path / "m.rig", progress=stop)


def test_signature_and_repr(tmp_path: Path) -> None:
    model = made.scaled_image().open(tmp_path)
    assert model.signature.inputs[1] == Tensor("scale", "float64", (), 1)
    assert "image: float32[1, 3, 4, 4], scale: float64[]" in repr(model)
    assert len(model.loaded.description.inputs) == 3


@pytest.mark.case("C03")
def test_programs_that_break_the_rule_of_ownership_are_refused() -> None:
    kind = ("float32", (4,))
    copies = made.step(made.launch("add_one_f32", 2, 4), slots=(0, 1))
    with pytest.raises(Invalid, match=r"^input 'x' \(position 0\): the program writes it$"):
        made.Made({"x": kind}, {"y": kind}, copies).load()
    with pytest.raises(Invalid, match=r"^output 'z' \(position 1\): the program does not write it$"):
        made.Made(
            {"x": kind}, {"y": kind, "z": kind}, made.step(made.launch("add_one_f32", 2, 4), slots=(1, 0))
        ).load()  # fmt: skip


# Threads and failures.


@pytest.mark.case("C17")
def test_calls_from_many_threads(way: Callable[[made.Made], Model]) -> None:
    model = way(made.same_and_next())
    wrong: list[Any] = []

    def work(number: int) -> None:
        x = np.full(4, number, "float32")
        for _ in range(30):
            result = model(x)
            if not (result.same == number).all() or not (result.next == number + 1).all():
                wrong.append(result)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_device_that_fails_is_lost() -> None:
    model = made.add_one(4).load(far(fail_at=2))
    with pytest.raises(Lost):
        for _ in range(3):
            model(FOUR)
    with pytest.raises(Lost):
        model(FOUR)
