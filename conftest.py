"""Settings of the whole test run: how many examples hypothesis tries, in `hatch run test` and in `hatch run test-long`."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# No deadline: the first example of a shape pays for a compilation.
settings.register_profile("quick", max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("long", settings.get_profile("quick"), max_examples=2000)
settings.load_profile("quick")
