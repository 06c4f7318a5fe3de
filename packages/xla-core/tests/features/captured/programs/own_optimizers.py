"""Optimizers of one's own: subclasses of torch's with counts and products in Python, and wrappers around others."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from captured_programs import Capture, program
from torch import Tensor, nn

CALLS = 22


def small_model() -> nn.Sequential:
    """Two layers on the device, with the same weights each time."""
    torch.manual_seed(5)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).to("xla")


def batch(call: int, rows: int = 5) -> tuple[Tensor, Tensor]:
    """Inputs and labels of a call, on the device."""
    generator = torch.Generator().manual_seed(call)
    return torch.randn(rows, 4, generator=generator).to("xla"), torch.randint(3, (rows,), generator=generator).to("xla")


def train(capture: Capture, model: nn.Module, optimizer: Any, between: Callable[[int], Any] = lambda call: None) -> Iterator[Any]:
    """Train; `between` runs before each call with its number. Yields losses and weights, and all state at the end."""

    @capture
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    for call in range(CALLS):
        between(call)
        yield step(*batch(call))
        yield list(model.parameters())
    yield model.state_dict()
    if isinstance(optimizer, torch.optim.Optimizer):
        yield optimizer.state_dict()


class Stepper(torch.optim.Optimizer):
    """Calls `update` for each parameter that has a gradient."""

    def __init__(self, params: Any, **defaults: Any) -> None:
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One step of all groups."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.update(parameter, parameter.grad, group, self.state[parameter])

    def update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
        """Change a parameter in place."""
        raise NotImplementedError


@program
def the_sign_of_the_momentum(capture: Capture) -> Iterator[Any]:
    """Lion, which has no counts; its rate and its second beta change at calls 7 and 20."""

    class Lion(Stepper):
        def update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
            if not state:
                state["average"] = torch.zeros_like(parameter)
            average, (first, second) = state["average"], group["betas"]
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            parameter.add_((average * first + gradient * (1 - first)).sign(), alpha=-group["lr"])
            average.lerp_(gradient, 1 - second)

    model = small_model()
    optimizer = Lion(model.parameters(), lr=0.01, betas=(0.9, 0.99), weight_decay=0.1)
    changes: dict[int, dict[str, Any]] = {7: {"lr": 0.003}, 20: {"betas": (0.9, 0.9)}}
    yield from train(capture, model, optimizer, lambda call: optimizer.param_groups[0].update(changes.get(call, {})))


@program
def bias_correction_with_a_python_count(capture: Capture) -> Iterator[Any]:
    """Adam as in textbooks: the step count is a Python integer in the state of each parameter."""

    class TextbookAdam(Stepper):
        def update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
            if len(state) == 0:
                state["step"] = 0
                state["first"], state["second"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
            state["step"] += 1
            a, b = group["betas"]
            state["first"].mul_(a).add_(gradient, alpha=1 - a)
            state["second"].mul_(b).addcmul_(gradient, gradient, value=1 - b)
            size = group["lr"] * math.sqrt(1 - b ** state["step"]) / (1 - a ** state["step"])
            parameter.addcdiv_(state["first"], state["second"].sqrt().add_(1e-4), value=-size)

    model = small_model()
    yield from train(capture, model, TextbookAdam(model.parameters(), lr=0.05, betas=(0.9, 0.99)))


@program
def a_rate_that_follows_a_count_in_the_group(capture: Capture) -> Iterator[Any]:
    """Like Adafactor: the rate is the inverse square root of a count that the group keeps as an integer."""

    class InverseRoot(Stepper):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                group["step"] = group.get("step", 0) + 1
                group["size"] = min(group["lr"], 0.3 / math.sqrt(group["step"]))
            super().step()

        def update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
            parameter.sub_(gradient * group["size"])

    model = small_model()
    optimizer = InverseRoot(model.parameters(), lr=0.15)
    yield from train(capture, model, optimizer)
    yield optimizer.param_groups[0]["step"], optimizer.param_groups[0]["size"]


@program
def a_count_that_ends_the_warm_up(capture: Capture) -> Iterator[Any]:
    """Up to the fifth step the update is plain, then it has momentum: a comparison of a Python count."""

    class LateMomentum(Stepper):
        def update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
            state["step"] = state.get("step", 0) + 1
            if state["step"] <= group["warm_up"]:
                parameter.add_(gradient, alpha=-group["lr"])
                return
            velocity = state.setdefault("velocity", torch.zeros_like(parameter))
            velocity.mul_(0.9).add_(gradient)
            parameter.add_(velocity, alpha=-group["lr"])

    model = small_model()
    yield from train(capture, model, LateMomentum(model.parameters(), lr=0.1, warm_up=5))


@program(refused="something else at each call")
def a_count_in_a_text(capture: Capture) -> Iterator[Any]:
    """The optimizer says in an attribute which step it made, and with which rate."""

    class Talking(Stepper):
        status = "not started"

        def update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
            state["step"] = state.get("step", 0) + 1
            parameter.add_(gradient, alpha=-group["lr"])
            self.status = f"step {state['step']:03d}, rate {group['lr']:.2g}"

    model = small_model()
    optimizer = Talking(model.parameters(), lr=0.1)
    for seen in train(capture, model, optimizer):
        yield seen
        yield optimizer.status


@program
def a_product_of_python_floats_in_the_state(capture: Capture) -> Iterator[Any]:
    """The momentum grows with the count, and its product over all steps is a Python float in the state."""

    class Nesterov(Stepper):
        def update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
            if not state:
                state.update(step=0, product=1.0, average=torch.zeros_like(parameter))
            state["step"] += 1
            momentum = 0.9 * (1.0 - 0.5 * 0.96 ** state["step"])
            state["product"] *= momentum
            state["average"].mul_(momentum).add_(gradient, alpha=1 - momentum)
            parameter.add_(state["average"] / (1 - state["product"]), alpha=-group["lr"])

    model = small_model()
    yield from train(capture, model, Nesterov(model.parameters(), lr=0.1))


@program
def an_attribute_of_the_optimizer(capture: Capture) -> Iterator[Any]:
    """The caller changes an attribute that the optimizer multiplies gradients with: at calls 2 and 7, and from 12 on at each call."""

    class Scaled(Stepper):
        temperature = 1.0

        def update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
            parameter.sub_(gradient * (group["lr"] / self.temperature))

    model = small_model()
    optimizer = Scaled(model.parameters(), lr=0.1)

    def between(call: int) -> None:
        if call in (2, 7) or call >= 12:
            optimizer.temperature = 1.0 + call / 10

    yield from train(capture, model, optimizer, between)


@program
def lookahead(capture: Capture) -> Iterator[Any]:
    """Each fourth step the slow weights move half the way to the fast ones, and the fast ones are set to them."""

    class Lookahead:
        def __init__(self, inner: torch.optim.Optimizer) -> None:
            self.inner, self.steps = inner, 0
            self.slow = [p.detach().clone() for group in inner.param_groups for p in group["params"]]

        def zero_grad(self) -> None:
            self.inner.zero_grad()

        @torch.no_grad()
        def step(self) -> None:
            self.inner.step()
            self.steps += 1
            if self.steps % 4 == 0:
                fast = [p for group in self.inner.param_groups for p in group["params"]]
                for slow, parameter in zip(self.slow, fast, strict=True):
                    slow.add_(parameter - slow, alpha=0.5)
                    parameter.copy_(slow)

    model = small_model()
    optimizer = Lookahead(torch.optim.Adam(model.parameters(), lr=0.05))
    yield from train(capture, model, optimizer)
    yield optimizer.slow
    yield optimizer.steps, optimizer.inner.state_dict()


@program
def an_update_every_third_call(capture: Capture) -> Iterator[Any]:
    """A wrapper lets gradients add up, and steps and clears them each third time only."""

    class Delayed:
        def __init__(self, inner: torch.optim.Optimizer, every: int) -> None:
            self.inner, self.every, self.pending = inner, every, 0

        def zero_grad(self) -> None:
            if self.pending == 0:
                self.inner.zero_grad()

        def step(self) -> None:
            self.pending += 1
            if self.pending == self.every:
                self.inner.step()
                self.pending = 0

    model = small_model()
    optimizer = Delayed(torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), 3)
    for seen in train(capture, model, optimizer):
        yield seen
        yield optimizer.pending
        yield [parameter.grad for parameter in model.parameters()]


@program
def a_wrapper_that_sets_the_rate_by_its_count(capture: Capture) -> Iterator[Any]:
    """The schedule of the first transformers: the wrapper counts its steps and writes the rate before each of them."""

    class WarmUp:
        def __init__(self, inner: torch.optim.Optimizer, width: int, warm_up: int) -> None:
            self.inner, self.width, self.warm_up = inner, width, warm_up
            self._step, self._rate = 0, 0.0

        def zero_grad(self) -> None:
            self.inner.zero_grad()

        def step(self) -> None:
            self._step += 1
            self._rate = self.width**-0.5 * min(self._step**-0.5, self._step * self.warm_up**-1.5)
            for group in self.inner.param_groups:
                group["lr"] = self._rate
            self.inner.step()

    model = small_model()
    optimizer = WarmUp(torch.optim.Adam(model.parameters(), lr=0.0, betas=(0.9, 0.98)), 16, 6)
    for seen in train(capture, model, optimizer):
        yield seen
        yield optimizer._rate, optimizer.inner.param_groups[0]["lr"]


@program
def two_passes_for_a_flat_minimum(capture: Capture) -> Iterator[Any]:
    """Climb to the worst neighbour, take the gradient there, come back and step; the radius changes at calls 7 and 20."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    class Trainer:
        radius = 0.05

        def step(self, x: Tensor, y: Tensor) -> Tensor:
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            old = [parameter.detach().clone() for parameter in model.parameters()]
            with torch.no_grad():
                norm = torch.stack([p.grad.norm() for p in model.parameters() if p.grad is not None]).norm()
                for parameter in model.parameters():
                    if parameter.grad is not None:
                        parameter.add_(parameter.grad * (self.radius / (norm + 1e-6)))
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            for parameter, value in zip(model.parameters(), old, strict=True):
                parameter.data.copy_(value)
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(CALLS):
        trainer.radius = {7: 0.2, 20: 0.01}.get(call, trainer.radius)
        yield step(*batch(call))
        yield list(model.parameters())


