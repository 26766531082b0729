"""64 tokens of a small GPT in one run, against the same kernels called from a C loop, one thread each.

The model is that of ``examples/generate``: 4 layers, width 128, 4 heads, 256 tokens, context 128.
"""

from __future__ import annotations

import ctypes
import importlib.util
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

import rig
from benchmarks.build import reference
from benchmarks.measure import Result, pairs

ROOT = Path(__file__).resolve().parents[2]
PROMPT, LENGTH = [1, 2, 3, 4], 68


class _Entry(ctypes.Structure):
    _fields_ = (
        ("f", ctypes.c_uint64), ("words", ctypes.c_uint64), ("iterations", ctypes.c_uint64), ("trip", ctypes.c_uint64),
    )  # fmt: skip


def _gpt() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpt", ROOT / "examples" / "generate" / "gpt.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class _Table:
    """The compiled kernels in the schedule's order, over memory of their own."""

    def __init__(self, compiled: Any, tokens: np.ndarray) -> None:
        from tolk_engine.schedule import Loop, SlotRef

        schedule = compiled.schedule
        self._image = rig.Image.load(rig.host(), compiled.image)
        self._kept: list[Any] = []
        self._compiled = compiled
        self._slots = [np.zeros(s.nbytes + 64, np.uint8) for s in schedule.slots]
        self._storages = [np.zeros(s.nbytes + 64, np.uint8) for s in schedule.storages]
        for array, storage in zip(self._storages, schedule.storages, strict=True):
            if storage.init is not None:
                self._at(array)[: storage.nbytes] = np.frombuffer(storage.init, np.uint8)
        self._at(self._slots[0])[: tokens.nbytes] = tokens.view(np.uint8)
        self._blocks = {True: self._slots, False: self._storages}
        self._is_slot = SlotRef
        (loop,) = [c for c in schedule.calls if isinstance(c, Loop)]
        before = schedule.calls[: schedule.calls.index(loop)]
        assert loop is schedule.calls[-1] and not any(isinstance(c, Loop) for c in loop.calls)
        self.before, self.n = len(before), len(loop.calls)
        rows = [self._row(call, loop.name) for call in (*before, *loop.calls)]
        self.table = (_Entry * len(rows))(*rows)

    def out(self, nbytes: int) -> np.ndarray:
        """Return what was generated."""
        return self._at(self._slots[1])[:nbytes].view(np.int32)

    def _at(self, array: np.ndarray) -> np.ndarray:
        return array[-array.ctypes.data % 64 :]

    def _row(self, call: Any, trip: str) -> _Entry:
        code = self._compiled.kernels[call.kernel]
        words = []
        for position in code.arg_order:
            arg = call.args[position]
            blocks = self._blocks[isinstance(arg.node, self._is_slot)]
            words.append(self._at(blocks[arg.node.index]).ctypes.data + arg.offset)
        numbers = {"prompt": len(PROMPT), "length": LENGTH, trip: 0}
        words += [numbers[v] if isinstance(v, str) else v for v in call.values]
        block = (ctypes.c_uint64 * len(words))(*words)
        self._kept.append(block)
        at = ctypes.addressof(block)
        moved = at + 8 * (len(code.arg_order) + call.values.index(trip)) if trip in call.values else 0
        return _Entry(self._image.resolve(code.symbol).entry, at, code.iterations, moved)


def _ours(compiled: Any, tokens: np.ndarray, folder: str) -> tuple[Callable[[], float], np.ndarray]:
    path = Path(folder) / "gpt.rig"
    compiled.save(path)
    model = rig.open(path, device=rig.host(threads=1))
    out = np.zeros(tokens.shape, np.int32)
    bound = model.bind({"tokens": tokens}, {"out": out}, {"prompt": len(PROMPT), "length": LENGTH})

    def sample() -> float:
        rig.host(threads=1)
        start = time.perf_counter()
        bound.run()
        return 1e3 * (time.perf_counter() - start)

    return sample, out


def measure() -> Result:
    """Measure both, and hold the tokens against NumPy's."""
    import tolk_engine

    gpt = _gpt()
    given = gpt.weights()
    tokens = np.zeros(gpt.CONTEXT, np.int32)
    tokens[: len(PROMPT)] = PROMPT
    compiled = tolk_engine.compile(gpt.schedule(given), f"{rig.host().arch},tune=native")
    loop = reference("trips").trips
    loop.restype = ctypes.c_double
    loop.argtypes = (ctypes.c_void_p, *[ctypes.c_uint64] * 3)
    table = _Table(compiled, tokens)

    def against() -> float:
        return float(loop(ctypes.addressof(table.table), table.before, table.n, LENGTH - 1))

    with tempfile.TemporaryDirectory() as folder:
        value, found = _ours(compiled, tokens, folder)
        ours, theirs = pairs(value, against)
    want = gpt.reference(given, PROMPT, LENGTH)
    for name, got in (("the program", found), ("the C loop", table.out(tokens.nbytes))):
        if got[:LENGTH].tolist() != want:
            raise AssertionError(f"{name} generates {got[:LENGTH].tolist()}, NumPy {want}")
    side = {"tokens_a_second": 1e3 * (LENGTH - 1) / ours.median, "kernels_a_token": table.n}
    return Result("decode", "a small GPT, 64 tokens in one run", "ms", ours, theirs, 1.2, 15, side)
