"""What the tests of operators share: they compile thousands of small programs, and half of the time was XLA's optimizer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from xla_core.engine.compile import options

# What an operator means does not depend on how its machine code is optimized. All other tests, and `hatch run ops`, compile as users do.
_QUICK = {"xla_backend_optimization_level": "0", "xla_cpu_use_fusion_emitters": "False"}


@pytest.fixture(scope="module", autouse=True)
def quickly_compiled() -> Iterator[None]:
    """Compile without optimizing machine code."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(options, "_CPU_OPTIONS", {**options._CPU_OPTIONS, **_QUICK})
        yield
