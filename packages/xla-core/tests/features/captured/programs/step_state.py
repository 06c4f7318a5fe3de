"""State of Python around a step: meters, logs, iterators, phases and cursors that calls move on."""

from __future__ import annotations

import collections
import contextlib
import types
from collections.abc import Iterator
from typing import Any

import torch
from captured_programs import Capture, program
from torch import Tensor, nn


def batch(call: int, size: int = 4) -> Tensor:
    """Other numbers for each call, on the device."""
    return torch.cos(torch.arange(size, dtype=torch.float32) * 2 + call).to("xla")


@program(refused=r"generator|iterator|differs|was .* in call|changes")
def a_generator_of_factors(capture: Capture) -> Iterator[Any]:
    """The step asks a generator for its factor, which halves each time."""

    def halves() -> Iterator[float]:
        value = 8.0
        while True:
            yield value
            value /= 2

    factors = halves()

    @capture
    def step(x: Tensor) -> Tensor:
        return x * next(factors)

    for call in range(20):
        yield step(batch(call))
    yield next(factors)


@program
def an_iterator_that_the_caller_advances(capture: Capture) -> Iterator[Any]:
    """The caller takes a factor from an iterator every third call and puts it where the step reads it."""
    factors = iter([1.0, 0.5, 0.25, 2.0, 3.0, -1.0, 0.0, 4.0])
    shared = types.SimpleNamespace(factor=0.0)

    @capture
    def step(x: Tensor) -> Any:
        return x * shared.factor

    for call in range(24):
        if call % 3 == 0:
            shared.factor = next(factors)
        yield step(batch(call))


@program(refused="changes the items")
def a_log_of_numbers(capture: Capture) -> Iterator[Any]:
    """The step writes its number and its learning rate into a list, which the caller empties after call 12."""

    class Logger:
        def __init__(self) -> None:
            self.lines: list[tuple[int, float]] = []
            self.step, self.rate = 0, 0.1

        def log(self, x: Tensor) -> Tensor:
            self.step += 1
            self.lines.append((self.step, self.rate))
            return x * self.rate

    logger = Logger()
    step = capture(logger.log)
    for call in range(20):
        if call == 5:
            logger.rate = 0.01
        yield step(batch(call))
        yield logger.lines
        if call == 12:
            logger.lines.clear()


@program(refused=r"append|kept|list|changes")
def a_list_of_losses(capture: Capture) -> Iterator[Any]:
    """The step keeps the loss of each call in a list, which is averaged in the end."""
    losses: list[Tensor] = []

    @capture
    def step(x: Tensor) -> None:
        losses.append(x.square().mean())

    for call in range(20):
        step(batch(call))
    yield len(losses)
    yield torch.stack(losses)


@program(refused="changes the items")
def a_window_of_numbers(capture: Capture) -> Iterator[Any]:
    """The mean of the last four numbers that the caller measured scales the result; the step counts in a deque, too."""
    measured: collections.deque[float] = collections.deque([1.0], maxlen=4)
    kept: collections.deque[int] = collections.deque(maxlen=3)

    @capture
    def step(x: Tensor) -> Tensor:
        kept.append(len(measured))
        return x * (sum(measured) / len(measured))

    for call in range(20):
        yield step(batch(call))
        if call % 2:
            measured.append(call / 4)
        yield list(kept)


