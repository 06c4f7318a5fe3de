"""Tensors on the CPU among the inputs of compiled graphs: numbers go into the program, what needs the CPU is parted off."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from xla_core.base import metrics

X = torch.arange(6.0) / 7 - 0.5
# Functions of an xla tensor and one on the CPU, two of the latter, and how many programs a later call runs (None: not counted).
Case = tuple[Callable[[torch.Tensor, torch.Tensor], Any], torch.Tensor, torch.Tensor, int | None]
CASES: dict[str, Case] = {
    "number": (lambda x, y: x * y, torch.tensor(2.0), torch.tensor(3.0), 1),
    "number first": (lambda x, y: y**x + y, torch.tensor(2.0), torch.tensor(3.0), 1),
    "integer": (lambda x, y: x.int() // y, torch.tensor(2), torch.tensor(3), 1),
    "flag": (lambda x, y: torch.where(y, x, 0.0), torch.tensor(True), torch.tensor(False), 1),
    "other dtype": (lambda x, y: x.int() + y, torch.tensor(2.5, dtype=torch.float64), torch.tensor(3.5, dtype=torch.float64), 1),
    "lists": (lambda x, y: torch._foreach_div([x, x + 1], [y, y + 1]), torch.tensor(2.0), torch.tensor(3.0), 1),
    "written": (lambda x, y: x.mul_(y).add_(y), torch.tensor(2.0), torch.tensor(3.0), 1),
    "computed there": (lambda x, y: (x * (y * 2 + 1), y * 3, y), torch.tensor(2.0), torch.tensor(3.0), 1),
    "changed there": (lambda x, y: (y.add_(1), x * y)[1], torch.tensor(2.0), torch.tensor(3.0), 1),
    "moved": (lambda x, y: x * y.to(x.device) + 1, X + 3, X + 4, 1),
    "changed and moved": (lambda x, y: x * (y * 2).sin().to(x.device) + 1, X + 3, X + 4, 1),
    "copied": (lambda x, y: x.copy_(y) + 1, X + 3, X + 4, None),
    "index": (lambda x, y: x[y] * 2, torch.tensor([0, 2]), torch.tensor([1, 5]), None),
    "filled": (lambda x, y: y.copy_(x * 2), X + 3, X + 4, None),
    "back and forth": (lambda x, y: ((x * y).cpu() + y).to(x.device) * 3, torch.tensor(2.0), torch.tensor(3.0), None),
    "complex": (lambda x, y: (x * y).abs(), torch.tensor(2j), torch.tensor(3j), None),
}


@pytest.mark.parametrize("name", CASES)
def test_values_come_with_each_call(name: str) -> None:
    function, first, second, runs = CASES[name]
    compiled = torch.compile(function, backend="openxla", fullgraph=True)
    for there in (first, second, first):
        ours, theirs, there_too = X.to("xla"), X.clone(), there.clone()
        before = metrics.counter("ExecuteComputation")
        found = compiled(ours, there_too)
        ran = metrics.counter("ExecuteComputation") - before
        other = there.clone()
        torch.testing.assert_close(_cpu(found), _cpu(function(theirs, other)))
        torch.testing.assert_close([ours.cpu(), there_too], [theirs, other])
        assert runs is None or ran == runs


def _cpu(results: Any) -> list[torch.Tensor]:
    return [result.cpu() for result in (results if isinstance(results, (tuple, list)) else [results])]


def test_a_number_that_is_read_is_not_part_of_the_program() -> None:
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(lambda x, y: x * y.item(), backend="openxla", fullgraph=True)
        for number in (2.0, 3.0):
            torch.testing.assert_close(compiled(X.to("xla"), torch.tensor(number)).cpu(), X * number)


def test_attributes_of_modules_may_stay_on_the_cpu() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.scale, self.places = nn.Linear(6, 6), torch.tensor(0.5), torch.arange(6.0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            result: torch.Tensor = self.layer(x) * self.scale + self.places.to(x.device)
            return result

    theirs = Scaled()
    ours = copy.deepcopy(theirs).to("xla")
    compiled = torch.compile(ours, backend="openxla", fullgraph=True)
    for _ in range(2):
        for model, call, x in ((ours, compiled, X.to("xla")), (theirs, theirs, X)):
            model.zero_grad()
            call(x).square().sum().backward()
            model.scale.mul_(2)
            model.places.add_(1)
        assert ours.layer.weight.grad is not None
        torch.testing.assert_close(ours.layer.weight.grad.cpu(), theirs.layer.weight.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script_method:DeprecationWarning")  # of torch's own imports
@pytest.mark.parametrize("name", ["SGD", "Adam", "RMSprop"])
@pytest.mark.parametrize("what", ["step", "whole"])
def test_optimizers_inside(name: str, what: str) -> None:
    """Adam and RMSprop count their steps in tensors on the CPU."""
    theirs = nn.Sequential(nn.Linear(6, 3), nn.Tanh(), nn.Linear(3, 1))
    ours = copy.deepcopy(theirs).to("xla")
    compiles = []

    def train(model: nn.Module, device: str, compiled: Callable[[Any], Any]) -> None:
        optimizer = getattr(torch.optim, name)(model.parameters(), lr=0.1)
        update = compiled(optimizer.step) if what == "step" else optimizer.step

        def step(x: torch.Tensor) -> None:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            update()

        run = compiled(step) if what == "whole" else step
        for turn in range(5):
            run((X.expand(2, 6) + turn).to(device))
            compiles.append(metrics.counter("UncachedCompile"))

    train(theirs, "cpu", lambda function: function)
    del compiles[:]
    before = metrics.counter("DynamoExtractCompiledGraph")
    train(ours, "xla", lambda function: torch.compile(function, backend="openxla"))
    assert metrics.counter("DynamoExtractCompiledGraph") > before
    assert compiles[-1] == compiles[2], "nothing new in later steps"
    for mine, yours in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine.detach().cpu(), yours.detach(), rtol=1e-3, atol=1e-4)
