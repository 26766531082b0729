"""Models made by hand: programs around kernels written in C, so that tests of models need no compiler of tensors."""

from __future__ import annotations

import platform
import struct
import subprocess
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from rig import _core
from rig.model import Model, Signature, Tensor, Weight, save
from rig.program.description import (
    Alloc,
    Copy,
    Data,
    Fixed,
    Image,
    Input,
    InputSlot,
    Launch,
    MemorySlot,
    Part,
    Program,
    Ref,
    Slot,
    Submit,
    Term,
    Use,
    View,
)  # fmt: skip

ARCH = {"x86_64": "x86-64-v1", "aarch64": "arm64"}[platform.machine()]

KERNELS = """
typedef unsigned long long u64;
#define KERNEL(name) void name(const u64 *w, u64 begin, u64 end)
#define EACH for (u64 i = begin; i < end; i++)
#define OUT(type) type *o = (type *)w[0]
#define IN(type, name, word) const type *name = (const type *)w[word]
#define ADD_ONE(name, type) KERNEL(name) { OUT(type); IN(type, x, 1); EACH o[i] = x[i] + 1; }
ADD_ONE(add_one_f32, float)
ADD_ONE(add_one_f64, double)
ADD_ONE(add_one_u8, unsigned char)
ADD_ONE(add_one_u16, unsigned short)
KERNEL(sum_twice) { OUT(float); IN(float, x, 1); float s = 0; for (u64 i = 0; i < w[2]; i++) s += 2 * x[i]; *o = s; }
KERNEL(times) { OUT(float); IN(float, x, 1); IN(float, y, 2); EACH o[i] = x[i] * y[i]; }
KERNEL(scaled) { OUT(float); IN(float, x, 1); IN(double, s, 2); EACH o[i] = (float)(x[i] * *s); }
KERNEL(wave) { OUT(float); IN(float, x, 1); EACH { float t = x[i]; o[i] = t - t * t * t / 6 + 1 - t * t / 2; } }
KERNEL(nothing) { (void)w; (void)begin; (void)end; }
"""


@cache
def library(source: str = KERNELS) -> bytes:
    """Compile C to a shared library."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "kernels.so")
        command = ["gcc", "-O2", "-shared", "-fPIC", "-nostdlib", "-x", "c", "-", "-o", str(out)]
        subprocess.run(command, input=source, text=True, check=True, timeout=60)
        return out.read_bytes()


def flat_image(requires: str, functions: tuple[str, ...] = ("f0", "f10"), sizes: int = 16) -> bytes:
    """Write a flat image of functions that return, of `sizes` bytes each, and one imported function's stub."""
    body = (b"\xc3" * sizes) * len(functions) + bytes(16)
    strings = "".join((*functions, "sqrtf", requires)).encode()
    records, at = b"", 0
    for i, name in enumerate(functions):
        records += struct.pack("<IIQ", at, len(name), sizes * i)
        at += len(name)
    records += struct.pack("<IIQ", at, 5, len(body) - 8)
    tables = records + strings
    tables += bytes(-len(tables) % 64)
    rest = tables + body
    head = struct.pack(
        "<8sIIQIIIIIII12x", b"\x93RIGIMG\n", 1, 64 + len(tables), len(body), len(functions), 1, len(strings),
        len(strings) - len(requires), len(requires), 0, _core.crc32c(rest),
    )  # fmt: skip
    return head + rest


def launch(name: str, slots: int, iterations: int, *words: int, written: int = 1) -> Launch:
    """Call kernel `name` with the first `slots` slots, of which the first `written` are written, then plain words."""
    refs = tuple(Ref(i, 8 * i, Use.WRITE if i < written else Use.READ) for i in range(slots))
    params = bytes(8 * slots) + b"".join(word.to_bytes(8, "little") for word in words)
    return Launch(0, name, Data(params), refs, threads=(Fixed(iterations), Fixed(1), Fixed(1)))


def copy(src: int, dst: int, length: int, src_offset: int = 0, dst_offset: int = 0) -> Copy:
    """Copy between slots of a step."""
    return Copy(src, (Term(Fixed(src_offset), 1),), dst, (Term(Fixed(dst_offset), 1),), length)


