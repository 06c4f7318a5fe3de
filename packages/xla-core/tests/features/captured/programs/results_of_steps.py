"""What a step returns: containers and objects of all kinds, what the caller does to them afterwards, and what they share with state."""

from __future__ import annotations

import enum
import time
from collections.abc import Iterator
from typing import Any

import torch
from captured_programs import Capture, program
from torch import Tensor, nn

CALLS = 22


def batch(call: int, size: int = 3) -> Tensor:
    """Other numbers for each call, on the device."""
    return torch.sin(torch.arange(size, dtype=torch.float32) * 2 + call).to("xla")


@program
def one_tensor_returned_twice(capture: Capture) -> Iterator[Any]:
    """A tensor is returned under two names; the caller writes to the one and reads the other."""

    @capture
    def step(x: Tensor) -> dict[str, Tensor]:
        loss = x.square()
        return {"loss": loss, "total": loss, "part": loss[1:]}

    for call in range(CALLS):
        results = step(batch(call))
        results["loss"].add_(1)
        yield results


@program
def one_object_at_two_places(capture: Capture) -> Iterator[Any]:
    """A tensor is returned twice, and kept at the model: it is one object."""

    class Model:
        hidden: Tensor | None = None

        def step(self, x: Tensor) -> tuple[Tensor, Tensor]:
            self.hidden = x * 2
            return self.hidden, self.hidden

    model = Model()
    step = capture(model.step)
    for call in range(CALLS):
        one, other = step(batch(call))
        yield one is other, one is model.hidden


@program
def a_view_of_the_argument_as_result(capture: Capture) -> Iterator[Any]:
    """The result is a part of the argument; the caller writes to the result and looks at the argument."""
    step = capture(lambda x: (x[1:], x.sum()))
    for call in range(CALLS):
        x = batch(call)
        part, total = step(x)
        part.zero_()
        yield x, total


@program
def a_view_of_the_state_as_result(capture: Capture) -> Iterator[Any]:
    """The result is a part of a state that goes on changing; the caller keeps the first three, and writes to some."""
    state = batch(0, 6)

    @capture
    def step(x: Tensor) -> Tensor:
        state[:3] += x
        return state[2:4]

    kept = []
    for call in range(CALLS):
        part = step(batch(call))
        if call in (0, 7, 19):
            kept.append(part)
        if call % 5 == 4:
            part.fill_(float(call))
        yield kept
        yield state


@program
def results_that_the_caller_writes_to(capture: Capture) -> Iterator[Any]:
    """The step keeps what it returns for the next call; the caller changes it in place in between."""

    class Model:
        def __init__(self) -> None:
            self.hidden = torch.zeros(3, device="xla")

        def step(self, x: Tensor) -> Tensor:
            self.hidden = torch.tanh(self.hidden + x)
            return self.hidden

    model = Model()
    step = capture(model.step)
    for call in range(CALLS):
        hidden = step(batch(call))
        if call % 3 == 2:
            hidden.mul_(0.5)
        yield model.hidden


@program
def results_of_many_calls(capture: Capture) -> Iterator[Any]:
    """All results are kept, and read in the end: none may change later."""
    total = torch.zeros(3, device="xla")

    @capture
    def step(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        total.add_(x)
        return total.clone(), total, x

    kept = [step(batch(call)) for call in range(CALLS)]
    yield kept


@program
def the_rate_of_the_schedule_as_result(capture: Capture) -> Iterator[Any]:
    """Logs of the loss and of the rate that the schedule says it has set last."""
    torch.manual_seed(3)
    model = nn.Linear(3, 1).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 15)

    @capture
    def step(x: Tensor) -> dict[str, Any]:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return {"loss": loss.detach(), "lr": scheduler.get_last_lr()[0], "step": scheduler.last_epoch}

    for call in range(CALLS):
        yield step(batch(call))
        scheduler.step()


@program(refused="number|each call|clock|time")
def the_seconds_of_the_step_as_result(capture: Capture) -> Iterator[Any]:
    """Logs of the loss and of how long it took."""

    @capture
    def step(x: Tensor) -> dict[str, Any]:
        begin = time.perf_counter()
        loss = x.square().mean()
        return {"loss": loss, "seconds": time.perf_counter() - begin}

    for call in range(CALLS):
        logs = step(batch(call))
        yield logs["loss"], logs["seconds"] > 0


@program(refused="number|each call|clock|time")
def the_seconds_since_the_last_step(capture: Capture) -> Iterator[Any]:
    """A trainer measures the time between calls, and keeps an average of it."""

    class Trainer:
        def __init__(self) -> None:
            self.last, self.average = time.perf_counter(), 0.0

        def step(self, x: Tensor) -> Tensor:
            now = time.perf_counter()
            self.average = 0.9 * self.average + 0.1 * (now - self.last)
            self.last = now
            return x * 2

    trainer = Trainer()
    step = capture(trainer.step)
    seen: set[float] = set()
    for call in range(CALLS):
        yield step(batch(call))
        yield trainer.last in seen
        seen.add(trainer.last)


@program
def a_gradient_as_result(capture: Capture) -> Iterator[Any]:
    """The step returns the gradient that it leaves at a weight; the caller scales the one, and sees it in the other."""
    weight = batch(1).requires_grad_()

    @capture
    def step(x: Tensor) -> Tensor | None:
        weight.grad = None
        (weight * x).square().sum().backward()
        return weight.grad

    for call in range(CALLS):
        gradient = step(batch(call))
        if call % 2 and gradient is not None:
            gradient.mul_(3)
        yield gradient, weight.grad


class Phase(enum.Enum):
    """How far a training is."""

    WARM = "warm"
    HOT = "hot"


@program
def a_phase_as_result(capture: Capture) -> Iterator[Any]:
    """The step says with its result in which phase it was, which its own counter decides."""

    class Trainer:
        count = 0

        def step(self, x: Tensor) -> tuple[Phase, int, Tensor]:
            self.count += 1
            phase = Phase.WARM if self.count < 12 else Phase.HOT
            return phase, self.count * 2, x * (1 if phase is Phase.WARM else 5)

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(24):
        phase, number, y = step(batch(call))
        yield phase is Phase.HOT, number, y
