"""The works, one module each; `ALL` maps a work's name to the function that measures it."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.measure import Result
from benchmarks.works import (
    call,
    cold,
    copy64m,
    crowd4,
    decode,
    file,
    idle,
    kernels1000,
    load2000,
    load_warm,
    loop,
    model_call,
    models,
    outputs60,
    split2,
    wait2,
)

ALL: dict[str, Callable[[], Result]] = {
    "kernels1000": kernels1000.measure,
    "loop": loop.measure,
    "decode": decode.measure,
    "call": call.measure,
    "model_call": model_call.measure,
    "load2000": load2000.measure,
    "wait2": wait2.measure,
    "idle": idle.measure,
    "cold": cold.measure,
    "cold_ort": cold.measure_ort,
    "load_warm": load_warm.measure,
    "outputs60": outputs60.measure,
    "copy64m_part": copy64m.measure_part,
    "copy64m_move": copy64m.measure_move,
    "file_host": file.measure_host,
    "file_memory": file.measure_memory,
    "split2": split2.measure,
    "split2_many": split2.measure_many,
    "crowd4": crowd4.measure,
    "ort_silero": models.measure_silero,
    "ort_magika": models.measure_magika,
    "ort_nudenet": models.measure_nudenet,
}
