"""How many examples Hypothesis tries: HYPOTHESIS_PROFILE=nightly tries most, `ci` is the same in every run."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings


def load_profile() -> None:
    """Load the profile that HYPOTHESIS_PROFILE names; without it `ci` where CI is set, else `default`."""
    # No deadlines: examples run beside Spark, and a slow one is not a bug.
    slow_is_fine = [HealthCheck.too_slow]
    settings.register_profile("default", deadline=None, suppress_health_check=slow_is_fine)
    settings.register_profile("ci", derandomize=True, deadline=None, suppress_health_check=slow_is_fine)
    settings.register_profile("nightly", max_examples=5000, deadline=None, suppress_health_check=slow_is_fine)
    settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci" if os.environ.get("CI") else "default"))
