"""Schedules that scripts compute by hand from the number of the step: rates, temperatures, weights of losses, what to do when."""

from __future__ import annotations

import bisect
import copy
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from captured_programs import Capture, program
from torch import Tensor, nn


def batch(call: int, size: int = 4) -> Tensor:
    """Other numbers for each call, on the device."""
    return torch.sin(torch.arange(2 * size, dtype=torch.float32) * 3 + call).reshape(2, size).to("xla")


def linear() -> nn.Linear:
    """The same small layer each time."""
    torch.manual_seed(0)
    return nn.Linear(4, 3).to("xla")


@program
def a_cosine_with_warm_up_by_hand(capture: Capture) -> Iterator[Any]:
    """The trainer computes the rate of its own count and writes it into the groups of the optimizer, inside the step."""

    class Trainer:
        warm_up, total, high, low = 4, 18, 0.3, 0.03

        def __init__(self) -> None:
            self.model = linear()
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
            self.iteration = 0

        def rate(self) -> float:
            if self.iteration < self.warm_up:
                return self.high * (self.iteration + 1) / self.warm_up
            if self.iteration > self.total:
                return self.low
            done = (self.iteration - self.warm_up) / (self.total - self.warm_up)
            return self.low + 0.5 * (1 + math.cos(math.pi * done)) * (self.high - self.low)

        def step(self, x: Tensor) -> Tensor:
            for group in self.optimizer.param_groups:
                group["lr"] = self.rate()
            loss: Tensor = self.model(x).square().mean()
            loss.backward()
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            self.iteration += 1
            return loss.detach()

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(24):
        yield step(batch(call))
        yield trainer.model.weight
        yield trainer.optimizer.param_groups[0]["lr"]


@program
def a_rate_that_the_caller_computes(capture: Capture) -> Iterator[Any]:
    """The update is written by hand, with a rate that the caller computes before each call."""
    weight = torch.linspace(-1, 1, 4).to("xla").requires_grad_()
    setting = {"lr": 0.0}

    @capture
    def step(x: Tensor) -> Tensor:
        loss = (x @ weight).square().mean()
        (gradient,) = torch.autograd.grad(loss, [weight])
        with torch.no_grad():
            weight.sub_(gradient, alpha=setting["lr"])
        return loss.detach()

    for call in range(22):
        setting["lr"] = 0.2 * 0.9**call
        yield step(batch(call))
        yield weight


@program
def an_average_with_a_warm_up(capture: Capture) -> Iterator[Any]:
    """The decay of averaged weights is the smaller of a constant and (1 + n) / (10 + n), with n counted inside."""

    class Average:
        def __init__(self, model: nn.Module, decay: float) -> None:
            self.model, self.decay, self.updates = model, decay, 0
            self.shadow = copy.deepcopy(model).requires_grad_(False)

        @torch.no_grad()
        def update(self) -> None:
            self.updates += 1
            decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
            for mine, theirs in zip(self.shadow.parameters(), self.model.parameters(), strict=True):
                mine.mul_(decay).add_(theirs, alpha=1 - decay)

    model = linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    average = Average(model, 0.6)

    @capture
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(x).square().mean()
        loss.backward()
        optimizer.step()
        average.update()
        return loss.detach()

    for call in range(24):
        yield step(batch(call))
        yield average.shadow.weight
        if call == 20:
            average.updates = 0
    yield average.updates


@program
def a_power_of_the_count(capture: Capture) -> Iterator[Any]:
    """A discount decays as 0.9 ** n; the caller sets n back to zero at call 10."""
    n, base = 0, 0.9

    @capture
    def step(x: Tensor) -> Tensor:
        nonlocal n
        discount = base**n
        n += 1
        return x * discount + (1 - discount)

    for call in range(20):
        if call == 10:
            n = 0
        if call == 15:
            base = 0.5
        yield step(batch(call))


@program
def a_warm_up_of_five_calls(capture: Capture) -> Iterator[Any]:
    """The first five calls scale the loss down; later ones don't, until the caller starts again."""

    class Trainer:
        def __init__(self) -> None:
            self.model, self.n = linear(), 0

        def step(self, x: Tensor) -> Tensor:
            self.n += 1
            loss: Tensor = self.model(x).square().sum()
            if self.n < 5:
                loss = loss * self.n / 5
            loss.backward()
            return loss.detach()

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(22):
        yield step(batch(call))
        yield trainer.model.weight.grad
        if call == 13:
            trainer.n = 0
            trainer.model.zero_grad()


@program
def a_temperature_that_cools(capture: Capture) -> Iterator[Any]:
    """The temperature of a softmax falls exponentially, down to a floor, and is kept for the log."""

    class Sampler:
        def __init__(self) -> None:
            self.step, self.temperature = 0, 1.0

        def sample(self, x: Tensor) -> Tensor:
            self.temperature = max(0.2, math.exp(-0.15 * self.step))
            self.step += 1
            return torch.softmax(x / self.temperature, -1)

    sampler = Sampler()
    sample = capture(sampler.sample)
    for call in range(20):
        yield sample(batch(call))
        yield sampler.temperature


@program
def a_rate_of_inverse_roots(capture: Capture) -> Iterator[Any]:
    """The rate of the first transformer, with roots of the step, in an optimizer that the step is given by its owner."""

    class Noam:
        def __init__(self, optimizer: torch.optim.Optimizer, width: int, warm_up: int) -> None:
            self.optimizer, self.width, self.warm_up, self.number = optimizer, width, warm_up, 0

        def step(self) -> None:
            self.number += 1
            rate = self.width**-0.5 * min(1 / math.sqrt(self.number), self.number * self.warm_up**-1.5)
            for group in self.optimizer.param_groups:
                group["lr"] = rate
            self.optimizer.step()

    model = linear()
    noam = Noam(torch.optim.Adam(model.parameters(), lr=0, betas=(0.9, 0.98)), 16, 6)

    @capture
    def step(x: Tensor) -> Tensor:
        noam.optimizer.zero_grad()
        loss: Tensor = model(x).square().mean()
        loss.backward()
        noam.step()
        return loss.detach()

    for call in range(20):
        yield step(batch(call))
        yield model.bias
        if call == 9:
            noam.warm_up = 12
    yield noam.number


