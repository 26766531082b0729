"""Functions of a C library as kernels of a captured function."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensors import launches
from tinygrad import Tensor

import rig
import tolk_engine
from rig.errors import Invalid, Refused
from tolk_engine import CFunction, Spec, Var, capture

SOURCE = r"""
#include <stdint.h>
#include <math.h>
#include <string.h>
#define KERNEL(name) void name(const uint64_t *w, uint64_t begin, uint64_t end)
#define EACH for (uint64_t i = begin; i < end; i++)
KERNEL(twice) { float *y = (float *)w[0]; const float *x = (const float *)w[1]; EACH y[i] = 2 * x[i]; }
KERNEL(split) { /* quotient and remainder */
  int32_t *q = (int32_t *)w[0]; int64_t *r = (int64_t *)w[1]; const int32_t *x = (const int32_t *)w[2];
  EACH { q[i] = x[i] / (int64_t)w[3]; r[i] = x[i] % (int64_t)w[3]; }
}
KERNEL(count) { double *y = (double *)w[0]; EACH y[i] = sqrt((double)i) + (int64_t)w[1]; }
KERNEL(ranges) { uint64_t *y = (uint64_t *)w[0]; EACH y[i] = (begin << 32) | end; }
"""
ROW = np.arange(6, dtype="float32")


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("foreign") / "lib.so"
    command = ["gcc", "-O2", "-shared", "-fPIC", "-x", "c", "-", "-o", str(path), "-lm"]
    subprocess.run(command, input=SOURCE.encode(), check=True)
    return path


def opened(schedule: Any, folder: Path, **more: Any) -> rig.Model:
    tolk_engine.compile(schedule, jobs=1).save(folder / "m.rig")
    return rig.open(folder / "m.rig", **more)


def twice(library: Path) -> CFunction:
    return CFunction(library, "twice", lambda x: Spec(x.shape), iterations=lambda x: x.numel())


DEVICES: dict[str, Callable[[], Any]] = {
    "host": lambda: None,
    "memory": lambda: rig.memory_device("far"),
    "out of reach": lambda: rig.memory_device("far", borrows=False, delay=0.001),
}


@pytest.mark.parametrize("kind", DEVICES)
def test_it_is_a_kernel_among_the_compiler_s(library: Path, tmp_path: Path, kind: str) -> None:
    f = twice(library)
    s = capture(lambda x: (f(f(x + 1)) - 1).reshape(2, 3), Spec((6,)))
    assert len(launches(s)) == 4
    model = opened(s, tmp_path, device=DEVICES[kind]())
    assert model(ROW).tolist() == (4 * (ROW + 1) - 1).reshape(2, 3).tolist()


def test_what_it_takes_is_dense_whatever_the_tensor_is(library: Path, tmp_path: Path) -> None:
    f = twice(library)

    def views(x: Tensor) -> tuple[Tensor, ...]:
        return f(x.transpose()), f(x[1:]), f(x.flip(1)), f(x[:, :1].expand(2, 3)), f(x[:0])

    found = opened(capture(views, Spec((2, 3))), tmp_path)(ROW.reshape(2, 3))
    x = ROW.reshape(2, 3)
    for got, want in zip(found, (x.T, x[1:], x[:, ::-1], np.broadcast_to(x[:, :1], (2, 3)), x[:0]), strict=True):
        assert got.tolist() == (2 * want).tolist()


def test_several_outputs_of_several_types_and_a_number(library: Path, tmp_path: Path) -> None:
    specs = Spec((15,), "int32"), Spec((15,), "int64")
    f = CFunction(library, "split", specs, iterations=15)
    x = np.arange(-7, 8, dtype="int32")
    for n in (3, -4):
        quotient, rest = opened(capture(lambda x, n=n: f(x, n), Spec((15,), "int32")), tmp_path)(x)
        assert quotient.tolist() == [int(v / n) for v in x.tolist()] and rest.dtype == np.int64
        assert (quotient * n + rest).tolist() == x.tolist()


def test_a_number_may_be_a_variable_of_the_run(library: Path, tmp_path: Path) -> None:
    f = CFunction(library, "count", Spec((4,), "float64"), iterations=4)
    s = capture(lambda k: f(k), Var("k", -5, 5))
    model = opened(s, tmp_path)
    for k in (-5, 0, 4):
        assert model(k=k).tolist() == [np.sqrt(i) + k for i in range(4)]
    assert capture(lambda: f(3)).calls == capture(lambda: f(3)).calls


def test_work_that_is_worth_it_is_split_over_cores(library: Path) -> None:
    f = CFunction(library, "ranges", Spec((64,), "uint64"), iterations=64, ops=1 << 26)
    linked = tolk_engine.link(tolk_engine.compile(capture(lambda: f()), jobs=1), {"CPU": rig.host(threads=2)})
    out = tolk_engine.slots(linked)
    tolk_engine.run(linked, out)
    assert out[0] is not None
    found = np.frombuffer(out[0].read(), "uint64")
    cuts = sorted({(int(v) >> 32, int(v) & 0xFFFFFFFF) for v in found})
    assert cuts[0][0] == 0 and cuts[-1][1] == 64 and len(cuts) > 1
    assert all(a[1] == b[0] for a, b in pairwise(cuts))


def test_equal_calls_are_one_kernel_and_the_library_is_there_once(library: Path) -> None:
    f = twice(library)
    made = tolk_engine.compile(capture(lambda x, y: (f(x), f(y), f(f(x + 1))), Spec((6,)), Spec((6,))), jobs=1)
    assert [k.name for k in made.kernels].count("twice") == 1
    assert sum(image.binary.bytes[:4] == b"\x7fELF" for image in made.to_program().images) == 1


def test_a_fresh_process_needs_no_library(library: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.so"
    copy.write_bytes(library.read_bytes())
    f = twice(copy)
    opened(capture(lambda x: f(x) + 1, Spec((6,))), tmp_path)
    copy.unlink()
    script = f"""
