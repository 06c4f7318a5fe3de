"""Backend `xla` of `torch.distributed`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from xla_core.abi.collectives import Members
from xla_distributed.process_groups.meshes import Options, groups_for, inferred_mesh

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
            "BXOR": [3, 0],
            "PREMUL_SUM": [5, 6],
            **{f"torch.{name}": [10, 12] for name in ("int16", "int8", "float16", "bfloat16", "float64", "complex64")},
            "torch.bool": [1, 1],
            "spread": [[10, 1 + 10 * rank, 14, 3 + 10 * rank], [18, 5 + 10 * rank, 22, 7 + 10 * rank]],
            "several shapes": [
                [[0, 1, 2], [[10, 11]]],
                [10, 12, 14] if rank == 0 else [[10, 12]],
                [[0], [[10], [11]]] if rank == 0 else [[0, 1], [[10, 11], [12, 13]]],
            ],
            "async": [True, [20, 22]],
            "all_gather": [[0, 1], [10, 11]],
            "all_gather_single": [0, 1, 10, 11],
            "broadcast": [10, 11],
            "reduce": [10, 12] if rank == 1 else [0, 1],
            "reduce_scatter": [10 + 2 * rank, 12 + 2 * rank],
            "all_to_all": [[100 * rank, 100 * rank + 1], [100 * rank + 10, 100 * rank + 11]],
            "all_to_all_single": [2 * rank, 2 * rank + 1, 10 + 2 * rank, 11 + 2 * rank],
            "mismatched": "RuntimeError",
            "gather": [[0, 1], [10, 11]] if rank == 0 else [],
            "scatter": [50 + rank, 51 + rank],
            **({"recv": [70, 71, 72]} if rank == 1 else {}),
            "objects": [{"rank": 0}, {"rank": 1}],
        }


def test_the_old_init_method(reports: Reports) -> None:
    assert [report["old name"] for report in reports] == [[0, 2], [1, 2]]


def test_groups(reports: Reports) -> None:
    for rank, report in enumerate(reports):
        assert report["groups"] == {"alone": [10 * rank], "part": [10 * rank]}


def test_a_process_on_its_own_is_a_group_of_one() -> None:
    import torch.distributed as dist
    import torch.distributed._functional_collectives as funcol

    import torch_xla.distributed.xla_backend  # noqa: F401

    dist.init_process_group("xla", init_method="xla://")
    try:
        x = torch.arange(4.0, device="xla")
        dist.broadcast(x, 0)
        group = dist.distributed_c10d._get_default_group()
        results = [
            funcol.all_reduce(x, "avg", group),
            funcol.all_gather_single(x, 0, group),
            funcol.reduce_scatter_single(x, "max", 0, group),
            funcol.all_to_all_single(x, None, None, group),
            funcol.broadcast(x, 0, group),
        ]
        assert [result.tolist() for result in results] == [[0, 1, 2, 3]] * len(results)
        net = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1).to("xla"), gradient_as_bucket_view=True)
        net(x).sum().backward()
        assert net.module.weight.grad is not None and net.module.weight.grad.tolist() == [[0, 1, 2, 3]]
    finally:
        dist.destroy_process_group()


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
        for found in (report["parallel"], *report["compiled parallel"]):
            for mine, parameter in zip(found["end"], net.parameters(), strict=True):
                torch.testing.assert_close(torch.tensor(mine), parameter.detach(), rtol=1e-4, atol=1e-6)
            assert found["late"] == 0


def brought(*shape: int) -> list[torch.Tensor]:
    """The inputs of two ranks of functional collectives, as in `programs/functional.py`."""
    return [(torch.arange(float(torch.Size(shape).numel())).reshape(shape) - 1.5) * (rank + 2) for rank in range(2)]


def expected(rank: int) -> dict[str, list[Any]]:
    """The result of each functional collective, from the inputs of both ranks."""
    a, b = brought(3)
    flags = [torch.tensor([1 + one, 2, 7 - one]) for one in range(2)]
    vectors, squares, rows, wide, tall = torch.stack([a, b]), brought(2, 2), brought(2, 3), brought(2, 4), brought(4, 2)
    pairs, fours = torch.stack(brought(2)), torch.stack(brought(4))
    whole = torch.cat([a, b])
    return {
        "all_reduce sum": [a + b],
        "all_reduce avg": [(a + b) / 2],
        "all_reduce product": [a * b],
        "all_reduce min": [torch.minimum(a, b)],
        "all_reduce max": [torch.maximum(a, b)],
        "all_reduce band": [flags[0] & flags[1]],
        "all_reduce bor": [flags[0] | flags[1]],
        "all_reduce_coalesced": [a + b, squares[0] + squares[1]],
        "all_reduce_coalesced_": [a + b, squares[0] + squares[1]],
        "all_reduce_": [torch.maximum(a, b)],
        "all_gather": [torch.cat(rows)],
        "all_gather dim 1": [torch.cat(rows, 1)],
        "all_gather number": [torch.stack(brought())],
        "all_gather_coalesced": [whole, torch.cat(squares)],
        "all_gather_out": [whole],
        "reduce_scatter": [sum(tall)[2 * rank : 2 * rank + 2]],
        "reduce_scatter dim 1": [sum(wide)[:, 2 * rank : 2 * rank + 2] / 2],
        "reduce_scatter_coalesced": [pairs.amax(0)[rank : rank + 1], fours.amax(0)[2 * rank : 2 * rank + 2]],
        "reduce_scatter_out": [fours.sum(0)[2 * rank : 2 * rank + 2]],
        "all_to_all": [torch.cat([each[2 * rank : 2 * rank + 2] for each in tall])],
        "all_to_all by sizes": [torch.cat([each[2 * rank : 2 * rank + 2] for each in fours])],
        "broadcast": [b],
        "broadcast_": [b],
        "mixed": [vectors[rank] * (a + b)],
        "inputs": [vectors[rank], squares[rank]],
        "written": [torch.maximum(a, b), a + b, squares[0] + squares[1], whole],
    }


def test_functional_collectives(reports: Reports) -> None:
    for rank, report in enumerate(reports):
        found = report["functional"]["recorded"]
        assert found["lazy"] and found["kinds"] == ["XLATensor"]
        wanted = {name: [tensor.tolist() for tensor in tensors] for name, tensors in expected(rank).items()}
        assert found["results"] == wanted
        assert report["functional"]["waiting"] == 0, "torch keeps no unfinished work"


def test_functional_collectives_take_any_name_of_a_group(reports: Reports) -> None:
    mine, total = brought(3), sum(brought(3)).tolist()
    for rank, report in enumerate(reports):
        found = report["functional"]
        assert [found["by group"], found["by name"], found["alone"]] == [total, total, mine[rank].tolist()]


@pytest.mark.parametrize(
    ("what", "kind", "text"),
    [
        ("unknown", "RuntimeError", "'mean'"),
        ("mismatched", "RuntimeError", "rank 0 sends 3 elements to rank 1, which expects 1"),
        ("other rows", "RuntimeError", "[1, 1]"),
        ("no group", "RuntimeError", "'nobody'"),
    ],
)
def test_functional_collectives_refuse(reports: Reports, what: str, kind: str, text: str) -> None:
    for report in reports:
        error, message = report["functional"]["refused"][what]
        assert error == kind and text in message


def test_functional_collectives_have_torchs_gradients(reports: Reports) -> None:
    """All-reduce and reduce-scatter give each input the sum of the results' gradients, the others send gradients back."""
    values = brought(4)
    total = values[0] + values[1]
    for rank, report in enumerate(reports):
        gathered, exchanged = 4 * values[rank], 2 * values[rank]
        wanted = {
            "all_reduce": 4 * total,
            "all_gather": gathered,
            "reduce_scatter": 2 * total,
            "all_to_all": exchanged,
            "second all_gather": gathered,
            "second reduce_scatter": 2 * total,
            "second all_to_all": exchanged,
        }
        assert report["functional"]["gradients"] == {name: tensor.tolist() for name, tensor in wanted.items()}


