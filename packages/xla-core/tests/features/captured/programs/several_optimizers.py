"""Several optimizers, layers that are frozen and unfrozen, and hooks of optimizers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from captured_programs import Capture, program
from torch import Tensor, nn

CALLS = 22


def small_model() -> nn.Sequential:
    """Three layers on the device, with the same weights each time."""
    torch.manual_seed(13)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)).to("xla")


def batch(call: int, rows: int = 5) -> tuple[Tensor, Tensor]:
    """Inputs and labels of a call, on the device."""
    generator = torch.Generator().manual_seed(call)
    return torch.randn(rows, 4, generator=generator).to("xla"), torch.randint(3, (rows,), generator=generator).to("xla")


@program
def two_optimizers_in_one_step(capture: Capture) -> Iterator[Any]:
    """Adam for the first layers, SGD for the last; each has a schedule of its own."""
    model = small_model()
    slow = torch.optim.Adam([*model[0].parameters(), *model[2].parameters()], lr=0.02)
    fast = torch.optim.SGD(model[4].parameters(), lr=0.2, momentum=0.9)
    slow_schedule = torch.optim.lr_scheduler.ExponentialLR(slow, 0.9)
    fast_schedule = torch.optim.lr_scheduler.StepLR(fast, 5, 0.5)

    @capture
    def step(x: Tensor, y: Tensor) -> Tensor:
        for optimizer in (slow, fast):
            optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        slow.step()
        fast.step()
        return loss.detach()

    for call in range(CALLS):
        yield step(*batch(call))
        yield list(model.parameters())
        slow_schedule.step()
        fast_schedule.step()
    yield slow.state_dict(), fast.state_dict()


@program
def optimizers_in_turn_by_an_argument(capture: Capture) -> Iterator[Any]:
    """Training by Lightning's old ways: the caller says with an index which optimizer steps, and each third call both do."""
    model = small_model()
    optimizers = [torch.optim.Adam(model[0].parameters(), lr=0.02), torch.optim.Adam(model[4].parameters(), lr=0.05)]

    @capture
    def step(x: Tensor, y: Tensor, index: int | None) -> Tensor:
        chosen = optimizers if index is None else [optimizers[index]]
        model.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        for optimizer in chosen:
            optimizer.step()
        return loss

    for call in range(CALLS):
        yield step(*batch(call), None if call % 3 == 2 else call % 2)
        yield [optimizer.state_dict()["state"] for optimizer in optimizers]


@program
def another_optimizer_from_call_ten_on(capture: Capture) -> Iterator[Any]:
    """The trainer has Adam first, and SGD later; at call 16 Adam comes back with its old state."""

    class Trainer:
        def __init__(self) -> None:
            self.model = small_model()
            self.optimizer: torch.optim.Optimizer = torch.optim.Adam(self.model.parameters(), lr=0.03)

        @staticmethod
        def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(model(x), y)

        def step(self, x: Tensor, y: Tensor) -> Tensor:
            self.optimizer.zero_grad()
            loss = self.loss_of(self.model, x, y)
            loss.backward()
            self.optimizer.step()
            return loss.detach()

    trainer = Trainer()
    step = capture(trainer.step)
    first = trainer.optimizer
    for call in range(CALLS):
        if call == 10:
            trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), lr=0.1, momentum=0.9)
        if call == 16:
            trainer.optimizer = first
        yield step(*batch(call))
        yield list(trainer.model.parameters())
    yield first.state_dict()


@program
def layers_that_thaw_one_by_one(capture: Capture) -> Iterator[Any]:
    """Only the last layer trains at first; the next joins at call 7, the first at call 14, and at call 20 the last is frozen."""
    model = small_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.03)
    model[0].requires_grad_(False)
    model[2].requires_grad_(False)

    @capture
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    for call in range(CALLS):
        if call in (7, 14):
            model[2 if call == 7 else 0].requires_grad_(True)
        if call == 20:
            model[4].requires_grad_(False)
        yield step(*batch(call))
        yield list(model.parameters())
    yield optimizer.state_dict()


@program
def a_layer_frozen_by_a_threshold_inside(capture: Capture) -> Iterator[Any]:
    """The step itself drops the first layer's gradients while the epoch, an attribute set by the caller, is below two."""

    class Trainer:
        def __init__(self) -> None:
            self.model, self.epoch = small_model(), 0
            self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.03)

        def step(self, x: Tensor, y: Tensor) -> Tensor:
            self.optimizer.zero_grad()
            loss = F.cross_entropy(self.model(x), y)
            loss.backward()
            if self.epoch < 2:
                for parameter in self.model[0].parameters():
                    parameter.grad = None
            self.optimizer.step()
            return loss.detach()

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(CALLS):
        trainer.epoch = call // 5
        yield step(*batch(call))
        yield list(trainer.model.parameters())
    yield trainer.optimizer.state_dict()


@program
def hooks_of_an_optimizer(capture: Capture) -> Iterator[Any]:
    """A hook halves gradients before each step, another bounds the weights behind it; the second comes at call 7, the first goes at 15."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4)

    def halve(optimizer: Any, *_: Any) -> None:
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.grad.mul_(0.5)

    def bound(optimizer: Any, *_: Any) -> None:
        with torch.no_grad():
            for parameter in optimizer.param_groups[0]["params"]:
                parameter.clamp_(-0.3, 0.3)

    before = optimizer.register_step_pre_hook(halve)

    @capture
    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    for call in range(CALLS):
        if call == 7:
            optimizer.register_step_post_hook(bound)
        if call == 15:
            before.remove()
        yield step(*batch(call))
        yield list(model.parameters())


@program
def an_optimizer_per_parameter_inside_the_backward_pass(capture: Capture) -> Iterator[Any]:
    """Each parameter is stepped and loses its gradient as soon as that is complete; all rates fall at call 9."""
    model = small_model()
    optimizers = {parameter: torch.optim.Adam([parameter], lr=0.02) for parameter in model.parameters()}

    def at_once(parameter: Tensor) -> None:
        optimizers[parameter].step()  # type: ignore[index]
        optimizers[parameter].zero_grad()  # type: ignore[index]

    for parameter in model.parameters():
        parameter.register_post_accumulate_grad_hook(at_once)

    @capture
    def step(x: Tensor, y: Tensor) -> Tensor:
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        return loss

    for call in range(CALLS):
        if call == 9:
            for optimizer in optimizers.values():
                optimizer.param_groups[0]["lr"] = 0.005
        yield step(*batch(call))
        yield list(model.parameters())
    yield [optimizer.state_dict() for optimizer in optimizers.values()]


@program
def an_optimizer_that_takes_a_closure(capture: Capture) -> Iterator[Any]:
    """The step gives its optimizer a function that computes the loss; momentum comes from a schedule."""
    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)

    @capture
    def step(x: Tensor, y: Tensor) -> Any:
        def closure() -> Any:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        return optimizer.step(closure)

    for call in range(CALLS):
        optimizer.param_groups[0]["momentum"] = 0.5 + call / 50
        yield step(*batch(call))
        yield list(model.parameters())


@program(refused="read|value|item")
def an_optimizer_that_reads_the_loss(capture: Capture) -> Iterator[Any]:
    """L-BFGS decides on the host, by values of losses and gradients, how often it evaluates."""
    model = small_model()
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=2)

    @capture
    def step(x: Tensor, y: Tensor) -> Any:
        def closure() -> Any:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        return optimizer.step(closure)

    for call in range(20):
        yield step(*batch(call))
        yield list(model.parameters())
