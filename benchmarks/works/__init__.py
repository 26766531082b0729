"""The works, one module each; `ALL` maps a work's name to the function that measures it."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.measure import Result
from benchmarks.works import call, idle, kernels1000, load2000, model_call, wait2

ALL: dict[str, Callable[[], Result]] = {
    "kernels1000": kernels1000.measure,
    "call": call.measure,
    "model_call": model_call.measure,
    "load2000": load2000.measure,
    "wait2": wait2.measure,
    "idle": idle.measure,
}
