"""Replicas whose training steps are captured train, to the bit, as those whose steps are recorded at each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Reports = list[dict[str, Any]]
STEPS = 24
# And the calls that are recorded: the first makes the state of the optimizer, the second of DistributedDataParallel makes new buckets.
KINDS = {
    "optimizer_step": [0, 1, 2],
    "two shapes": [0, 1, 2, 10, 11],
    "DistributedDataParallel": [0, 1, 2, 3],
    "DistributedDataParallel with views": [0, 1, 2, 3],
    "a metric in place": [0, 1],
}


@pytest.fixture(scope="module")
def reports(start: Callable[..., Any]) -> Reports:
    """Of the two replicas of `programs/captured.py`."""
    found: Reports = start("captured", 2).reports()
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_captured_training_is_the_recorded_training(kind: str, reports: Reports) -> None:
    for report in reports:
        recorded, captured = report[kind]["recorded"], report[kind]["captured"]
        assert "error" not in recorded, recorded
        assert "error" not in captured, captured
        assert captured["losses"] == recorded["losses"]
        assert captured["parameters"] == recorded["parameters"]


@pytest.mark.parametrize("kind", KINDS)
def test_all_but_the_first_calls_are_launches(kind: str, reports: Reports) -> None:
    assert all(report[kind]["recorded"]["captured"] == [] for report in reports)
    first, second = (report[kind]["captured"]["captured"] for report in reports)
    assert first == [number for number in range(STEPS) if number not in KINDS[kind]]
    assert second and set(second) < set(first), "it verifies some"


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "a metric in place"])
def test_replicas_agree(kind: str, reports: Reports) -> None:
    first, second = (report[kind]["captured"] for report in reports)
    assert first["parameters"] == second["parameters"]
    assert first["losses"] != second["losses"], "each has a part of the batch"


def test_reduced_metrics_are_those_of_all_replicas(reports: Reports) -> None:
    first, second = (report["optimizer_step"]["captured"]["losses"] for report in reports)
    for (mine, mean), (other, same) in zip(first, second, strict=True):
        assert mean == same == pytest.approx((mine + other) / 2)
    first, second = (report["a metric in place"]["captured"]["losses"] for report in reports)
    assert first == second
