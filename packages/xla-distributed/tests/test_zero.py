"""`ZeroRedundancyOptimizer`: two processes against a stock optimizer with the whole batch; one replica by itself."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch

import torch_xla
from torch_xla.distributed.zero_redundancy_optimizer import ZeroRedundancyOptimizer

Reports = list[dict[str, Any]]
CASES = ("adamw", "groups", "low")


@pytest.fixture(scope="module")
def reports(start: Callable[..., Any]) -> Reports:
    """Of the two replicas of `programs/zero.py`."""
    found: Reports = start("zero", 2).reports()
    return found


def close(found: list[Any], expected: list[Any], **tolerance: float) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(torch.tensor(mine), torch.tensor(theirs), **tolerance)


@pytest.mark.parametrize("case", CASES)
def test_parameters_and_norms_are_those_of_the_whole_batch(reports: Reports, case: str) -> None:
    tolerance = {"rtol": 1e-2, "atol": 1e-2} if case == "low" else {"rtol": 1e-5, "atol": 1e-6}
    for report in reports:
        mine, stock = report["cases"][case]["mine"], report["cases"][case]["stock"]
        close(mine["end"], stock["end"], **tolerance)
        close(mine["norms"], stock["norms"], rtol=1e-2 if case == "low" else 1e-5, atol=0)
    first, second = (report["cases"][case]["mine"]["end"] for report in reports)
    assert first == second


@pytest.mark.parametrize("case", CASES)
def test_a_step_only_records_and_compiles_no_more_after_the_third(reports: Reports, case: str) -> None:
    for report in reports:
        assert report["cases"][case]["mine"]["acted"] == 0
        assert report["cases"][case]["mine"]["late"] == 0


@pytest.mark.parametrize("case", CASES)
def test_a_replica_has_half_of_the_state(reports: Reports, case: str) -> None:
    for report in reports:
        mine, whole = (report["cases"][case][who]["bytes"] for who in ("mine", "stock"))
        elements, padded = 35, 38  # of the parameters with gradients; shapes (), (3,) and (3, 5) need one more element each
        assert mine * 2 * elements == whole * padded


def test_masters_have_what_the_parameters_cannot(reports: Reports) -> None:
    """The masters of bfloat16 parameters are those of float32 training, of which rounding would lose every step."""
    shards = [report["cases"]["low"]["mine"]["masters"] for report in reports]
    expected, start = reports[0]["cases"]["low"]["stock"]["wide"], reports[0]["start"]
    for first, second, whole, before in zip(*shards, expected, start, strict=True):
        joined = torch.cat([torch.tensor(first).flatten(), torch.tensor(second).flatten()])
        wanted = torch.tensor(whole).flatten()
        torch.testing.assert_close(joined[: wanted.numel()], wanted, rtol=0, atol=5e-5)
        assert not joined[wanted.numel() :].any()
        moved = (wanted - torch.tensor(before).flatten()).abs()
        assert not moved.any() or moved.max() > 3e-4


def test_hooks_free_gradients(reports: Reports) -> None:
    for report in reports:
        assert {case: report["cases"][case]["mine"]["freed"] for case in CASES} == {case: case == "low" for case in CASES}


@pytest.mark.parametrize("case", ["groups", "low"])
def test_training_resumes_as_if_it_had_not_stopped(reports: Reports, case: str) -> None:
    for report in reports:
        for part in ("end", "masters"):
            assert report["resumed"][case][part] == report["cases"][case]["mine"][part]
        assert report["resumed"][case]["compiled"] == 0


def test_groups_of_one_share_only_the_norm(reports: Reports) -> None:
    norm = (3 * 3.0**2 + 3 * 4.0**2) ** 0.5
    for rank, report in enumerate(reports):
        alone = report["alone"]
        start, gradient = 1.0 + rank, 3.0 + rank
        assert alone["loss"] == 3 * start * gradient
        assert alone["norm"] == pytest.approx(norm)
        assert alone["end"] == pytest.approx([start - gradient * 2.0 / norm] * 3, rel=1e-5)
        assert alone["sharding"] == {"replica": rank, "replicas": 2, "group": [rank]}


def test_the_state_of_another_is_refused(reports: Reports) -> None:
    for rank, report in enumerate(reports):
        found = {case: error for case, (error, _) in report["wrong"].items()}
        assert found == {"another": "ValueError", "shapes": "ValueError", "groups": "ValueError"}
        assert f"replica {1 - rank} of 2, sharded among [0, 1]; this is replica {rank} of 2" in report["wrong"]["another"][1]
        assert "[[3]], not [[], [2]" in report["wrong"]["shapes"][1]


@pytest.mark.long
def test_four_replicas_in_two_groups(start: Callable[..., Any]) -> None:
    """Each group trains its own model on its own data, as a stock optimizer does."""
    for report in start("zero", 4, "hybrid").reports():
        close(report["mine"], report["stock"], rtol=1e-5, atol=1e-6)


def pair(dtype: torch.dtype, **options: Any) -> tuple[torch.nn.Parameter, ZeroRedundancyOptimizer]:
    start = torch.linspace(0.5, 2.0, 6).reshape(2, 3).to(dtype)
    parameter = torch.nn.Parameter(start.to("xla"))
    return parameter, ZeroRedundancyOptimizer([parameter], torch.optim.SGD, grad_clipping=False, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_what_others_write_to_parameters_counts(dtype: torch.dtype) -> None:
    """And what nobody wrote to keeps its master, far below the parameter's precision."""
    parameter, optimizer = pair(dtype, lr=1.0)
    wide = torch.promote_types(dtype, torch.float32)
    expected = parameter.detach().cpu().to(wide)
    for step in range(6):
        if step == 3:
            with torch.no_grad():
                parameter[0] = -4.0
            parameter.data[1, 0] = 8.0
            expected[0], expected[1, 0] = -4.0, 8.0
        parameter.grad = torch.full_like(parameter, 2.0**-11)
        optimizer.step()
        torch_xla.sync()
        expected -= 2.0**-11
        assert torch.equal(parameter.detach().cpu(), expected.to(dtype))
    (group,) = optimizer.base_optimizer.param_groups
    (master,) = group["params"]
    assert master.dtype == wide and torch.equal(master.detach().cpu(), expected)


