"""What the tests of operators share: they compile thousands of small programs, and half of the time was XLA's optimizer."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from xla_core.engine.compile import options


@pytest.fixture(scope="module", autouse=True)
def quickly_compiled() -> Iterator[None]:
    """Compile without optimizing machine code, on which it does not depend what an operator means. All other tests compile as users do."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(options, "_CPU_OPTIONS", {**options._CPU_OPTIONS, **options._QUICK_CPU_OPTIONS})
        yield
