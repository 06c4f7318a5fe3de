"""Torch's own distributed stack over processes with the backend xla does what it does over gloo on the CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

Reports = list[dict[str, Any]]
SECTIONS = ("dtensors",)


@pytest.fixture(scope="module")
def reports(start: Callable[..., Any]) -> tuple[Reports, Reports]:
    """Of two processes, on xla devices and on the CPU."""
    ours = start("torch_stack", 2, 2, "xla", *SECTIONS).reports()
    return ours, start("torch_stack", 2, 2, "cpu", *SECTIONS).reports()


def check(ours: Any, theirs: Any, place: str = "") -> None:
    """Compare with torch's own; numbers within float32's rounding."""
    if isinstance(theirs, dict):
        assert ours.keys() == theirs.keys(), place
        for name in theirs:
            check(ours[name], theirs[name], f"{place} / {name}")
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs), place
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            check(one, other, f"{place}[{number}]")
    elif isinstance(theirs, float):
        assert ours == pytest.approx(theirs, rel=2e-4, abs=2e-5), place
    else:
        assert ours == theirs, place


@pytest.mark.parametrize("part", ["mesh", "redistributed", "computed", "gradients", "modules", "kept", "refused"])
def test_dtensors(reports: tuple[Reports, Reports], part: str) -> None:
    for ours, theirs in zip(*reports, strict=True):
        check(ours["dtensors"][part], theirs["dtensors"][part], part)


def test_random_dtensors(reports: tuple[Reports, Reports]) -> None:
    """Ranks agree on the whole, shards differ, and the state moves on alike on all ranks."""
    first, second = (ours["dtensors"]["random"] for ours in reports[0])
    assert first == second
    for name in ("sharded", "whole"):
        uniform, other, normal, filled, dropped = (torch.tensor(each) for each in first[name])
        assert len({tuple(part.flatten().tolist()) for each in (uniform, other, filled) for part in each.chunk(2)}) == 6
        assert abs(uniform.mean() - 0.5) < 0.1 and abs(normal.mean()) < 0.2 and 0.3 < (dropped == 0).float().mean() < 0.7
    assert first["again"] == first["sharded"][0]
