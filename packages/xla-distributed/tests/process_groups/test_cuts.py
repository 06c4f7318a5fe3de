"""Replicas whose programs end at different places, because they read values or end steps where others do not, as with eager devices."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch

SIZE, ROUNDS = 3, 12


@pytest.fixture(scope="module")
def reports(start: Callable[..., Any]) -> list[Any]:
    found: list[Any] = start("cuts", SIZE).reports()
    return found


def on_host() -> list[list[torch.Tensor]]:
    """What each replica of `programs/cuts.py` has after each collective."""
    which = random.Random(0)
    values = [torch.arange(6.0) + rank for rank in range(SIZE)]
    seen: list[list[torch.Tensor]] = [[] for _ in values]
    for turn in range(ROUNDS):
        kind = which.randrange(3)
        together = torch.stack(values)
        if kind == 0:
            values = [together.sum(0) / SIZE] * SIZE
        if kind == 1:
            values = [together[turn % SIZE] * (1 + rank) for rank in range(SIZE)]
        if kind == 2:
            values = [together.mean(0) + rank for rank in range(SIZE)]
        for rank, value in enumerate(values):
            seen[rank].append(value)
    return seen


def test_each_replica_reads_where_it_likes(reports: list[Any]) -> None:
    for report, wanted in zip(reports, on_host(), strict=True):
        for found in (report["plain"], *report["elsewhere"]):
            torch.testing.assert_close(torch.tensor(found), torch.stack(wanted))


def test_a_captured_step_that_cannot_end_before_says_so(reports: list[Any]) -> None:
    for report in reports[1:]:
        kind, text = report["captured"]
        assert kind == "ProgramCutError" and text.startswith(
            "another replica ends its program after 1 of these collectives, and a captured"
        )
        assert "replica 0 runs\n  1. all_reduce" in text and "cuts.py:" in text
    assert reports[0]["captured"][0] == "ReplicaLostError"
