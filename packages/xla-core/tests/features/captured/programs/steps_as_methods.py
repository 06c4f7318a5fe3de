"""Captured objects, methods and modules of several instances, loggers, and what a step asks the system for."""

from __future__ import annotations

import functools
import logging
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from captured_programs import Capture, program
from torch import Tensor

CALLS = 20


def batch(call: int, size: int = 3) -> Tensor:
    """Other numbers for each call, on the device."""
    return torch.cos(torch.arange(size, dtype=torch.float32) * 3 + call).to("xla")


@program
def a_step_that_is_an_object(capture: Capture) -> Iterator[Any]:
    """A callable object is captured, and a partial function of one; its class gets another __call__ later."""

    class Step:
        def __init__(self, scale: float) -> None:
            self.scale = scale

        def __call__(self, x: Tensor, bias: float = 0.0) -> Tensor:
            return x * self.scale + bias

    first = Step(2.0)
    step, other = capture(first), capture(functools.partial(Step(3.0), bias=1.0))
    for call in range(CALLS):
        if call == 8:
            first.scale = 5.0
        if call == 14:
            Step.__call__ = lambda self, x, bias=0.0: x - self.scale + bias  # type: ignore[method-assign]
        yield step(batch(call)), other(batch(call))


@program
def methods_of_many_instances(capture: Capture) -> Iterator[Any]:
    """A method that is captured in its class; instances come and go, so that addresses are used again."""

    class Scaler:
        def __init__(self, scale: float) -> None:
            self.scale = scale

        @capture
        def step(self, x: Tensor) -> Tensor:
            self.scale += 1
            return x * self.scale

    first = Scaler(1.0)
    for call in range(24):
        yield first.step(batch(call))
        yield Scaler(float(-call % 5)).step(batch(call))
        if call % 8 == 7:
            first = Scaler(10.0)


@program
def two_instances_by_turns(capture: Capture) -> Iterator[Any]:
    """Two agents of one class, whose captured method raises the count of each, take turns."""

    class Agent:
        def __init__(self) -> None:
            self.count = 0

        @capture
        def step(self, x: Tensor) -> Tensor:
            self.count += 1
            return x * self.count

    agents = [Agent(), Agent()]
    for call in range(30):
        yield agents[call % 2].step(batch(call))


@program
def static_and_class_methods(capture: Capture) -> Iterator[Any]:
    """Captured methods of a class without an instance; a subclass has another factor."""

    class Scaler:
        factor = 2.0

        @classmethod
        def of_class(cls, x: Tensor) -> Tensor:
            return x * cls.factor

        @staticmethod
        def of_none(x: Tensor) -> Tensor:
            return x + Scaler.factor

    class Other(Scaler):
        factor = 7.0

    steps = [capture(Scaler.of_class), capture(Other.of_class), capture(Scaler.of_none)]
    for call in range(CALLS):
        if call == 8:
            Scaler.factor = 3.0
        if call == 14:
            del Other.factor
        yield [step(batch(call)) for step in steps]


@program
def the_level_of_a_logger(capture: Capture) -> Iterator[Any]:
    """The step computes more if its logger is told to debug."""
    logger = logging.getLogger("program.of.a.logger")
    step = capture(lambda x: (x, x.square().sum()) if logger.isEnabledFor(logging.DEBUG) else (x * 2, None))
    for call in range(CALLS):
        logger.setLevel(logging.DEBUG if 6 <= call < 12 else logging.WARNING)
        yield step(batch(call))


@program(refused="not followed")
def records_for_a_logger(capture: Capture) -> Iterator[Any]:
    """The step logs a text at each fourth call of its own count; a handler of the user's keeps them."""
    lines: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())

    logger = logging.getLogger("program.of.records")
    logger.handlers = [Handler()]
    logger.setLevel(logging.INFO)
    logger.propagate = False

    class Trainer:
        count = 0

        def step(self, x: Tensor) -> Tensor:
            self.count += 1
            if self.count % 4 == 0:
                logger.info("step %d", self.count)
            return x * 2

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(24):
        yield step(batch(call))
    yield lines


@program
def a_variable_of_the_environment_that_the_step_sets(capture: Capture) -> Iterator[Any]:
    """The step sets a variable of the environment, which the caller takes away."""
    name = "XLA_PROGRAM_OF_A_STEP"

    @capture
    def step(x: Tensor) -> Tensor:
        factor = float(os.environ.get(name, "1"))
        os.environ[name] = "3"
        return x * factor

    for call in range(CALLS):
        yield step(batch(call))
        yield os.environ.get(name)
        if call % 5 == 4:
            os.environ.pop(name, None)
    os.environ.pop(name, None)


@program(refused="file|changes|something else")
def a_factor_in_a_file(capture: Capture) -> Iterator[Any]:
    """The step reads its factor from a file, into which the caller writes."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "factor"
        path.write_text("2.0")
        step = capture(lambda x: x * float(path.read_text()))
        for call in range(CALLS):
            if call == 8:
                path.write_text("5.0")
            yield step(batch(call))


@program(refused="clock|time|something else")
def a_budget_of_time(capture: Capture) -> Iterator[Any]:
    """The step does less when its time is over, which it sees from the clock."""
    end = time.monotonic() + 1e6
    shared = {"end": end}
    step = capture(lambda x: x * 2 if time.monotonic() < shared["end"] else x - 1)
    for call in range(CALLS):
        if call == 12:
            shared["end"] = time.monotonic() + 0.2
        if call == 16:
            time.sleep(0.25)
        yield step(batch(call)) if call < 12 or call >= 16 else None
