"""Counters in Python that a captured step reads or changes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from captured_programs import Capture, program
from torch import Tensor


@program
def a_counter_as_a_factor(capture: Capture) -> Iterator[Any]:
    """The step multiplies by a counter that it raises itself."""

    class Trainer:
        def __init__(self) -> None:
            self.calls = 0

        def step(self, x: Tensor) -> Tensor:
            self.calls += 1
            return x * self.calls

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(20):
        yield step(torch.full((3,), call + 1.0).to("xla"))
    yield trainer.calls
