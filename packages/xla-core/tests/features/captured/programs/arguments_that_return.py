"""Arguments that are taken apart: objects that the step changes and gives back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from captured_programs import Capture, program
from torch import Tensor


@dataclass
class State:
    """What goes from step to step."""

    hidden: Tensor
    count: int


@program
def a_state_that_is_changed_and_returned(capture: Capture) -> Iterator[Any]:
    """A new object in each tenth call, else the one that came back."""

    @capture
    def step(state: State, x: Tensor) -> State:
        state.hidden = state.hidden * 0.5 + x
        state.count += 1
        return state

    state = State(torch.zeros(3, device="xla"), 0)
    for call in range(40):
        if call % 10 == 0:
            state = State(torch.ones(3, device="xla"), call)
        given = state
        state = step(state, torch.full((3,), float(call), device="xla"))
        yield state is given, state.hidden, state.count


@program
def two_objects_of_one_class(capture: Capture) -> Iterator[Any]:
    """One is an argument and another one at each call, the other lives on where the step finds it."""
    kept = State(torch.ones(3, device="xla"), 3)

    @capture
    def step(state: State) -> Tensor:
        return state.hidden * kept.count + kept.hidden

    for call in range(30):
        if call in (9, 20):
            kept.count += 1
        if call == 15:
            kept.hidden = torch.full((3,), 7.0, device="xla")
        yield step(State(torch.full((3,), float(call), device="xla"), call % 2))


@program
def a_step_number_and_a_rate_as_arguments(capture: Capture) -> Iterator[Any]:
    """Numbers that differ at each call; a branch on one of them turns late."""
    weight = torch.zeros(3, device="xla")

    @capture
    def step(x: Tensor, number: int, *, rate: float) -> Tensor:
        factor = rate if number < 31 else -rate
        weight.add_(x, alpha=factor)
        return weight * number

    for call in range(40):
        yield step(torch.full((3,), 1.0 + call, device="xla"), call, rate=1.0 / (call + 1))


@program
def constants_made_inside(capture: Capture) -> Iterator[Any]:
    """Weights of classes, indices and a start value are made of Python's numbers inside."""

    @capture
    def step(x: Tensor) -> Tensor:
        total = torch.tensor(0.0, device="xla")
        for part in x[[0, 2]] * torch.tensor([1.0, 2.0], device="xla"):
            total = total + part
        return total

    for call in range(24):
        yield step(torch.full((3,), float(call), device="xla"))
