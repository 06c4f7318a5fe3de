"""The pytest fixture `assert_max_compiles`. Nothing is imported before a test asks for it."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def assert_max_compiles() -> Any:
    """The context manager `xla_debug.assert_max_compiles`: `with assert_max_compiles(2): train()`."""
    import xla_debug

    return xla_debug.assert_max_compiles
