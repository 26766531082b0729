"""A run with sixty bound outputs of 1 MiB, against one with one output of 60 MiB: outputs cost bytes, not a count."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import rig
import rig.program
from benchmarks.build import shared
from benchmarks.measure import Result, pairs, per_call
from rig.program.description import Data, Fixed, Image, Input, InputSlot, Launch, Program, Ref, Submit, Use

_FILL = """
#include <stdint.h>
void fill(const uint64_t *words, uint64_t begin, uint64_t end) {
    float *x = (float *)words[0];
    for (uint64_t i = begin; i < end; i++)
        x[i] = 1.0f;
}
"""
MIB = 1 << 20


def _run(outputs: int, nbytes: int) -> Callable[[], float]:
    host = rig.host(threads=1)
    one = Fixed(1)
    parts = tuple(
        Launch(0, "fill", Data(bytes(8)), (Ref(i, 0, Use.WRITE),), threads=(Fixed(nbytes // 4), one, one))
        for i in range(outputs)
    )
    program = Program(
        devices=(host.arch,),
        images=(Image(0, Data(shared("fill", _FILL).read_bytes())),),
        inputs=(Input(0, nbytes),) * outputs,
        steps=(Submit(0, parts, tuple(InputSlot(i) for i in range(outputs))),),
    )
    loaded = rig.program.load(program, [host])
    arrays = [np.zeros(nbytes // 4, np.float32) for _ in range(outputs)]
    bound = loaded.bound(loaded.frame([rig.Buffer.of(a, writable=True) for a in arrays]))
    timed = per_call(bound.run, 3)

    def sample() -> float:
        spent = timed() / 1e6
        if not all(a[-1] == 1 for a in arrays):
            raise AssertionError("an output was not written")
        return spent

    return sample


def measure() -> Result:
    """Measure both in turns."""
    value, against = pairs(_run(60, MIB), _run(1, 60 * MIB), n=25)
    return Result("outputs60", "60 outputs of 1 MiB", "ms", value, against, 1.1, 25)
