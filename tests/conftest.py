"""Settings of the whole suite."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# No test is judged by its time: machines are shared.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")
