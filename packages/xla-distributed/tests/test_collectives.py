"""Every collective over dtypes and groups, against NumPy, at two and four processes (api.md D01–D12)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Start = Callable[..., Any]


@pytest.mark.parametrize(("size", "least"), [(2, 400), (4, 700)])
def test_collectives_are_those_of_numpy(start: Start, size: int, least: int) -> None:
    for report in start("collectives", size).reports():
        assert report["wrong"] == []
        assert report["checks"] > least
