"""Opening a file of 2000 kernels and 50 MB of weights, against read() of the file into new memory, page cache warm."""

from __future__ import annotations

import ctypes
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

import rig
from benchmarks.build import object_file, reference
from benchmarks.measure import Result, alone, pairs
from benchmarks.programs import NBYTES, kernels, pointers
from rig.model import artifact
from rig.model.artifact import Weight
from rig.model.signature import Signature, Tensor
from rig.program.description import (
    Access,
    Alloc,
    Data,
    Image,
    Input,
    InputSlot,
    Launch,
    Program,
    Ref,
    Submit,
    Use,
    View,
)
from tolk_engine.image import flat

KERNELS = 2000
MIXED = (4 << 20,) * 10 + (3 << 18,) * 10
"""Bytes of the weights: most of them in large tensors, half of the tensors small, as in usual models."""
EVEN = (1_000_000,) * 50


def save(path: Path, launches: int, weights: tuple[int, ...]) -> None:
    """Save a model of `launches` kernels, and weights of these numbers of bytes, all in use."""
    host = rig.host(threads=1)
    image = flat(object_file(f"kernels{launches}", kernels(launches)), "x86-64-v1" if "86" in host.arch else "arm64")
    data = [np.random.default_rng(i).standard_normal(n // 4, np.float32) for i, n in enumerate(weights)]
    scratch = (Alloc(0, NBYTES), Alloc(0, NBYTES))
    memory = scratch + tuple(Alloc(0, w.nbytes) for w in data)
    parts = [
        Launch(0, f"k{i}", pointers((i + 1) % 2, 2 + i // 2 % len(weights) if weights and i % 2 else i % 2))
        for i in range(launches - 1)
    ]
    parts.append(Launch(0, f"k{launches - 1}", Data(bytes(16)), (Ref(0, 0, Use.WRITE), Ref(1, 8, Use.READ))))
    fixed = tuple(
        (View(i, 0, m.nbytes), Access.READ if i >= len(scratch) else Access.READ_WRITE) for i, m in enumerate(memory)
    )
    program = Program(
        devices=(host.arch,),
        memory=memory,
        images=(Image(0, Data(image)),),
        inputs=(Input(0, NBYTES), Input(0, NBYTES)),
        steps=(Submit(0, tuple(parts), (InputSlot(1), InputSlot(0)), fixed),),
    )
    shape = (NBYTES // 4,)
    signature = Signature(
        inputs=(Tensor("x", "float32", shape, 0),),
        outputs=(Tensor("y", "float32", shape, 1),),
        compiler="gcc",
        target=host.arch,
        name="load2000",
    )
    weights_of = [
        (Weight(f"w{i}", len(scratch) + i, "float32", w.shape), memoryview(w).cast("B")) for i, w in enumerate(data)
    ]
    artifact.save(path, program, signature, weights_of)


def opening(path: Path) -> Callable[[], float]:
    """Return a measurement: milliseconds of ``rig.open``; the model is dropped outside of it."""
    host = rig.host(threads=1)

    def sample() -> float:
        start = time.perf_counter_ns()
        model = rig.open(path, device=host)
        spent = time.perf_counter_ns() - start
        del model
        return spent / 1e6

    return sample


def reading(path: Path) -> Callable[[], float]:
    """Return a measurement: milliseconds of reading the whole file into new memory."""
    readfile = reference("readfile").readfile
    readfile.restype = ctypes.c_double
    readfile.argtypes = (ctypes.c_char_p,)
    name = os.fsencode(path)

    def sample() -> float:
        spent = float(readfile(name))
        if spent < 0:
            raise OSError(f"cannot read {path}")
        return spent / 1e6

    return sample


def measure() -> Result:
    """Measure the whole file; beside it a kernel's share without weights and a KiB's share without kernels."""
    with tempfile.TemporaryDirectory() as folder:
        whole, even, bare, heavy, empty = (Path(folder) / f"{name}.rig" for name in ("w", "v", "b", "h", "e"))
        save(whole, KERNELS, MIXED)
        save(even, KERNELS, EVEN)
        save(bare, KERNELS, ())
        save(heavy, 1, MIXED)
        save(empty, 1, ())
        x = np.ones(NBYTES // 4, np.float32)
        y = rig.open(whole)(x)
        if not np.allclose(y, x * 0.999 + KERNELS * 1e-3, rtol=1e-5):
            raise AssertionError(f"the loaded model computes {y}")
        value, against = pairs(opening(whole), reading(whole))
        even_value, even_against = pairs(opening(even), reading(even))
        least = alone(opening(empty)).median
        side = {
            "us_a_kernel": (alone(opening(bare)).median - least) / KERNELS * 1e3,
            "ns_a_KiB": (alone(opening(heavy)).median - least) * 1e6 / (sum(MIXED) / 1024),
            "one_kernel_ms": least,
            "ratio_50_weights_of_1_MB": even_value.median / even_against.median,
            "file_MB": whole.stat().st_size / 1e6,
        }
    return Result("load2000", "rig.open", "ms", value, against, 1.5, 15, side)
