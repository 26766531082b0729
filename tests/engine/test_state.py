"""State of models: tensors that a function assigns to, random counters, and `Model.reset`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tinygrad import Tensor

import rig
import tolk_engine
from tolk_engine import Spec, capture

DEVICES: dict[str, Any] = {
    "host": lambda: None,
    "memory": lambda: rig.memory_device("far"),
    "memory out of reach": lambda: rig.memory_device("far", borrows=False, delay=0.001),
}
ONE = np.ones(4, "float32")


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> Any:
    return DEVICES[request.param]()


@pytest.mark.case("C01")
def test_a_saved_model_keeps_its_state_and_resets(device: Any, tmp_path: Path) -> None:
    """Small state lies in the program, large state among the weights; the counter of random numbers is state too."""
    small = Tensor([1.0, 2.0, 3.0, 4.0], device="CPU")
    large = Tensor(np.arange(5000, dtype="float32")).to("CPU")

    def f(x: Tensor) -> dict[str, Tensor]:
        small.assign(small + x)
        large.assign(large * 2)
        return {"small": small + 0, "large": large.sum(), "noise": Tensor.rand(2, device="CPU")}

    tolk_engine.compile(capture(f, Spec((4,))), jobs=1).save(tmp_path / "m.rig")
    model = rig.open(tmp_path / "m.rig", device=device)
    first = [model(ONE) for _ in range(3)]
    assert [r.small.tolist() for r in first] == [[n + 1, n + 2, n + 3, n + 4] for n in (1, 2, 3)]
    assert [float(r.large) for r in first] == [5000 * 4999 / 2 * n for n in (2, 4, 8)]
    assert len({tuple(r.noise.tolist()) for r in first}) == 3
    for runs in (3, 1, 2):
        model.reset()
        again = [model(ONE) for _ in range(runs)]
        assert all(np.array_equal(a, b) for x, y in zip(first, again, strict=False) for a, b in zip(x, y, strict=True))
    other = rig.open(tmp_path / "m.rig")  # another load starts anew
    assert other(ONE).small.tolist() == [2, 3, 4, 5]


@pytest.mark.case("C01")
def test_state_that_is_read_before_it_is_assigned_to_is_state(tmp_path: Path) -> None:
    """What was read is not a value of its own, made anew in each run."""
    total = Tensor(np.zeros(4, "float32")).to("CPU")

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        before = (total * 1).contiguous().realize()
        total.assign(total + x)
        return before, total + 0

    tolk_engine.compile(capture(f, Spec((4,))), jobs=1).save(tmp_path / "m.rig")
    model = rig.open(tmp_path / "m.rig")
    assert [[float(v[0]) for v in model(ONE)] for _ in range(3)] == [[0, 1], [1, 2], [2, 3]]


@pytest.mark.case("C01")
def test_two_states_that_are_copies_of_copies(tmp_path: Path) -> None:
    """As where tinygrad's default device is another: the value of the second is asked for when the first is written."""
    first, second = (Tensor(np.full(4, n, "float32"), device="NPY").to("CPU:1").to("CPU") for n in (1, 2))

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        a, b = (first + 0).contiguous().realize(), (second + 0).contiguous().realize()
        first.assign(first + x)
        second.assign(second + x)
        return a, b

    tolk_engine.compile(capture(f, Spec((4,))), jobs=1).save(tmp_path / "m.rig")
    model = rig.open(tmp_path / "m.rig")
    assert [[float(v[0]) for v in model(ONE)] for _ in range(3)] == [[1, 2], [2, 3], [3, 4]]


@pytest.mark.case("C01")
def test_state_goes_through_a_loop(tmp_path: Path) -> None:
    total = Tensor(np.zeros(4, "float32")).to("CPU")

    def f(x: Tensor) -> Tensor:
        last = tolk_engine.fori_loop(0, 3, lambda i, c: c + x, total)
        total.assign(last)
        return last

    tolk_engine.compile(capture(f, Spec((4,))), jobs=1).save(tmp_path / "m.rig")
    model = rig.open(tmp_path / "m.rig")
    assert [float(model(ONE)[0]) for _ in range(3)] == [3, 6, 9]
    model.reset()
    assert float(model(ONE)[0]) == 3


