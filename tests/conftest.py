"""What all tests share: the checks' random data is the same in every run, and slow machines are no failure."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "rig", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("rig")
