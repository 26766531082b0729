"""Four processes at once that each split their launches over all cores, against the same with one thread each.

Nothing can be won where every core is busy; nothing may be lost either.
"""

from __future__ import annotations

import subprocess
import sys
import time

from benchmarks.measure import Result, pairs

PROCESSES = 4
_ONE = """
import sys
from benchmarks.works import split2
two, one = split2._runs(1, 30000, 1)
sample = two if sys.argv[1] == "all" else one
for _ in range(4):
    sample()
print("ready", flush=True)
sys.stdin.readline()
for _ in range(200):
    sample()
"""


def _crowd(threads: str) -> float:
    """Return the milliseconds that four processes take for 200 runs each, from a common start."""
    command = [sys.executable, "-c", _ONE, threads]
    crowd = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(PROCESSES)
    ]
    try:
        for process in crowd:
            assert process.stdin is not None and process.stdout is not None
            if process.stdout.readline() != "ready\n":
                raise SystemExit("crowd4: a process did not start")
        start = time.perf_counter()
        for process in crowd:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
        for process in crowd:
            process.wait()
        return 1e3 * (time.perf_counter() - start)
    finally:
        for process in crowd:
            process.kill()
            process.communicate()


def measure() -> Result:
    """Measure 200 runs of a split launch of a millisecond in each of four processes."""
    value, against = pairs(lambda: _crowd("all"), lambda: _crowd("one"), n=7, warm=1)
    return Result("crowd4", "four processes, 200 split launches of 1 ms each", "ms", value, against, 1.1, 7)