@pytest.mark.case("C01")
@pytest.mark.parametrize(
    "make", [lambda a: Tensor(a, device="CPU"), lambda a: Tensor(a).to("CPU"), lambda a: Tensor(a, device="CPU") + 0]
)
def test_caches_that_a_loop_changes_in_place_are_state(tmp_path: Path, make: Any) -> None:
    caches = [make(np.zeros((4, 2), "float32")) for _ in range(2)]

    def f(x: Tensor, n: Any) -> tuple[Tensor, ...]:
        def body(i: Any, carried: list[Tensor]) -> list[Tensor]:
            for k, cache in enumerate(carried):
                cache[i : i + 1] = cache[i : i + 1] + x.reshape(1, 2) * (k + 1)
            return carried

        before = [c + 0 for c in caches]
        for cache, new in zip(caches, tolk_engine.fori_loop(0, n, body, caches), strict=True):
            cache.assign(new)
        return *before, *(c + 0 for c in caches)

    tolk_engine.compile(capture(f, Spec((2,)), tolk_engine.Var("n", 0, 4)), jobs=1).save(tmp_path / "m.rig")
    model = rig.open(tmp_path / "m.rig")
    want = [np.zeros((4, 2)), np.zeros((4, 2))]
    for n in (2, 0, 4, 1):
        found = model(np.float32([1, 2]), n=n)
        old = [w.copy() for w in want]
        for k, w in enumerate(want):
            w[:n] += np.float32([1, 2]) * (k + 1)
        assert [v.tolist() for v in found] == [w.tolist() for w in (*old, *want)]


def test_state_that_only_a_loop_has_read_is_state(tmp_path: Path) -> None:
    total = Tensor(np.ones(4, "float32")).to("CPU")

    def f(x: Tensor) -> Tensor:
        last = tolk_engine.fori_loop(0, 3, lambda i, c: c + total, x)
        total.assign(last)
        return last

    tolk_engine.compile(capture(f, Spec((4,))), jobs=1).save(tmp_path / "m.rig")
    model = rig.open(tmp_path / "m.rig")
    assert [float(model(ONE)[0]) for _ in range(3)] == [4, 13, 40]


@pytest.mark.case("C01")
def test_a_computed_constant_that_a_loop_reads_first_is_state(tmp_path: Path) -> None:
    total = Tensor(np.ones(4, "float32")).to("CPU") * 2

    def f(x: Tensor) -> Tensor:
        last = tolk_engine.fori_loop(0, 3, lambda i, c: c + total.contiguous(), x)
        total.assign(last)
        return last

    tolk_engine.compile(capture(f, Spec((4,))), jobs=1).save(tmp_path / "m.rig")
    model = rig.open(tmp_path / "m.rig")
    assert [float(model(ONE)[0]) for _ in range(3)] == [7, 22, 67]


@pytest.mark.case("C01")
def test_a_computed_constant_that_was_read_is_state(tmp_path: Path) -> None:
    total = Tensor(np.ones(4, "float32")).to("CPU") * 2

    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        before = (total.contiguous() + 0).realize()
        total.assign(total + x)
        return before, total + 0

    tolk_engine.compile(capture(f, Spec((4,))), jobs=1).save(tmp_path / "m.rig")
    model = rig.open(tmp_path / "m.rig")
    assert [[float(v[0]) for v in model(ONE)] for _ in range(3)] == [[2, 3], [3, 4], [4, 5]]


def test_a_seed_decides_the_random_numbers(tmp_path: Path) -> None:
    def f(x: Tensor) -> Tensor:
        return x + Tensor.rand(4, device="CPU")

    found = []
    for seed in (3, 3, 4):
        Tensor.manual_seed(seed)
        tolk_engine.compile(capture(f, Spec((4,))), jobs=1).save(tmp_path / "m.rig")
        model = rig.open(tmp_path / "m.rig")
        found.append([model(ONE).tolist() for _ in range(3)])
    assert found[0] == found[1] != found[2]
    assert len({tuple(r) for r in found[0] + found[2]}) == 6


def test_a_model_without_state_resets_to_itself(tmp_path: Path) -> None:
    tolk_engine.compile(capture(lambda x: x * 2, Spec((4,))), jobs=1).save(tmp_path / "m.rig")
    model = rig.open(tmp_path / "m.rig")
    model.reset()
    assert model(ONE).tolist() == [2, 2, 2, 2]
    model.reset()
    assert model(ONE).tolist() == [2, 2, 2, 2]


def test_weights_stay_where_they_lie_in_a_mapped_file_and_state_does_not(tmp_path: Path) -> None:
    table = Tensor(np.arange(5000, dtype="float32")).to("CPU")
    weight = Tensor(np.ones(5000, dtype="float32")).to("CPU")

    def f(x: Tensor) -> Tensor:
        table.assign(table + weight)
        return table[:4] + x

    tolk_engine.compile(capture(f, Spec((4,))), jobs=1).save(tmp_path / "m.rig")
    before = (tmp_path / "m.rig").read_bytes()
    model = rig.open(tmp_path / "m.rig", mmap=True)
    assert [model(ONE)[0] for _ in range(3)] == [2, 3, 4]
    model.reset()
    assert model(ONE)[0] == 2
    assert (tmp_path / "m.rig").read_bytes() == before
