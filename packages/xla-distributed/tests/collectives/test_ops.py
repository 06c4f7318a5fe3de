"""Every collective over dtypes and groups, against NumPy, at two and four processes; all dtypes in the long tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Start = Callable[..., Any]


@pytest.mark.parametrize(
    ("size", "dtypes", "least"),
    [(2, "few", 150), *(pytest.param(*more, marks=pytest.mark.long) for more in ((2, "all", 400), (4, "few", 300), (4, "all", 700)))],
)
def test_collectives_are_those_of_numpy(start: Start, size: int, dtypes: str, least: int) -> None:
    for report in start("collectives", size, dtypes).reports():
        assert report["wrong"] == []
        assert report["checks"] > least


@pytest.mark.long
@pytest.mark.parametrize(("size", "dtypes", "platform"), [(2, "few", "tpu"), (4, "all", "tpu"), (4, "few", "gpu")])
def test_collectives_as_for_accelerators_are_those_of_numpy(start: Start, size: int, dtypes: str, platform: str) -> None:
    """Tensors travel in their own shapes there, flat ones as rows of tiles on TPUs."""
    for report in start("collectives", size, dtypes, platform).reports():
        assert report["wrong"] == []
        assert report["checks"] > 150


def test_constants_of_a_replica_are_not_taken_for_those_of_all(start: Start) -> None:
    """XLA folds collectives over constants, and a result that nobody holds must not make its collective run again."""
    for rank, report in enumerate(start("constants", 2).reports()):
        assert report["sums"] == [[3] * 3, [2] * 3, [1] * 3, [2] * 3]
        assert report["read"] == [[0.0, 0.0], *([[1.0, 1.0]] * 2 if rank == 0 else [])]
        assert report["later"] == [1.0, 1.0]
