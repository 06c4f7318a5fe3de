"""What a step changes besides its results: objects of Python's own modules, large containers, modes, attributes of tensors, orders."""

from __future__ import annotations

import array
import collections
import io
import queue
import random
import threading
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from captured_programs import Capture, program
from torch import Tensor, nn

CALLS = 22
calls_of_this_module = 0


def batch(call: int, size: int = 3) -> Tensor:
    """Other numbers for each call, on the device."""
    return torch.cos(torch.arange(size, dtype=torch.float32) * 3 + call).to("xla")


class Counting:
    """A trainer whose step counts and then does something with its count."""

    def __init__(self, act: Any) -> None:
        self.count, self.act = 0, act

    def step(self, x: Tensor) -> Tensor:
        """Count, act, and compute a little."""
        self.count += 1
        self.act(self.count)
        return x * 2 + 1


@program(refused="changes|queue|put")
def numbers_put_into_a_queue(capture: Capture) -> Iterator[Any]:
    """The step puts its count into a queue of Python's, which the caller empties now and then."""
    numbers: queue.Queue[int] = queue.Queue()
    step = capture(Counting(numbers.put).step)
    for call in range(CALLS):
        yield step(batch(call))
        if call % 4 == 3:
            yield [numbers.get() for _ in range(numbers.qsize())]


@program(refused="changes|event|set")
def an_event_that_the_step_sets(capture: Capture) -> Iterator[Any]:
    """The step sets an event in each call, which the caller clears."""
    event = threading.Event()
    step = capture(Counting(lambda count: event.set()).step)
    for call in range(CALLS):
        yield step(batch(call))
        yield event.is_set()
        event.clear()


@program(unnoticed=True)
def lines_written_to_a_text(capture: Capture) -> Iterator[Any]:
    """The step prints its count into a buffer in memory."""
    text = io.StringIO()
    step = capture(Counting(lambda count: print(count % 3, file=text)).step)
    for call in range(CALLS):
        yield step(batch(call))
    yield text.getvalue()


@program(refused="changes|array")
def an_array_of_python_that_grows(capture: Capture) -> Iterator[Any]:
    """The step appends its count to an array.array."""
    numbers = array.array("l")
    step = capture(Counting(numbers.append).step)
    for call in range(CALLS):
        yield step(batch(call))
    yield list(numbers)


@program(refused="changes|host|large")
def a_large_array_of_visits(capture: Capture) -> Iterator[Any]:
    """The step notes its count in a NumPy array of 20,000 numbers."""
    visits = np.zeros(20_000)

    def note(count: int) -> None:
        visits[int(count)] = 1

    step = capture(Counting(note).step)
    for call in range(CALLS):
        yield step(batch(call))
    yield float(visits.sum())


@program(refused="changes|host|large")
def a_large_tensor_on_the_cpu(capture: Capture) -> Iterator[Any]:
    """The step adds to a tensor of 20,000 numbers on the CPU."""
    visits = torch.zeros(20_000)

    def note(count: int) -> None:
        visits[3] += 1

    step = capture(Counting(note).step)
    for call in range(CALLS):
        yield step(batch(call))
    yield visits.sum()


@program(refused="changes|large|items")
def a_long_list_of_flags(capture: Capture) -> Iterator[Any]:
    """The step sets an item of a list of 20,000, and reads another one."""
    flags = [0] * 20_000

    def note(count: int) -> None:
        flags[7] += 1

    step = capture(Counting(note).step)
    for call in range(CALLS):
        yield step(batch(call))
    yield sum(flags)


@program(unnoticed=True)
def a_long_list_that_is_read(capture: Capture) -> Iterator[Any]:
    """The step reads an item of a list of 20,000 numbers, which the caller changes."""
    rates = [1.0] * 20_000
    step = capture(lambda x: x * rates[7])
    for call in range(CALLS):
        if call == 9:
            rates[7] = 4.0
        yield step(batch(call))


@program(unnoticed=True)
def a_large_array_that_is_read(capture: Capture) -> Iterator[Any]:
    """The step reads a number of a NumPy array of 20,000, which the caller changes."""
    rates = np.ones(20_000)
    step = capture(lambda x: x * float(rates[7]))
    for call in range(CALLS):
        if call == 9:
            rates[7] = 4.0
        yield step(batch(call))


@program
def an_array_of_objects(capture: Capture) -> Iterator[Any]:
    """A NumPy array of objects holds a rate and a function; the caller replaces both."""
    parts = np.array([2.0, torch.tanh], dtype=object)
    step = capture(lambda x: parts[1](x * parts[0]))
    for call in range(CALLS):
        if call == 8:
            parts[0] = 5.0
        if call == 15:
            parts[1] = torch.sin
        yield step(batch(call))


@program(refused="random|seed")
def a_seed_that_the_step_sets(capture: Capture) -> Iterator[Any]:
    """The step seeds Python's random numbers; the caller draws some."""
    step = capture(Counting(lambda count: random.seed(count % 3)).step)
    for call in range(CALLS):
        yield step(batch(call))
        yield random.random()


@program(refused="mode|gradients")
def a_mode_that_the_step_leaves(capture: Capture) -> Iterator[Any]:
    """The step switches gradients off for the caller, too, who switches them on again."""

    @capture
    def step(x: Tensor) -> Tensor:
        torch.set_grad_enabled(False)
        return x * 2

    for call in range(CALLS):
        y = step(batch(call))
        enabled = torch.is_grad_enabled()
        torch.set_grad_enabled(True)
        yield y, enabled