def test_compiled_functions_hold_collectives(reports: Reports) -> None:
    values = brought(4)
    for rank, report in enumerate(reports):
        found = report["functional"]["compiled"]
        assert found["steady"] == [0, 1], "programs compiled and run by a call whose inputs are there"
        for call, results in enumerate(found["calls"]):
            moved = [value + call for value in values]
            total = sum(moved)
            swapped = torch.cat([value[2 * rank : 2 * rank + 2] for value in moved])
            behind = torch.minimum(values[0] - call, values[1] - call)
            doubled = 2 * total + 1
            assert results == [tensor.tolist() for tensor in (behind, total, doubled, doubled, swapped, total)]


def test_compiled_functions_call_the_collectives_of_torch(reports: Reports) -> None:
    values = brought(4)
    for rank, report in enumerate(reports):
        for call, results in enumerate(report["functional"]["classic"]):
            moved = [value + call for value in values]
            total = 2 * sum(moved)
            mine = sum([total, total])[2 * rank : 2 * rank + 2]  # each rank brings the whole
            swapped = torch.cat([value[2 * rank : 2 * rank + 2] for value in moved])
            assert results == [each.tolist() for each in (total, moved[1], moved[1] + 1, mine, swapped, moved[rank] + 2)]


def test_compiled_backward_holds_collectives(reports: Reports) -> None:
    inputs = [value / 10 for value in brought(4, 3)]
    weights = [torch.linspace(-1, 1, 6).reshape(2, 3).requires_grad_() for _ in inputs]
    parts = [(x @ weight.t()).tanh() for x, weight in zip(inputs, weights, strict=True)]
    (len(parts) * (parts[0] + parts[1]).square().sum()).backward()  # each rank has the whole loss
    for report, weight in zip(reports, weights, strict=True):
        torch.testing.assert_close(torch.tensor(report["functional"]["trained"]), weight.grad, rtol=1e-4, atol=1e-6)


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
    assert groups_for(ranks, count, {"xla_pg_options": {"spmd": True}}) == groups_for(ranks, count, Options()) == mesh


@pytest.mark.parametrize(("ranks", "count"), [([0, 3], 4), ([0, 1, 3], 6), ([1, 2], 4), ([1, 0], 2), ([0, 1], 3)])
def test_what_is_no_rectangle_is_refused(ranks: list[int], count: int) -> None:
    with pytest.raises(ValueError, match="mesh"):
        inferred_mesh(ranks, count)


def test_a_part_stands_alone_or_in_a_mesh_that_has_it() -> None:
    assert groups_for([0, 1], 2, {}) is None
    assert groups_for([0, 2], 4, {}) == Members([(0, 2)])
    assert groups_for([0, 2], 4, {"xla_pg_options": {"mesh": [[0, 2], [1, 3]]}}) == [[0, 2], [1, 3]]
    with pytest.raises(ValueError, match=r"\[0, 2\]"):
        groups_for([0, 2], 4, Options(mesh=[[0, 1], [2, 3]]))