class AverageMeter:
    """A running mean, as training scripts have it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.reset()

    def reset(self) -> None:
        """Forget all."""
        self.sum: Any = 0
        self.count = 0

    def update(self, value: Any, n: int = 1) -> None:
        """Add n samples of a value."""
        self.sum += value * n
        self.count += n

    @property
    def average(self) -> Any:
        """The mean so far."""
        return self.sum / max(self.count, 1)


@program
def a_meter_of_samples(capture: Capture) -> Iterator[Any]:
    """A meter inside the step has a sum on the device and a count of Python; the caller resets it after call 9."""
    meter = AverageMeter("loss")

    @capture
    def step(x: Tensor) -> Tensor:
        loss = x.square().mean()
        meter.update(loss.detach(), x.size(0))
        return loss

    for call in range(20):
        yield step(batch(call))
        if call % 4 == 3:
            yield meter.average
            yield meter.count
        if call == 9:
            meter.reset()
    yield meter.average


@program
def a_limit_of_calls(capture: Capture) -> Iterator[Any]:
    """The step raises an error once it was called fifteen times; the caller goes on, and sets the count back later."""

    class Budget:
        def __init__(self) -> None:
            self.left = 15

        def step(self, x: Tensor) -> Tensor:
            if self.left <= 0:
                raise StopIteration(f"no budget: {self.left}")
            self.left -= 1
            return x / (self.left + 1)

    budget = Budget()
    step = capture(budget.step)
    for call in range(22):
        try:
            yield step(batch(call))
        except StopIteration as error:
            yield str(error)
        if call == 17:
            budget.left = 2


@program
def a_count_of_batches_of_two_sizes(capture: Capture) -> Iterator[Any]:
    """Batches of two sizes come in no order, and both count with one number that both read."""

    class Trainer:
        def __init__(self) -> None:
            self.step = 0

        def train(self, x: Tensor) -> Tensor:
            self.step += 1
            return x.sum() * self.step

    trainer = Trainer()
    step = capture(trainer.train)
    for call in range(24):
        yield step(batch(call, 3 if call % 5 in (0, 3) else 6))
        yield trainer.step


@program
def a_count_of_two_functions(capture: Capture) -> Iterator[Any]:
    """A step of training counts; a step of evaluation reads the count, and skips the calls before it moved."""
    state = {"step": 0}

    @capture
    def train(x: Tensor) -> Tensor:
        state["step"] += 1
        return x - state["step"]

    @capture
    def evaluate(x: Tensor) -> Tensor:
        return x * state["step"]

    for call in range(24):
        yield train(batch(call)) if call % 3 else evaluate(batch(call))
    yield state["step"]


@program
def a_count_two_objects_away(capture: Capture) -> Iterator[Any]:
    """A helper of a helper counts under a name that is put together, within a context manager that always counts."""

    class Clock:
        def __init__(self) -> None:
            self.ticks_train = self.ticks_total = 0

        @contextlib.contextmanager
        def tick(self, kind: str) -> Iterator[int]:
            name = f"ticks_{kind}"
            setattr(self, name, getattr(self, name) + 1)
            try:
                yield getattr(self, name)
            finally:
                self.ticks_total += 1

    class Loop:
        def __init__(self) -> None:
            self.clock = Clock()

    class Trainer:
        def __init__(self) -> None:
            self.loop = Loop()

        def step(self, x: Tensor) -> Tensor:
            with self.loop.clock.tick("train") as tick:
                return x + tick

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(20):
        yield step(batch(call))
        if call == 6:
            trainer.loop.clock = Clock()
        yield vars(trainer.loop.clock)


@program
def a_count_in_a_forward(capture: Capture) -> Iterator[Any]:
    """A layer counts its forwards in a Python number while it trains, and grows louder with it; the mode changes twice."""

    class Louder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 3)
            self.forwards = 0

        def forward(self, x: Tensor) -> Any:
            if self.training:
                self.forwards += 1
            return self.linear(x) * (1 + 0.1 * self.forwards)

    torch.manual_seed(0)
    model = Louder().to("xla")
    step = capture(lambda x: model(x).detach())
    for call in range(22):
        if call in (9, 14):
            model.train(call == 14)
        yield step(batch(call))
    yield model.forwards


@program
def layers_in_turn(capture: Capture) -> Iterator[Any]:
    """Each call uses and trains the next of three layers."""
    torch.manual_seed(0)
    layers = nn.ModuleList(nn.Linear(4, 3) for _ in range(3)).to("xla")
    optimizer = torch.optim.SGD(layers.parameters(), lr=0.1)
    turn = 0

    @capture
    def step(x: Tensor) -> Tensor:
        nonlocal turn
        optimizer.zero_grad()
        loss: Tensor = layers[turn % len(layers)](x).square().mean()
        loss.backward()
        optimizer.step()
        turn += 1
        return loss.detach()

    for call in range(21):
        yield step(batch(call))
        yield [layer.weight for layer in layers.children()]


@program
def phases_of_training(capture: Capture) -> Iterator[Any]:
    """The step goes through three phases by itself, by name, and notes when it went into each."""

    class Phases:
        def __init__(self) -> None:
            self.name, self.since, self.entered = "warm-up", 0, {"warm-up": 0}

        def step(self, x: Tensor) -> Tensor:
            self.since += 1
            following = {"warm-up": ("main", 5), "main": ("cool-down", 11)}.get(self.name)
            if following is not None and self.since >= following[1]:
                self.name, self.since = following[0], 0
                self.entered[self.name] = sum(self.entered.values()) + following[1]
            return {"warm-up": x * 0.1, "main": x + 1, "cool-down": -x}[self.name]

    phases = Phases()
    step = capture(phases.step)
    for call in range(24):
        yield step(batch(call))
        yield phases.name, phases.since
    yield phases.entered


@program
def a_cursor_into_a_queue(capture: Capture) -> Iterator[Any]:
    """A queue on the device has a cursor of Python that goes round, as contrastive learning does it."""

    class Queue:
        def __init__(self) -> None:
            self.rows = torch.zeros(5, 4).to("xla")
            self.cursor = 0

        def push(self, x: Tensor) -> Tensor:
            self.rows[self.cursor] = x
            self.cursor = (self.cursor + 1) % self.rows.shape[0]
            return self.rows.sum(0)

    queue = Queue()
    step = capture(queue.push)
    for call in range(22):
        yield step(batch(call))
        yield queue.cursor
        if call == 12:
            queue.cursor = 0
    yield queue.rows


@program(refused=r"changes|pop|was .* in call")
def a_plan_that_is_used_up(capture: Capture) -> Iterator[Any]:
    """The step takes its factor from the end of a list until that is empty."""
    plan = [float(n) for n in range(12)]

    @capture
    def step(x: Tensor) -> Tensor:
        return x * (plan.pop() if plan else 1.0)

    for call in range(20):
        yield step(batch(call))
        yield plan