@program
def updates_that_change_their_kind_with_the_parity(capture: Capture) -> Iterator[Any]:
    """A count in an attribute: even steps move weights, odd ones biases."""

    class Alternating(Stepper):
        steps = 0

        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            self.steps += 1
            super().step()

        def update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
            if parameter.ndim == 2 - self.steps % 2:
                parameter.add_(gradient, alpha=-group["lr"])

    model = small_model()
    optimizer = Alternating(model.parameters(), lr=0.2)
    yield from train(capture, model, optimizer)
    yield optimizer.steps


@program
def trust_ratios(capture: Capture) -> Iterator[Any]:
    """Like LARS: steps are scaled by norms of weights and gradients on the device, and the rate falls at each call."""

    class Trusting(Stepper):
        def update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
            size, slope = parameter.norm(), gradient.norm()
            ratio = torch.where((size > 0) & (slope > 0), group["trust"] * size / (slope + 1e-6), 1.0)
            parameter.sub_(gradient * ratio * group["lr"])

    model = small_model()
    optimizer = Trusting(model.parameters(), lr=1.0, trust=0.02)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.95)
    yield from train(capture, model, optimizer, lambda call: scheduler.step())


@program(refused="changes the items")
def rates_that_are_noted_in_a_list(capture: Capture) -> Iterator[Any]:
    """The optimizer appends the rate it used to a list at each step."""

    class Noting(Stepper):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            self.used: list[float] = getattr(self, "used", [])
            self.used.append(self.param_groups[0]["lr"])
            super().step()

        def update(self, parameter: Tensor, gradient: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
            parameter.sub_(gradient * group["lr"])

    model = small_model()
    optimizer = Noting(model.parameters(), lr=0.3)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.8)
    for seen in train(capture, model, optimizer, lambda call: scheduler.step()):
        yield seen
        yield optimizer.used
