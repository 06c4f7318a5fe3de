"""Training without an optimizer object, moving averages of weights, clipping, several optimizers, and layers that are frozen."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from captured_programs import Capture, program
from torch import Tensor, nn
from torch.optim import swa_utils

CALLS = 22


def small_model() -> nn.Sequential:
    """Two layers on the device, with the same weights each time."""
    torch.manual_seed(9)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).to("xla")


def batch(call: int, rows: int = 5) -> tuple[Tensor, Tensor]:
    """Inputs and labels of a call, on the device."""
    generator = torch.Generator().manual_seed(call)
    return torch.randn(rows, 4, generator=generator).to("xla"), torch.randint(3, (rows,), generator=generator).to("xla")


def gradients(model: nn.Module) -> list[Tensor | None]:
    """What the parameters of a model have as gradients."""
    return [parameter.grad for parameter in model.parameters()]


@program
def descent_with_a_rate_that_changes_seldom(capture: Capture) -> Iterator[Any]:
    """Weights move through `.data`; the rate is a variable of the enclosing function, changed between calls 2 and 3, at 7 and 20."""
    model = small_model()
    rate = 0.1

    @capture
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.data.sub_(rate * parameter.grad)
            parameter.grad = None
        return loss.detach()

    for call in range(CALLS):
        rate = {2: 0.3, 7: 0.05, 20: 0.2}.get(call, rate)
        yield step(*batch(call))
        yield list(model.parameters()), gradients(model)


@program
def descent_with_a_rate_that_changes_at_each_call(capture: Capture) -> Iterator[Any]:
    """Weights move under no_grad; the rate is an attribute that the caller lowers after each call, gradients are zeroed in place."""

    class Trainer:
        def __init__(self) -> None:
            self.model, self.rate = small_model(), 0.2

        def step(self, x: Tensor, y: Tensor) -> Tensor:
            loss = F.cross_entropy(self.model(x), y)
            loss.backward()
            with torch.no_grad():
                for parameter in self.model.parameters():
                    assert parameter.grad is not None
                    parameter.sub_(self.rate * parameter.grad)
                    parameter.grad.zero_()
            return loss.detach()

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(CALLS):
        yield step(*batch(call))
        yield list(trainer.model.parameters())
        trainer.rate *= 0.95


@program
def descent_with_a_rate_as_argument(capture: Capture) -> Iterator[Any]:
    """Gradients by torch.autograd.grad, and a rate that is another Python float at each call."""
    model = small_model()

    @capture
    def step(x: Tensor, y: Tensor, rate: float) -> Tensor:
        parameters = list(model.parameters())
        loss = F.cross_entropy(model(x), y)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
                parameter.add_(gradient, alpha=-rate)
        return loss.detach()

    for call in range(CALLS):
        yield step(*batch(call), 0.1 * (1 + math.cos(call / 7)))
    yield model.state_dict()


@program
def momentum_in_a_dictionary(capture: Capture) -> Iterator[Any]:
    """Velocities by name, made in the first call and replaced by new tensors in each; the caller clears them at call 12."""

    class Trainer:
        def __init__(self) -> None:
            self.model = small_model()
            self.velocity: dict[str, Tensor] = {}

        def step(self, x: Tensor, y: Tensor) -> Tensor:
            loss = F.cross_entropy(self.model(x), y)
            self.model.zero_grad()
            loss.backward()
            with torch.no_grad():
                for name, parameter in self.model.named_parameters():
                    assert parameter.grad is not None
                    self.velocity[name] = 0.9 * self.velocity.get(name, 0) + parameter.grad
                    parameter.sub_(0.05 * self.velocity[name])
            return loss.detach()

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(CALLS):
        if call == 12:
            trainer.velocity.clear()
        yield step(*batch(call))
        yield trainer.velocity
    yield trainer.model.state_dict()


@program
def momentum_in_a_list(capture: Capture) -> Iterator[Any]:
    """Velocities in a list, changed in place; at call 9 the caller multiplies them, at call 15 it makes a new list."""
    model = small_model()
    parameters = list(model.parameters())
    velocities = [torch.zeros_like(parameter) for parameter in parameters]

    @capture
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        found = torch.autograd.grad(loss, parameters)
        with torch.no_grad():
            for parameter, velocity, gradient in zip(parameters, velocities, found, strict=True):
                velocity.mul_(0.8).add_(gradient)
                parameter.add_(velocity, alpha=-0.1)
        return loss.detach()

    for call in range(CALLS):
        if call == 9:
            for velocity in velocities:
                velocity *= 3
        if call == 15:
            velocities = [velocity.clone() * 0.5 for velocity in velocities]
        yield step(*batch(call))
        yield velocities
    yield model.state_dict()


@program
def an_average_of_weights_in_place(capture: Capture) -> Iterator[Any]:
    """A copy of the model follows in place after each step; its decay changes at calls 7 and 20."""

    class Trainer:
        def __init__(self) -> None:
            self.model, self.decay = small_model(), 0.9
            self.average = copy.deepcopy(self.model).requires_grad_(False)
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)

        def step(self, x: Tensor, y: Tensor) -> Tensor:
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(x), y)
            loss.backward()
            self.optimizer.step()
            with torch.no_grad():
                for slow, fast in zip(self.average.parameters(), self.model.parameters(), strict=True):
                    slow.mul_(self.decay).add_(fast, alpha=1 - self.decay)
            return loss.detach()

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(CALLS):
        trainer.decay = {7: 0.5, 20: 0.99}.get(call, trainer.decay)
        yield step(*batch(call))
        yield list(trainer.average.parameters())


@program
def an_average_of_weights_by_rebinding(capture: Capture) -> Iterator[Any]:
    """A dictionary of averages gets new tensors at each call, with a decay that grows with a count of updates."""

    class Average:
        def __init__(self, model: nn.Module) -> None:
            self.model, self.updates = model, 0
            self.shadow = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

        def update(self) -> None:
            self.updates += 1
            decay = min(0.99, (1 + self.updates) / (10 + self.updates))
            for name, parameter in self.model.named_parameters():
                self.shadow[name] = decay * self.shadow[name] + (1.0 - decay) * parameter.detach()

    model = small_model()
    average, optimizer = Average(model), torch.optim.SGD(model.parameters(), lr=0.2)

    @capture
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        average.update()
        return loss.detach()

    for call in range(CALLS):
        yield step(*batch(call))
        yield average.shadow
        yield average.updates


@program(refused="reads a value")
def averaged_models_of_torch(capture: Capture) -> Iterator[Any]:
    """Two AveragedModels are updated in the step: an exponential average, and an equal one whose count is in a CPU tensor."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    moving = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.8))
    equal = swa_utils.AveragedModel(model)

    @capture
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        moving.update_parameters(model)
        equal.update_parameters(model)
        return loss.detach()

    for call in range(CALLS):
        yield step(*batch(call))
        yield [*moving.parameters(), *equal.parameters()]
        yield [moving.n_averaged, equal.n_averaged]