def step(*parts: Part, slots: tuple[int | MemorySlot, ...]) -> Submit:
    """Make a step; a slot is a program input's index, or memory."""
    made: tuple[Slot, ...] = tuple(InputSlot(slot) if isinstance(slot, int) else slot for slot in slots)
    return Submit(0, parts, made)


def memory(index: int, nbytes: int) -> MemorySlot:
    """Name the first bytes of a memory of the program."""
    return MemorySlot(View(index, 0, nbytes))


class Made:
    """A program with its signature, and the weights that belong in a file."""

    def __init__(
        self,
        inputs: dict[str, tuple[str, tuple[int, ...]]],
        outputs: dict[str, tuple[str, tuple[int, ...]]],
        *steps: Submit,
        weights: tuple[tuple[Weight, bytes], ...] = (),
        align: int = 0,
    ) -> None:
        tensors = [Tensor(n, d, s, i, align) for i, (n, (d, s)) in enumerate([*inputs.items(), *outputs.items()])]
        ins, outs = tuple(tensors[: len(inputs)]), tuple(tensors[len(inputs) :])
        self.signature = Signature(ins, outs, "by hand", ARCH, "made")
        self.weights = weights
        self.program = Program(
            devices=(ARCH,),
            memory=tuple(Alloc(0, len(data), Data(data)) for _, data in weights),
            images=(Image(0, Data(library())),),
            inputs=tuple(Input(0, tensor.nbytes) for tensor in tensors),
            steps=steps,
        )

    def load(self, device: Any = None) -> Model:
        """Make a model straight from the program."""
        import rig
        from rig.program.load import load

        device = rig.host() if device is None else device
        return Model(load(self.program, [device]), self.signature)

    def open(self, folder: Path, device: Any = None) -> Model:
        """Make a model through a file."""
        import rig

        self.save(folder / "made.rig")
        return rig.open(folder / "made.rig", device=device)

    def save(self, path: Path) -> None:
        """Write the file."""
        save(path, self.program, self.signature, self.weights)


def add_one(count: int = 1) -> Made:
    """y = x + 1 on floats."""
    return Made(
        {"x": ("float32", (count,))}, {"y": ("float32", (count,))}, step(launch("add_one_f32", 2, count), slots=(1, 0))
    )


def same_and_next(count: int = 4) -> Made:
    """The input itself, and x + 1."""
    kind = ("float32", (count,))
    return Made(
        {"x": kind}, {"same": kind, "next": kind},
        step(launch("add_one_f32", 2, count), copy(1, 2, 4 * count), slots=(2, 0, 1)),
    )  # fmt: skip


def history() -> Made:
    """Drop the oldest of five frames, append one; return the new frames and the first of them."""
    frames, frame, size = ("float32", (5, 4, 4)), ("float32", (4, 4)), 64
    parts = (copy(0, 2, 4 * size, size, 0), copy(1, 2, size, 0, 4 * size), copy(0, 3, size, size, 0))
    return Made({"frames": frames, "frame": frame}, {"new": frames, "first": frame}, step(*parts, slots=(0, 1, 2, 3)))


def sum_twice() -> Made:
    """The sum of 2x over four floats."""
    made = step(launch("sum_twice", 2, 1, 4), slots=(1, 0))
    return Made({"x": ("float32", (4,))}, {"total": ("float32", ())}, made)


def scaled_image() -> Made:
    """An image times a scalar of another element type."""
    image = ("float32", (1, 3, 4, 4))
    made = step(launch("scaled", 3, 48), slots=(2, 0, 1))
    return Made({"image": image, "scale": ("float64", ())}, {"result": image}, made)


def times_weight(weight: bytes, before: bytes = b"") -> Made:
    """x times a weight of floats, which in the file follows a weight of single bytes."""
    count = len(weight) // 4
    kind = ("float32", (count,))
    weights = (
        (Weight("bytes", 0, "uint8", (len(before),)), before),
        (Weight("floats", 1, "float32", (count,)), weight),
    )
    made = step(launch("times", 3, count), slots=(1, 0, memory(1, len(weight))))
    return Made({"x": kind}, {"y": kind}, made, weights=weights)
