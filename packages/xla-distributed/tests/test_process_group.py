"""Backend `xla` of `torch.distributed` (api.md §10.2)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from xla_distributed.meshes import groups_for, inferred_mesh

Reports = list[dict[str, Any]]


@pytest.fixture(scope="module")
def reports(start: Callable[..., Any]) -> Reports:
    """Of the two replicas of `programs/process_groups.py`: rank r brings [10 r, 10 r + 1, …]."""
    found: Reports = start("process_groups", 2).reports()
    return found


def test_collectives(reports: Reports) -> None:
    for rank, report in enumerate(reports):
        found = report["collectives"]
        assert found.pop("rank") == [rank, 2, "xla"]
        assert found == {
            "SUM": [10, 12],
            "AVG": [5, 6],
            "PRODUCT": [0, 11],
            "MIN": [0, 1],
            "MAX": [10, 11],
            "BOR": [3, 2],
            "BXOR": "NotImplementedError",
            "async": [True, [20, 22]],
            "all_gather": [[0, 1], [10, 11]],
            "all_gather_single": [0, 1, 10, 11],
            "broadcast": [10, 11],
            "reduce": [10, 12] if rank == 1 else [0, 1],
            "reduce_scatter": [10 + 2 * rank, 12 + 2 * rank],
            "all_to_all": [[100 * rank, 100 * rank + 1], [100 * rank + 10, 100 * rank + 11]],
            "all_to_all_single": [2 * rank, 2 * rank + 1, 10 + 2 * rank, 11 + 2 * rank],
            "unequal": "NotImplementedError",
            "gather": [[0, 1], [10, 11]] if rank == 0 else [],
            "scatter": [50 + rank, 51 + rank],
            **({"recv": [70, 71, 72]} if rank == 1 else {}),
            "objects": [{"rank": 0}, {"rank": 1}],
        }


def test_groups(reports: Reports) -> None:
    for rank, report in enumerate(reports):
        assert report["groups"] == {"alone": [10 * rank], "part": "ValueError"}


def test_distributed_data_parallel_is_one_process_with_the_whole_batch(reports: Reports) -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(3)
    for _ in range(6):
        optimizer.zero_grad()
        net(torch.randn(8, 4, generator=generator)).square().mean().backward()
        optimizer.step()
    for report in reports:
        for mine, parameter in zip(report["parallel"]["end"], net.parameters(), strict=True):
            torch.testing.assert_close(torch.tensor(mine), parameter.detach(), rtol=1e-4, atol=1e-6)
        assert report["parallel"]["late"] == 0


@pytest.mark.parametrize(
    ("ranks", "count", "mesh"),
    [
        ([0, 1], 4, [[0, 1], [2, 3]]),
        ([1, 3], 4, [[0, 2], [1, 3]]),
        ([0, 1, 2, 3], 4, [[0, 1, 2, 3]]),
        ([1, 3], 8, [[0, 2], [1, 3], [4, 6], [5, 7]]),
        ([2], 3, [[0], [1], [2]]),
    ],
)
def test_a_mesh_is_inferred(ranks: list[int], count: int, mesh: list[list[int]]) -> None:
    assert inferred_mesh(ranks, count) == mesh
    assert groups_for(ranks, count, {"spmd": True}) == mesh


@pytest.mark.parametrize(("ranks", "count"), [([0, 3], 4), ([0, 1, 3], 6), ([1, 2], 4), ([1, 0], 2), ([0, 1], 3)])
def test_what_is_no_rectangle_is_refused(ranks: list[int], count: int) -> None:
    with pytest.raises(ValueError, match="mesh"):
        inferred_mesh(ranks, count)


def test_a_part_needs_a_mesh_that_has_it() -> None:
    assert groups_for([0, 1], 2, {}) is None
    assert groups_for([0, 2], 4, {"mesh": [[0, 2], [1, 3]]}) == [[0, 2], [1, 3]]
    for options in ({}, {"mesh": [[0, 1], [2, 3]]}):
        with pytest.raises(ValueError, match=r"\[0, 2\]"):
            groups_for([0, 2], 4, options)
