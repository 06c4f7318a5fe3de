"""Optimizer state that its first step creates: one program for the first and all later steps."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import torch_xla
from xla_core.abi.metrics import counter
from xla_core.abi.tensors import sync

OPTIMIZERS: list[Callable[..., torch.optim.Optimizer]] = [torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop]


def compiles() -> int:
    return counter("UncachedCompile")


def train(device: str, make: Callable[..., torch.optim.Optimizer], steps: int) -> tuple[list[torch.Tensor], list[int]]:
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Linear(7, 2)).to(device)
    optimizer = make(model.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.8**step)
    data = torch.linspace(-1, 1, 30).reshape(6, 5).to(device)
    seen = []
    for _ in range(steps):
        optimizer.zero_grad()
        model(data).square().mean().backward()
        optimizer.step()
        if device == "xla":
            sync()
        schedule.step()
        seen.append(compiles())
    return [parameter.detach().cpu() for parameter in model.parameters()], seen


@pytest.mark.parametrize("make", OPTIMIZERS, ids=lambda make: make.__name__)
def test_one_program_for_all_steps_with_a_schedule(make: Callable[..., torch.optim.Optimizer]) -> None:
    sync()  # what earlier tests left pending is not of the first step
    before = compiles()
    expected, _ = train("cpu", make, 4)
    got, seen = train("xla", make, 4)
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs)
    assert seen[-1] - before <= 1, seen  # 0 when an earlier test of the process compiled the same program


@pytest.mark.parametrize("read", [False, True], ids=["contiguous views", "a value read in the step"])
def test_what_is_on_the_graph_before_its_use_leaves_one_program(read: bool) -> None:
    """Both are there before the leaves of the operation that takes them, in the first step as in later ones."""
    torch.manual_seed(0)
    first, second = torch.nn.Linear(6, 5).to("xla"), torch.nn.Linear(4, 3 + read).to("xla")
    optimizer = torch.optim.Adam([*first.parameters(), *second.parameters()])
    data, seen = torch.randn(4, 6).to("xla"), []
    for _ in range(3):
        optimizer.zero_grad()
        before = compiles()
        hidden = first(data)
        turned = hidden.t().contiguous()
        mask = data[0].sign() > 0
        if read and not mask.any():
            raise AssertionError("one of six random numbers is positive")
        found = torch.addmm(second.bias, turned.relu(), second.weight.t()) + torch.addmm(second.bias, turned, second.weight.t())
        (found.square().sum() + hidden.sum() * mask.sum()).backward()
        optimizer.step()
        sync()
        seen.append(compiles() - before)
    assert seen[1:] == [0, 0], seen


def test_state_is_right_after_its_first_step() -> None:
    state = torch.zeros(3, device="xla")
    state.add_(torch.arange(3.0).to("xla"))
    kept = torch.ones_like(state)
    sync()
    assert state.tolist() == [0.0, 1.0, 2.0]
    assert kept.tolist() == [1.0, 1.0, 1.0]


def test_the_filled_value_itself_may_also_be_kept() -> None:
    state = torch.full((2,), 7.0, device="xla")
    before = state.clone()
    state.mul_(2)
    view = state[1:]
    sync()
    assert (before.tolist(), state.tolist(), view.tolist()) == ([7.0, 7.0], [14.0, 14.0], [14.0])


def test_views_read_before_the_state_is_written() -> None:
    state = torch.zeros(2, 3, device="xla")
    row = state[0] + 5
    state.t().copy_(torch.arange(6.0).reshape(3, 2).to("xla"))
    total = (state.t() + row.sum()).sum(0)
    sync()
    assert row.tolist() == [5.0, 5.0, 5.0]
    assert state.tolist() == [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]]
    assert total.tolist() == [51.0, 54.0]


def test_reads_in_between_do_not_lose_state() -> None:
    state = torch.zeros(3, device="xla")
    state.add_(1)
    assert state.sum().item() == 3.0
    state.add_(1)
    sync()
    assert state.tolist() == [2.0, 2.0, 2.0]


def test_a_result_that_was_read_before_leaves_its_neighbours_in_place() -> None:
    x = torch.arange(6.0)
    on_device = x.to("xla")
    weight = torch.ones(6, device="xla")
    torch_xla.sync()
    least, most = torch.aminmax(on_device + 1)
    doubled = most * 2
    del most
    assert least.item() == 1  # a leaf from now on, among the results of an operation that is pending
    state = torch.zeros_like(weight)
    state.add_(weight)
    torch_xla.sync()
    assert doubled.item() == 2 * (x + 1).max().item()
    assert state.tolist() == [1.0] * 6


def test_a_view_that_only_the_fill_of_a_gradient_used_and_that_became_the_gradient() -> None:
    weight = torch.nn.Parameter(torch.arange(6.0).to("xla"))
    flat = weight.reshape(-1)
    with torch.no_grad():
        weight.permute((0,)).logical_and_(torch.ones(6, device="xla"))
    flat.flatten().sum().backward()
    sync()
    weight.backward(torch.ones_like(weight))
    assert weight.grad is not None and weight.grad.tolist() == [2.0] * 6
