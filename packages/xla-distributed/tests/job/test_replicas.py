"""Replicas of a job and what they compute together: two processes against one."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

Reports = list[dict[str, Any]]


@pytest.fixture(scope="module")
def reports(start: Callable[..., Any]) -> Reports:
    """Of the two replicas of `programs/replicas.py`."""
    found: Reports = start("replicas", 2).reports()
    return found


def test_a_process_that_has_used_its_devices_can_spawn(start: Callable[..., Any]) -> None:
    assert start("used", 2).reports() == [3.0, 3.0]


@pytest.mark.parametrize("size", [1, 2])
def test_results_of_new_processes_also_for_one_device(size: int, start: Callable[..., Any]) -> None:
    job = start("apart", size)
    job.size = 1  # the launcher reports for all
    total = float(sum(5 + rank for rank in range(size)))
    assert job.reports() == [
        {
            "ranks": list(range(size)),
            "apart": True,
            "results": [[size, total, 7]] * size,
            "initialized": False,
            "still": 3.0,
            "error": True,
        }
    ]


def test_each_replica_has_one_device(reports: Reports) -> None:
    for rank, report in enumerate(reports):
        place = report["place"]
        assert place["device"] == "xla:0" and place["devices"] == ["xla:0"]
        assert place["real"] == [f"CPU:{rank}"] and place["replication"] == ["CPU:0", "CPU:1"]
        assert place["ordinal"] == rank and place["size"] == 2
        assert place["local"] == [rank, 2, 2] and place["global"] == [2, 2, rank, 2]
        assert place["master"] == (rank == 0)


def test_children_see_the_variables_of_torchrun(reports: Reports) -> None:
    for rank, report in enumerate(reports):
        assert report["place"]["variables"] == [str(rank), "2"] * 3


def test_a_loop_of_data_parallel_is_the_replica_of_its_process(reports: Reports) -> None:
    for rank, report in enumerate(reports):
        assert report["looped"] == [[[1.0, 21.0, 41.0], "xla:0", 2, rank]]


def test_rendezvous(reports: Reports) -> None:
    for report in reports:
        assert report["rendezvous"]["bare"] == [[], []]
        assert report["rendezvous"]["payloads"] == ["0", "long1"]
        assert report["rendezvous"]["wrong"] == ["TypeError", "ValueError"]


def test_do_on_ordinals_runs_there_with_cpu_tensors(reports: Reports) -> None:
    assert [report["rendezvous"]["once"] for report in reports] == [None, ["cpu", 2.0, "x"]]


def test_mesh_reduce_takes_any_object(reports: Reports) -> None:
    for report in reports:
        assert report["rendezvous"]["mean"] == 0.5
        assert report["rendezvous"]["scalar"] == ["float32", "float32"]
        assert report["rendezvous"]["tensors"] == [["cpu", 1.0], ["cpu", 2.0]]


def model() -> torch.nn.Module:
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.ReLU(), torch.nn.Linear(3, 2))


def test_parameters_start_as_those_of_replica_0(reports: Reports) -> None:
    expected = [parameter.tolist() for parameter in model().parameters()]
    for report in reports:
        for mine, theirs in zip(report["training"]["start"], expected, strict=True):
            torch.testing.assert_close(torch.tensor(mine), torch.tensor(theirs))


def test_training_is_that_of_one_process_with_the_whole_batch(reports: Reports) -> None:
    net = model()
    net[1].eval()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(3)
    for _ in range(6):
        optimizer.zero_grad()
        net(torch.randn(8, 4, generator=generator)).square().mean().backward()
        optimizer.step()
    for report in reports:
        assert report["training"]["result"] is None
        for mine, parameter in zip(report["training"]["end"], net.parameters(), strict=True):
            torch.testing.assert_close(torch.tensor(mine), parameter.detach(), rtol=1e-4, atol=1e-6)


def test_buckets_are_one_more_program_and_no_step_recompiles(reports: Reports) -> None:
    for report in reports:
        first, second, third, bucketed, *later = report["training"]["compiled"]
        assert first == second == third and bucketed == third + 1 and set(later) == {bucketed}


def test_xf_gradients(reports: Reports) -> None:
    for rank, report in enumerate(reports):
        values = [[1.0, 3.0, 0.0], [2.0, 2.0, 0.0]]
        found = report["gradients"]
        assert found["sum"] == [[6.0, 10.0, 0.0], [2.0, 4.0, 6.0]]
        for kind, pick in (("min", min), ("max", max)):
            result = [pick(pair) for pair in zip(*values, strict=True)]
            assert found[kind] == [
                result,
                [weight * (mine == best) for weight, mine, best in zip((1, 2, 3), values[rank], result, strict=True)],
            ]
        product = [math.prod(pair) for pair in zip(*values, strict=True)]
        assert found["mul"] == [product, [1.0 * product[0] / values[rank][0], 2.0 * product[1] / values[rank][1], 0.0]]
        assert found["all_gather"] == [[[1.0, 2.0], [2.0, 2.0]], [[3.0 * rank, 3.0 * rank + 1]]]  # of its own loss alone
        assert found["all_gather_summed"] == [[[1.0, 2.0], [2.0, 2.0]], [[4.0 * rank + 1, 4.0 * rank + 3]]]  # of both losses


def test_xf_distributed_mm(reports: Reports) -> None:
    whole = torch.arange(12.0).reshape(4, 3) @ torch.arange(12.0).reshape(3, 4)
    for rank, report in enumerate(reports):
        assert report["gradients"]["mm"] == [whole[:, 2 * rank : 2 * rank + 2].tolist()] * 2


def test_xf_sync_batch_norm(reports: Reports) -> None:
    assert all(report["normalized"]["close"] for report in reports)


def test_wrong_arguments(reports: Reports) -> None:
    for report in reports:
        assert report["wrong"] == {
            "reduction": "ValueError",
            "repeated": "ValueError",
            "range": "ValueError",
            "missing": "ValueError",
            "cpu": "RuntimeError",
            "uneven": "AssertionError" if len(reports) > 2 else None,
            "gather": "TypeError",
            "pinned": "RuntimeError",
            "outputs": "ValueError",
            "output": "TypeError",
            "divisible": "ValueError",
            "shards": "ValueError",
            "split": "ValueError",
            "count": "ValueError",
            "pairs": "ValueError",
            "root": "ValueError",
            "send": "UnsupportedOperationError",
            "recv": "UnsupportedOperationError",
            "dim": "IndexError",
        }


def test_groups_in_which_not_all_are_are_the_same_error_on_all(reports: Reports) -> None:
    others = list(range(1, len(reports)))
    text = f"ordinals {others} are in none of the groups [[0]]: all replicas issue a collective, so each needs a group"
    for report in reports:
        assert report["left out"] == [text, [float(len(reports))] * 2], "and the next collective works"