@program(refused="names numpy.interp")
def an_interpolation_with_numpy(capture: Capture) -> Iterator[Any]:
    """numpy.interp of the step among milestones gives the weight of a loss, and numpy.cos that of another."""
    state = {"step": 0}
    places, values = [0, 6, 12, 18], [0.0, 1.0, 0.25, 0.5]

    @capture
    def step(x: Tensor) -> Any:
        first = float(np.interp(state["step"], places, values))
        second = 0.5 * (1 + np.cos(np.pi * state["step"] / 20))
        state["step"] += 1
        return x.square() * first + x.abs() * second

    for call in range(22):
        if call == 8:
            values[-1] = 2.0
        yield step(batch(call))


@program
def gradients_of_four_calls(capture: Capture) -> Iterator[Any]:
    """Gradients of four calls are added up before the optimizer steps, by a count inside; later of two calls."""

    class Trainer:
        def __init__(self) -> None:
            self.model = linear()
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.2)
            self.accumulate, self.micro_step, self.steps = 4, 0, 0

        def step(self, x: Tensor) -> Tensor:
            loss: Tensor = self.model(x).square().mean() / self.accumulate
            loss.backward()
            self.micro_step += 1
            if self.micro_step % self.accumulate == 0:
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.steps += 1
            return loss.detach()

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(24):
        yield step(batch(call))
        yield trainer.model.weight
        yield trainer.steps, trainer.model.weight.grad is None
        if call == 15:
            trainer.accumulate = 2


@program
def a_layer_that_thaws(capture: Capture) -> Iterator[Any]:
    """The first layer is frozen until call 8, by the step itself, which counts."""

    class Trainer:
        def __init__(self) -> None:
            torch.manual_seed(0)
            self.model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)).to("xla")
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.2)
            self.model[0].requires_grad_(False)
            self.calls = 0

        def step(self, x: Tensor) -> Tensor:
            self.calls += 1
            if self.calls == 8:
                self.model[0].requires_grad_(True)
            self.optimizer.zero_grad()
            loss: Tensor = self.model(x).square().mean()
            loss.backward()
            self.optimizer.step()
            return loss.detach()

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(20):
        yield step(batch(call))
        yield trainer.model[0].weight
        yield trainer.model[0].weight.requires_grad


@program
def a_target_that_follows(capture: Capture) -> Iterator[Any]:
    """A target network takes the weights each third call, as Q-learning does, by load_state_dict inside."""

    class Learner:
        def __init__(self) -> None:
            self.online, self.every, self.updates = linear(), 3, 0
            self.target = copy.deepcopy(self.online)
            self.optimizer = torch.optim.Adam(self.online.parameters(), lr=0.05)

        def learn(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                aim = self.target(x).max(-1).values * 0.9 + 1
            loss: Tensor = (self.online(x)[:, 0] - aim).square().mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.updates += 1
            if self.updates % self.every == 0:
                self.target.load_state_dict(self.online.state_dict())
            return loss.detach()

    learner = Learner()
    learn = capture(learner.learn)
    for call in range(24):
        yield learn(batch(call))
        yield learner.target.weight
        if call == 17:
            learner.every = 5


@program
def a_weight_that_rises_to_one(capture: Capture) -> Iterator[Any]:
    """The weight of the divergence of an autoencoder is min(1, n / 10), and both losses and the weight are returned."""
    counted = {"kl": 0}

    @capture
    def step(x: Tensor) -> dict[str, Any]:
        counted["kl"] += 1
        weight = min(1.0, counted["kl"] / 10)
        divergence, likelihood = x.exp().mean(), x.square().mean()
        return {"loss": likelihood + weight * divergence, "kl": divergence, "weight": weight}

    for call in range(20):
        yield step(batch(call))


@program
def milestones_in_a_list(capture: Capture) -> Iterator[Any]:
    """The rate falls by half at each milestone, which bisect finds; the caller adds one at call 12."""

    class Schedule:
        def __init__(self) -> None:
            self.milestones, self.done = [5, 9], 0

        def scale(self, x: Tensor) -> Tensor:
            passed = bisect.bisect_right(self.milestones, self.done)
            self.done += 1
            return x * 0.5**passed

    schedule = Schedule()
    step = capture(schedule.scale)
    for call in range(20):
        if call == 12:
            schedule.milestones.append(16)
        yield step(batch(call))


@program
def a_rate_that_falls_on_a_plateau(capture: Capture) -> Iterator[Any]:
    """The caller measures, keeps the best, and lowers the rate after two calls without a better one; the step reads both."""

    class Plateau:
        def __init__(self) -> None:
            self.best, self.bad, self.rate = math.inf, 0, 1.0

        def measure(self, value: float) -> None:
            self.bad = 0 if value < self.best else self.bad + 1
            self.best = min(self.best, value)
            if self.bad > 1:
                self.rate, self.bad = self.rate / 2, 0

    plateau = Plateau()

    @capture
    def step(x: Tensor) -> Tensor:
        return x.clamp(max=plateau.best) * plateau.rate

    for call in range(24):
        yield step(batch(call))
        plateau.measure(abs(call - 9) * 0.125)
