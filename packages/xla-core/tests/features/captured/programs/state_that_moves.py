"""State that a step moves around: attributes that change places, orders of keys, buffers that are used again, tables by a count."""

from __future__ import annotations

import collections
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from captured_programs import Capture, program
from torch import Tensor

CALLS = 22


def batch(call: int, size: int = 3) -> Tensor:
    """Other numbers for each call, on the device."""
    return torch.sin(torch.arange(size, dtype=torch.float32) * 2 + call).to("xla")


@program
def two_buffers_by_turns(capture: Capture) -> Iterator[Any]:
    """The step writes to one buffer, reads the other, and swaps them."""

    class Trainer:
        def __init__(self) -> None:
            self.front, self.back = batch(0), batch(1)

        def step(self, x: Tensor) -> Tensor:
            self.back.copy_(self.front * 0.5 + x)
            self.front, self.back = self.back, self.front
            return self.front - self.back

    trainer = Trainer()
    step = capture(trainer.step)
    kept = [trainer.front, trainer.back]
    for call in range(CALLS):
        yield step(batch(call))
        yield kept
        yield trainer.front is kept[0]


@program(refused="order of the keys")
def keys_that_move_to_the_end(capture: Capture) -> Iterator[Any]:
    """A small cache notes which key was used last by the order of its keys; the caller names the key."""
    cache: collections.OrderedDict[str, float] = collections.OrderedDict(a=1.0, b=2.0, c=3.0)

    @capture
    def step(x: Tensor, key: str) -> Tensor:
        cache.move_to_end(key)
        return x * cache[key]

    for call in range(30):
        yield step(batch(call), "abc"[call % 3])
        yield list(cache)
        if call % 7 == 6:
            cache.move_to_end("c", last=False)


@program(refused="order of the keys")
def the_oldest_key_of_a_dict(capture: Capture) -> Iterator[Any]:
    """The step takes the first key of a dict out and puts it back behind the others."""
    weights = {"a": 1.0, "b": 2.0, "c": 4.0}

    @capture
    def step(x: Tensor) -> Tensor:
        key = next(iter(weights))
        weights[key] = weights.pop(key)
        return x * weights[key]

    for call in range(24):
        yield step(batch(call))
        yield list(weights)


@program
def keys_in_another_order_of_the_caller(capture: Capture) -> Iterator[Any]:
    """The step joins the tensors of a dict in its order, which the caller changes."""
    parts = {"a": batch(0), "b": batch(1)}
    step = capture(lambda x: torch.cat([x, *parts.values()]))
    for call in range(CALLS):
        if call in (6, 11, 17):
            parts["a"] = parts.pop("a")
        if call == 14:
            parts["b"] = parts.pop("b")
        yield step(batch(call))


@program
def a_buffer_of_the_caller_that_is_used_again(capture: Capture) -> Iterator[Any]:
    """The caller writes each batch into one tensor; the step keeps that, and compares with what it kept."""

    class Trainer:
        previous: Tensor | None = None

        def step(self, x: Tensor) -> Tensor:
            result = x * 2 if self.previous is None else x * 2 - self.previous
            self.previous = x
            return result

    trainer = Trainer()
    step = capture(trainer.step)
    buffer = batch(0)
    for call in range(CALLS):
        if call < 14:
            buffer.copy_(batch(call))
            yield step(buffer)
        else:
            yield step(batch(call))
        yield trainer.previous


@program
def a_part_of_the_argument_that_is_kept(capture: Capture) -> Iterator[Any]:
    """The step keeps a view of its argument, and adds it in the next call; the caller writes to the argument in between."""

    class Trainer:
        part: Tensor = torch.zeros(2, device="xla")

        def step(self, x: Tensor) -> Tensor:
            result = x.sum() + self.part
            self.part = x[1:]
            return result

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(CALLS):
        x = batch(call)
        yield step(x)
        if call % 3 == 2:
            x.fill_(float(call))
        yield trainer.part


class HiddenTuple(NamedTuple):
    """A hidden state as a named tuple."""

    h: Tensor
    count: int


@dataclass
class Hidden:
    """A hidden state as a dataclass."""

    h: Tensor
    count: int = 0


@program
def a_named_tuple_that_is_replaced(capture: Capture) -> Iterator[Any]:
    """The step replaces its hidden state, a named tuple of a tensor and a count."""

    class Trainer:
        state = HiddenTuple(torch.zeros(3, device="xla"), 0)

        def step(self, x: Tensor) -> Tensor:
            self.state = HiddenTuple(torch.tanh(self.state.h + x), self.state.count + 1)
            return self.state.h * self.state.count

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(CALLS):
        yield step(batch(call))
        yield trainer.state.h, trainer.state.count


@program
def a_dataclass_that_is_replaced(capture: Capture) -> Iterator[Any]:
    """The step replaces its hidden state, a dataclass with a tensor."""

    class Trainer:
        state = Hidden(torch.zeros(3, device="xla"))

        def step(self, x: Tensor) -> Tensor:
            self.state = Hidden(torch.tanh(self.state.h + x))
            return self.state.h * 2

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(CALLS):
        yield step(batch(call))
        yield trainer.state.h


@program
def a_dataclass_that_is_updated(capture: Capture) -> Iterator[Any]:
    """The step gets a state as an argument, updates its tensor and count in place, and returns it."""
    state = Hidden(torch.zeros(3, device="xla"))

    @capture
    def step(state: Hidden, x: Tensor) -> Hidden:
        state.h = torch.tanh(state.h + x)
        state.count += 1
        return state

    for call in range(CALLS):
        result = step(state, batch(call))
        yield result.h, result.count, result is state


@program
def a_state_that_goes_in_and_out(capture: Capture) -> Iterator[Any]:
    """As in functional code: the caller gives a new state object and gets another one."""

    @capture
    def step(state: Hidden, x: Tensor) -> tuple[Hidden, Tensor]:
        h = torch.tanh(state.h + x)
        return Hidden(h, state.count), h.sum()

    state = Hidden(torch.zeros(3, device="xla"))
    for call in range(CALLS):
        state, loss = step(state, batch(call))
        yield state.h, state.count, loss


@program
def attributes_for_the_time_of_a_call(capture: Capture) -> Iterator[Any]:
    """The step sets attributes and deletes them; others it makes in its first call, when it does not find them."""

    class Trainer:
        def step(self, x: Tensor) -> Tensor:
            self.x = x
            try:
                self.h = self.h * 0.5 + self.x
            except AttributeError:
                self.h = torch.zeros_like(x)
            if not hasattr(self, "factor"):
                self.factor = 3.0
            result = self.h * self.factor
            del self.x
            return result

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(CALLS):
        yield step(batch(call))
        yield hasattr(trainer, "x"), trainer.h
        if call == 9:
            del trainer.h
        if call == 15:
            del trainer.factor


@program(refused="function|new|sets")
def a_function_that_is_kept(capture: Capture) -> Iterator[Any]:
    """The step leaves a function at the trainer that puts the weight back."""

    class Trainer:
        def __init__(self) -> None:
            self.weight = batch(0)
            self.undo: Any = None

        def step(self, x: Tensor) -> Tensor:
            before = self.weight.clone()
            self.weight.add_(x)
            self.undo = lambda: self.weight.copy_(before)
            return self.weight * 2

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(CALLS):
        yield step(batch(call))
        if call % 4 == 3:
            trainer.undo()
        yield trainer.weight