def test_groups_can_be_added_and_options_are_complete() -> None:
    parameter, optimizer = pair(torch.float32, lr=0.5, momentum=0.9)
    assert optimizer.defaults["nesterov"] is False and optimizer.param_groups[0]["dampening"] == 0
    more = torch.nn.Parameter(torch.ones(3, device="xla"))
    optimizer.add_param_group({"params": [more], "lr": 0.25})
    stock = torch.optim.SGD([torch.nn.Parameter(parameter.detach().cpu())], lr=0.5, momentum=0.9)
    stock.add_param_group({"params": [torch.nn.Parameter(torch.ones(3))], "lr": 0.25})
    for step in range(3):
        for each, device in ((optimizer, "xla"), (stock, "cpu")):
            for group in each.param_groups:
                group["lr"] *= 0.5
                for tensor in group["params"]:
                    tensor.grad = torch.full(tensor.shape, 1.0 + step, device=device)
            each.step()
    for mine, theirs in zip((parameter, more), (group["params"][0] for group in stock.param_groups), strict=True):
        torch.testing.assert_close(mine.detach().cpu(), theirs.detach())


def test_accumulated_gradients_are_added_freed_and_forgotten() -> None:
    parameter, optimizer = pair(torch.bfloat16, lr=1.0, use_grad_acc_hook=True, higher_cc_precision=True)
    start = parameter.detach().cpu().float()
    for factor in (1.0, 2.0**-10):  # their sum is no bfloat16
        (parameter * factor).sum().backward()
        assert parameter.grad is None
    optimizer.step()
    (master,) = optimizer.base_optimizer.param_groups[0]["params"]
    torch.testing.assert_close(master.detach().cpu(), start - 1 - 2.0**-10, rtol=0, atol=1e-7)
    optimizer.zero_grad()
    before = parameter.detach().cpu()
    optimizer.step()
    assert torch.equal(parameter.detach().cpu(), before)
    copied = copy.deepcopy(parameter)
    copied.sum().backward()
    del optimizer
    parameter.sum().backward()
    assert parameter.grad is not None


def test_without_gradients_nothing_happens() -> None:
    parameter = torch.nn.Parameter(torch.ones(2, device="xla"))
    optimizer = ZeroRedundancyOptimizer([parameter], torch.optim.AdamW, lr=0.1)
    assert optimizer.grad_norm is None
    optimizer.step()
    assert parameter.tolist() == [1.0, 1.0] and optimizer.grad_norm.item() == 0.0


def test_lazy_init_and_wrong_arguments() -> None:
    with pytest.raises(RuntimeError, match=r"shape \(2,\) is on device cpu"):
        ZeroRedundancyOptimizer([torch.nn.Parameter(torch.ones(2))], torch.optim.SGD)
    parameter = torch.nn.Parameter(torch.ones(2, device="xla"))
    with pytest.raises(ValueError, match=r"torch.int32 cannot hold parameters of torch.float32"):
        ZeroRedundancyOptimizer([parameter], torch.optim.SGD, optimizer_dtype=torch.int32)
    with pytest.raises(ValueError, match="Invalid learning rate"):
        ZeroRedundancyOptimizer([parameter], torch.optim.SGD, lr=-1.0, lazy_init=True)
    lazy = ZeroRedundancyOptimizer([parameter], torch.optim.SGD, lazy_init=True)
    for action in (lazy.step, lazy.state_dict, lambda: lazy.load_state_dict({})):
        with pytest.raises(RuntimeError, match="init_zero"):
            action()
    lazy.init_zero()
    stock = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))])
    with pytest.raises(ValueError, match="no state of a ZeroRedundancyOptimizer"):
        lazy.load_state_dict(stock.state_dict())
    with pytest.raises(TypeError, match="state_dict"):
        copy.deepcopy(lazy)
