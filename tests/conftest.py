"""What all tests share: the checks' random data is the same in every run, and slow machines are no failure."""

from __future__ import annotations

import os
import signal

from hypothesis import HealthCheck, settings

settings.register_profile(
    "rig", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("rig")

# No test finds what an earlier run compiled, here or in a process that it starts; those of the cache have their own.
os.environ["RIG_CACHE"] = "0"
for _name in ("RIG_CACHE_DIR", "RIG_CACHE_SIZE", "RIG_COMPILER", "RIG_CLANG"):
    os.environ.pop(_name, None)

# A process that a shell started in the background ignores Ctrl-C, and so would all that it starts: tests send it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
