"""Process groups of device `xla` beside those of gloo on the CPU: the same program, the same results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Reports = list[dict[str, Any]]


@pytest.fixture(scope="module")
def reports(start: Callable[..., Any]) -> Reports:
    """Of the four replicas of `programs/like_gloo.py`, what each backend found there."""
    found: Reports = start("like_gloo", 4).reports()
    return found


@pytest.mark.parametrize("part", ["of_groups", "in_between", "grid", "pipeline", "collectives", "messages", "gradients", "versions"])
def test_groups_behave_as_those_of_gloo(reports: Reports, part: str) -> None:
    for report in reports:
        assert report["xla"][part] == report["gloo"][part]
