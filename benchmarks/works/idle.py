"""The CPU time of a process whose pool and queue threads have worked and now have nothing to do."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.build import shared
from benchmarks.measure import Result, alone
from benchmarks.programs import busy, kernels

SECONDS = 2.0
PROCESSES = 3

_PROCESS = """
import os, sys, time
import rig, rig.program
from benchmarks.programs import relay, split
from pathlib import Path
image, busy = (Path(name).read_bytes() for name in sys.argv[2:])
host = rig.host(threads=max(2, len(os.sched_getaffinity(0))))
pool = rig.program.load(split(host.arch, busy, 64), [host])
a, b = rig.memory_device("a"), rig.memory_device("b")
queues = rig.program.load(relay((a.arch, b.arch), (image, image), 10), [a, b])
frames = pool.frame([]), queues.frame([])
for _ in range(20):
    pool.run(frames[0])
    for point in queues.run(frames[1]):
        point.wait()
time.sleep(0.1)
before = time.process_time()
time.sleep(float(sys.argv[1]))
print((time.process_time() - before) * 1e3, len(os.listdir("/proc/self/task")))
"""


def measure() -> Result:
    """Measure in fresh processes, one at a time; beside the time stands the number of the process's threads."""
    images = [str(shared("call", kernels(1))), str(shared("busy", busy()))]
    threads = 0

    def sample() -> float:
        nonlocal threads
        command = [sys.executable, "-c", _PROCESS, str(SECONDS), *images]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        spent, count = done.stdout.split()
        threads = int(count)
        if threads < 4:
            raise AssertionError(f"the process has {threads} threads: its pool or its queues were not started")
        return float(spent)

    value = alone(sample, n=PROCESSES, warm=0)
    return Result("idle", "CPU of 2 s", "ms", value, None, 20.0, PROCESSES, {"threads": threads})
