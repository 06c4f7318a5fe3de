"""Tables, options and choices by a count of the step's own, growing dicts, and random numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from captured_programs import Capture, program
from torch import Tensor, nn

CALLS = 22


def batch(call: int, size: int = 3) -> Tensor:
    """Other numbers for each call, on the device."""
    return torch.sin(torch.arange(size, dtype=torch.float32) * 2 + call).to("xla")


@program(refused="something else at each call")
def a_schedule_in_an_array(capture: Capture) -> Iterator[Any]:
    """A table of NumPy has a rate and a momentum for each step, which the step looks up by its count."""
    rates, momenta = 0.5 * (1 + np.cos(np.linspace(0, math.pi, 60))), np.linspace(0.9, 1.0, 60)
    weight, average = batch(1), batch(1)

    class Trainer:
        count = 0

        def step(self, x: Tensor) -> Tensor:
            rate, momentum = rates[self.count], momenta[self.count]
            weight.sub_(rate * 0.1 * x)
            average.mul_(momentum).add_(weight * (1 - momentum))
            self.count += 1
            return average.sum()

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(40):
        yield step(batch(call))


@program(refused="something else at each call")
def a_schedule_in_a_list(capture: Capture) -> Iterator[Any]:
    """The rate of the optimizer comes from a list by the step's own count."""
    torch.manual_seed(3)
    layer = nn.Linear(3, 1).to("xla")
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0, momentum=0.9)
    schedule = [0.1 * 0.95**each for each in range(60)]

    class Trainer:
        count = 0

        def step(self, x: Tensor) -> Tensor:
            for group in optimizer.param_groups:
                group["lr"] = schedule[self.count]
            optimizer.zero_grad()
            loss = layer(x).square().mean()
            loss.backward()
            optimizer.step()
            self.count += 1
            return loss.detach()

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(40):
        yield step(batch(call))
    yield layer.state_dict()


@program
def betas_that_the_step_sets(capture: Capture) -> Iterator[Any]:
    """The step sets rate, betas and decay of AdamW by its count."""
    torch.manual_seed(3)
    layer = nn.Linear(3, 1).to("xla")
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)

    class Trainer:
        count = 0

        def step(self, x: Tensor) -> Tensor:
            progress = min(1.0, self.count / 15)
            for group in optimizer.param_groups:
                group["lr"] = 0.1 * (1 - progress) + 0.01
                group["betas"] = (0.95 - 0.1 * progress, 0.99)
                group["weight_decay"] = 0.1 * progress
            optimizer.zero_grad()
            loss = layer(x).square().mean()
            loss.backward()
            optimizer.step()
            self.count += 1
            return loss.detach()

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(24):
        yield step(batch(call))
    yield layer.state_dict(), optimizer.param_groups[0]["betas"], optimizer.param_groups[0]["lr"]


@program
def arms_of_a_bandit(capture: Capture) -> Iterator[Any]:
    """The step takes the arm with the highest score and counts that; the caller sets scores from results."""
    scores, uses = {"a": 0.0, "b": 0.0, "c": 0.0}, {"a": 0, "b": 0, "c": 0}
    factors = {"a": 1.0, "b": 2.0, "c": -1.0}

    @capture
    def step(x: Tensor) -> tuple[str, Tensor]:
        arm = max(scores, key=lambda each: scores[each] + 1 / (1 + uses[each]))
        uses[arm] += 1
        return arm, x * factors[arm]

    for call in range(36):
        arm, y = step(batch(call))
        yield arm, y, dict(uses)
        scores[arm] = 0.7 * scores[arm] + 0.3 * math.sin(call)


@program
def the_layer_of_the_call(capture: Capture) -> Iterator[Any]:
    """The step names one of its layers as the present one, by its count; the caller looks at which."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.layers = nn.ModuleList([nn.Linear(3, 3) for _ in range(3)])
            self.current, self.count = self.layers[0], 0

        def forward(self, x: Tensor) -> Tensor:
            self.current = self.layers[self.count % 3]
            self.count += 1
            return self.current(x).detach()

    model = Model().to("xla")
    step = capture(model)
    for call in range(CALLS):
        yield step(batch(call))
        yield [model.current is layer for layer in model.layers], model.count


@program(refused="changes|keys|another|sets")
def a_dict_by_the_number_of_the_step(capture: Capture) -> Iterator[Any]:
    """The step notes a number under its count in a dict that grows."""

    class Trainer:
        def __init__(self) -> None:
            self.count, self.history = 0, {}

        def step(self, x: Tensor) -> Tensor:
            self.count += 1
            self.history[self.count] = self.count * 0.5
            return x * len(self.history)

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(CALLS):
        yield step(batch(call))
        yield dict(trainer.history)


@program
def random_numbers_between_calls(capture: Capture) -> Iterator[Any]:
    """The step draws on the device, by its count more or less; the caller draws in between, and sets the seed at call 11."""

    class Trainer:
        count = 0

        def step(self, x: Tensor) -> Tensor:
            self.count += 1
            y = torch.dropout(x, 0.5, True)
            if self.count % 3 == 0:
                y = y + torch.randn_like(x) * torch.rand((), device="xla")
            return y

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(24):
        if call == 11:
            torch.manual_seed(5)
        yield step(batch(call))
        if call % 2:
            yield torch.randn(2, device="xla")


@program
def random_numbers_of_two_steps(capture: Capture) -> Iterator[Any]:
    """Two captured functions and plain code take turns in drawing; one of them is called with two shapes."""
    first = capture(lambda x: x + torch.rand_like(x))
    second = capture(lambda x: torch.bernoulli(torch.full_like(x, 0.5)) * x.sum())
    for call in range(CALLS):
        yield first(batch(call, 3 + call % 2))
        if call % 3:
            yield second(batch(call))
        if call % 5 == 0:
            yield torch.randperm(4, device="xla")