@program(refused="dtype|mode|default")
def a_default_dtype_that_the_step_leaves(capture: Capture) -> Iterator[Any]:
    """The step sets another default dtype, and the caller the former one."""

    @capture
    def step(x: Tensor) -> Tensor:
        torch.set_default_dtype(torch.bfloat16)
        return x + torch.zeros(3, device="xla")

    for call in range(CALLS):
        y = step(batch(call))
        left = torch.get_default_dtype()
        torch.set_default_dtype(torch.float32)
        yield y, left is torch.bfloat16


@program
def an_attribute_that_counts_at_a_tensor(capture: Capture) -> Iterator[Any]:
    """A plain tensor of the device counts its uses in an attribute of its own."""
    table = batch(1)
    table.uses = 0

    @capture
    def step(x: Tensor) -> Tensor:
        table.uses += 1
        return x * table

    for call in range(CALLS):
        yield step(batch(call))
    yield table.uses


@program(refused="sets attributes")
def an_attribute_set_at_the_argument(capture: Capture) -> Iterator[Any]:
    """The step marks its argument as seen, by an attribute."""

    @capture
    def step(x: Tensor) -> Tensor:
        x.seen = True
        return x * 2

    for call in range(CALLS):
        x = batch(call)
        yield step(x)
        yield getattr(x, "seen", False)


@program
def a_global_count_by_globals(capture: Capture) -> Iterator[Any]:
    """The step counts in a global variable by `globals()`."""
    global calls_of_this_module
    calls_of_this_module = 0

    @capture
    def step(x: Tensor) -> Tensor:
        globals()["calls_of_this_module"] += 1
        return x * calls_of_this_module

    for call in range(CALLS):
        yield step(batch(call))
    yield calls_of_this_module


@program(refused="something else at each call")
def options_of_torchs_layers_that_the_step_sets(capture: Capture) -> Iterator[Any]:
    """The step sets the rate of a dropout, the slope of a ReLU and the momentum of a norm by its count."""
    dropout, slope, norm = nn.Dropout(0.0), nn.LeakyReLU(0.1), nn.BatchNorm1d(3).to("xla")

    class Trainer:
        count = 0

        def step(self, x: Tensor) -> Tensor:
            self.count += 1
            dropout.p = 0.5 if self.count > 10 else 0.0
            slope.negative_slope = 0.1 * (self.count // 8)
            norm.momentum = 0.1 + self.count / 100
            return norm(slope(dropout(x))).detach()

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(CALLS):
        yield step(batch(call, 12).reshape(4, 3))
        yield dropout.p, slope.negative_slope, norm.momentum, norm.running_mean


@program
def a_gradient_that_is_kept_at_the_trainer(capture: Capture) -> Iterator[Any]:
    """The step keeps the gradient of its weight under another name; the caller clips the weight's gradient in place."""
    shared = types.SimpleNamespace(weight=batch(1).requires_grad_(), gradient=None)

    @capture
    def step(x: Tensor) -> None:
        shared.weight.grad = None
        (shared.weight * x).square().sum().backward()
        shared.gradient = shared.weight.grad

    for call in range(CALLS):
        step(batch(call))
        shared.weight.grad.clamp_(-0.5, 0.5)
        yield shared.weight.grad, shared.gradient


@program
def one_gradient_of_two_weights(capture: Capture) -> Iterator[Any]:
    """The step gives a second weight the gradient of the first; the caller writes to the one, and reads the other."""
    first, second = batch(1).requires_grad_(), batch(2).requires_grad_()

    @capture
    def step(x: Tensor) -> None:
        first.grad = None
        (first * x).square().sum().backward()
        second.grad = first.grad

    for call in range(CALLS):
        step(batch(call))
        first.grad.mul_(2)
        yield first.grad, second.grad


@program
def graphs_of_the_caller_that_notice(capture: Capture) -> Iterator[Any]:
    """A graph outside has saved a tensor to which the step writes: its backward must raise, also in captured calls."""
    weight = batch(1).requires_grad_()
    state = batch(2)

    @capture
    @torch.no_grad()
    def step(argument: Tensor) -> Tensor:
        argument.mul_(0.5)
        state.add_(1)
        return argument.sum()

    for call in range(CALLS):
        argument = weight.exp()
        loss = argument.sum() if call % 2 else (weight * state).sum() + argument.detach().sum()
        yield step(argument.detach() if call % 4 == 3 else argument.data if call % 4 == 2 else argument)
        try:
            loss.backward()
            yield "went backward"
        except RuntimeError:
            yield "noticed"


@program
def counters_of_collections_in_objects(capture: Capture) -> Iterator[Any]:
    """A Counter within a UserDict within a ChainMap counts; the caller looks."""
    counts = collections.ChainMap(collections.UserDict({"inner": collections.Counter()}))

    @capture
    def step(x: Tensor) -> Tensor:
        counts["inner"]["calls"] += 1
        counts["last"] = counts["inner"]["calls"] % 3
        return x * (1 + counts["last"])

    for call in range(CALLS):
        yield step(batch(call))
    yield dict(counts["inner"]), counts["last"]