import rig, sys
out = bytearray(24)
rig.open({str(tmp_path / "m.rig")!r}).bind({{"x": {ROW.tobytes()!r}}}, {{"out": out}}).run()
print(memoryview(out).cast("f").tolist())
assert "tinygrad" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == (f"{(2 * ROW + 1).tolist()}\n", "")


def test_constants_are_not_run_through_it_at_capture(library: Path, tmp_path: Path) -> None:
    f = twice(library)
    table = Tensor(ROW).to("CPU")
    s = capture(lambda x: f(table) + x, Spec((6,)))
    assert len(launches(s)) == 2
    assert opened(s, tmp_path)(ROW).tolist() == (3 * ROW).tolist()
    with pytest.raises(Invalid, match="asks for a tensor's value that twice makes"):
        capture(lambda x: x * f(table).sum().item(), Spec((6,)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda lib: CFunction(b"text", "f", Spec((1,))), "the library is no shared library for x86-64 or arm64"),
        (lambda lib: CFunction(lib, "twic", Spec((1,))), "lib.so has no function named 'twic'"),
        (lambda lib: twice(lib)(Tensor.empty(3, device="CPU"), 1.5), "twice: argument 1 is float, expected a tensor"),
        (lambda lib: CFunction(lib, "twice", 3)(Tensor.empty(3, device="CPU")), "'int' object is not iterable"),
        (lambda lib: CFunction(lib, "twice", [3])(Tensor.empty(3, device="CPU")), "twice: an output is 3, expected a"),
        (lambda lib: CFunction(lib, "twice", ())(Tensor.empty(3, device="CPU")), "twice: it has no outputs"),
        (lambda lib: CFunction(lib, "twice", Spec((3,)), ops=-1)(Tensor.empty(3, device="CPU")), "twice: ops is -1"),
        (lambda lib: capture(twice(lib), Spec((Var("n", 1, 4),))), "twice: tensor 0 must have a fixed shape"),
    ],
)  # fmt: skip
def test_what_it_cannot_be_is_refused(library: Path, make: Any, message: str) -> None:
    with pytest.raises((Invalid, TypeError)) as e:
        make(library)
    assert message in str(e.value)


def test_code_for_another_machine_is_refused(library: Path) -> None:
    s = capture(twice(library), Spec((6,)))
    with pytest.raises(Invalid, match="function 'twice' is x86_64 code, the target is arm64"):
        tolk_engine.compile(s, "arm64", jobs=1)


def test_a_name_that_is_no_function_is_refused_at_load(library: Path, tmp_path: Path) -> None:
    f = CFunction(library, ".dynstr", lambda x: Spec(x.shape))  # the name of a section
    with pytest.raises(Refused, match=r"\.dynstr"):
        opened(capture(lambda x: f(x), Spec((6,))), tmp_path)
