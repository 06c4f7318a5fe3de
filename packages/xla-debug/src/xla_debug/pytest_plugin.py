"""The pytest fixtures `assert_max_compiles` and `xla_seal`. Nothing is imported before a test asks for one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture
def assert_max_compiles() -> Any:
    """The context manager `xla_debug.assert_max_compiles`: `with assert_max_compiles(2): train()`."""
    import xla_debug

    return xla_debug.assert_max_compiles


@pytest.fixture
def xla_seal() -> Iterator[Any]:
    """`torch_xla.seal`, whose seals are lifted when the test ends: `train(); xla_seal(); train()`."""
    import torch_xla

    made: list[Any] = []

    def seal(*args: Any, **kwargs: Any) -> Any:
        made.append(torch_xla.seal(*args, **kwargs))
        return made[-1]

    yield seal
    for each in reversed(made):
        each.lift()