@program
def gradients_clipped_by_norm(capture: Capture) -> Iterator[Any]:
    """The norm is returned; the largest one allowed is an attribute that is lowered at calls 3, 7 and 20."""

    class Trainer:
        def __init__(self) -> None:
            self.model, self.most = small_model(), 10.0
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.5, momentum=0.5)

        def step(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(x), y)
            loss.backward()
            norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.most)
            self.optimizer.step()
            return loss, norm

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(CALLS):
        trainer.most = {3: 0.3, 7: 0.1, 20: 1.0}.get(call, trainer.most)
        yield step(*batch(call))
        yield gradients(trainer.model), list(trainer.model.parameters())


@program(refused="set_to_none")
def gradients_clipped_by_value_and_zeroed_in_place(capture: Capture) -> Iterator[Any]:
    """Gradients stay tensors of zeros between the calls, and the caller looks at them; each third call clips harder."""
    model = small_model()
    optimizer = torch.optim.RMSprop(model.parameters(), lr=0.01)

    @capture
    def step(x: Tensor, y: Tensor, limit: float = 0.1) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_value_(model.parameters(), limit)
        optimizer.step()
        largest = torch.stack([p.grad.abs().max() for p in model.parameters() if p.grad is not None]).max()
        optimizer.zero_grad(set_to_none=False)
        return largest

    for call in range(CALLS):
        yield step(*batch(call), 0.01) if call % 3 == 2 else step(*batch(call))
        yield gradients(model), list(model.parameters())


@program
def a_weight_decay_that_grows(capture: Capture) -> Iterator[Any]:
    """The caller writes rate and weight decay of two groups at each call; biases have no decay."""
    model = small_model()
    weights = [parameter for parameter in model.parameters() if parameter.ndim > 1]
    biases = [parameter for parameter in model.parameters() if parameter.ndim == 1]
    optimizer = torch.optim.AdamW([{"params": weights, "decays": True}, {"params": biases, "weight_decay": 0.0, "decays": False}], lr=0.05)

    @capture
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = F.cross_entropy(model(x), y, label_smoothing=0.1)
        loss.backward()
        optimizer.step()
        return loss.detach()

    for call in range(CALLS):
        for group in optimizer.param_groups:
            group["lr"] = 0.05 * 0.5 * (1 + math.cos(math.pi * call / CALLS))
            if group["decays"]:
                group["weight_decay"] = 0.4 - 0.3 * math.cos(math.pi * call / CALLS)
        yield step(*batch(call))
        yield list(model.parameters())
