"""Profiles of the fuzz tests: `fast` by default, and `HYPOTHESIS_PROFILE=slow` for many random examples.

Examples of failures that were found stay in the tests, as `@example`.
"""

import os

from hypothesis import HealthCheck, settings

settings.register_profile(
    "fast",
    max_examples=60,
    derandomize=True,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.register_profile("slow", settings.get_profile("fast"), max_examples=1500, derandomize=False, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))
