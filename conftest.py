"""Settings of the whole test run: how many processes, and how many examples hypothesis tries, quickly and in `hatch run test-long`."""

from __future__ import annotations

import os
import tempfile

import pytest
from hypothesis import HealthCheck, settings

# No deadline: the first example of a shape pays for a compilation.
settings.register_profile("quick", max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True)
settings.register_profile("long", settings.get_profile("quick"), max_examples=2000)
settings.load_profile("quick")


# Hundreds of tests start processes. Where these may not write what they compile beside the sources, they find it in a folder.
_COMPILED = tempfile.TemporaryDirectory(prefix="compiled-python-") if os.environ.pop("PYTHONDONTWRITEBYTECODE", None) else None
if _COMPILED is not None:
    os.environ["PYTHONPYCACHEPREFIX"] = _COMPILED.name


# Public functions compile and read no more than is declared beside them (xla_core/base/budgets.py): in all tests, and their processes.
os.environ["XLA_ENFORCE_BUDGETS"] = "1"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than cores: tests of several processes wait for each other much of their time."""
    return (os.cpu_count() or 1) + 1
