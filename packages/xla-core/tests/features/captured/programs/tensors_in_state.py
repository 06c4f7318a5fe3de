"""Tensors that a step keeps: their shapes, classes, attributes and memory as the caller and the step change them between calls."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import torch
from captured_programs import Capture, program
from torch import Tensor, nn

CALLS = 20


def batch(call: int, size: int = 3) -> Tensor:
    """Other numbers for each call, on the device."""
    return torch.sin(torch.arange(size, dtype=torch.float32) * 2 + call).to("xla")


def square(call: int) -> Tensor:
    """A matrix on the device."""
    return torch.cos(torch.arange(9, dtype=torch.float32).reshape(3, 3) + call).to("xla")


@program
def a_state_that_the_caller_transposes(capture: Capture) -> Iterator[Any]:
    """Before some calls the caller transposes the square matrix of the step in place."""
    basis = square(0)
    step = capture(lambda x: x @ basis)
    for call in range(CALLS):
        if call in (5, 9, 18):
            basis.t_()
        yield step(batch(call))


@program(refused="shape|view|set_to|changes")
def a_state_that_the_step_transposes(capture: Capture) -> Iterator[Any]:
    """The step transposes its square matrix in place at each call."""
    basis = square(0)

    @capture
    def step(x: Tensor) -> Tensor:
        basis.t_()
        return x @ basis

    for call in range(CALLS):
        yield step(batch(call))
    yield basis


@program
def a_state_with_another_shape(capture: Capture) -> Iterator[Any]:
    """The caller changes the shape of the state with unsqueeze_ and squeeze_."""
    state = batch(0)
    step = capture(lambda x: x * state)
    for call in range(CALLS):
        if call in (6, 14):
            state.unsqueeze_(0)
        if call == 11:
            state.squeeze_(0)
        yield step(batch(call))


@program
def a_memory_that_two_names_share(capture: Capture) -> Iterator[Any]:
    """The step writes to a tensor through one view, and reads it through another; the caller moves a view on."""
    memory = batch(0, 8)
    shared = types.SimpleNamespace(window=memory[:3])

    @capture
    def step(x: Tensor) -> Tensor:
        shared.window.copy_(x)
        return memory.cumsum(0)

    for call in range(24):
        if call % 6 == 5:
            shared.window = memory[call // 6 : call // 6 + 3]
        yield step(batch(call))


@program
def a_state_that_becomes_an_alias(capture: Capture) -> Iterator[Any]:
    """Two states are one tensor in calls 7 to 13, and two before and behind."""
    one, other = batch(0), batch(5)
    shared = types.SimpleNamespace(one=one, other=other)

    @capture
    def step(x: Tensor) -> Tensor:
        shared.one.add_(x)
        shared.other.mul_(0.5)
        return shared.one - shared.other

    for call in range(CALLS):
        shared.other = one if 7 <= call < 14 else other
        yield step(batch(call))
    yield one, other


@program
def a_state_that_equals_an_argument(capture: Capture) -> Iterator[Any]:
    """The step adds its argument to a state in place; in some calls the argument is that state, in others its half."""
    state = batch(0, 4)

    @capture
    def step(x: Tensor) -> Tensor:
        state.mul_(0.5).add_(x)
        return x * 2

    for call in range(24):
        yield step(batch(call, 4) if call % 6 < 4 else state if call % 6 == 4 else state.detach())
        yield state


class Measured(torch.Tensor):
    """A tensor with a unit, which arithmetic keeps."""

    unit = 1.0

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_function__(func, types, args, kwargs or {})
        units = [arg.unit for arg in args if isinstance(arg, Measured)]
        if isinstance(result, Measured) and units:
            result.unit = max(units)
        return result


@program(refused="class|subclass|Measured|returns|argument")
def tensors_with_units(capture: Capture) -> Iterator[Any]:
    """Arguments and results are of a class of the user's, whose attribute goes from the ones to the others."""

    @capture
    def step(x: Tensor) -> Tensor:
        return x * 2 * x.unit

    for call in range(CALLS):
        x = batch(call).as_subclass(Measured)
        x.unit = 3.0 if call > 9 else 2.0
        y = step(x)
        yield y.as_subclass(Tensor), type(y).__name__, y.unit


@program
def a_parameter_of_a_class_of_its_own(capture: Capture) -> Iterator[Any]:
    """A parameter with a scale, which the forward reads and the caller changes."""

    class Scaled(nn.Parameter):
        scale = 1.0

    layer = nn.Linear(3, 3, bias=False).to("xla")
    layer.weight = Scaled(square(1))
    step = capture(lambda x: (layer(x) * layer.weight.scale).detach())
    for call in range(CALLS):
        if call == 8:
            layer.weight.scale = 4.0
        if call == 15:
            Scaled.scale = 3.0
            del layer.weight.scale
        yield step(batch(call))


@program
def an_attribute_of_a_buffer(capture: Capture) -> Iterator[Any]:
    """A plain tensor of the device has an attribute that the step reads; the caller sets it to another number."""
    table = batch(1)
    table.temperature = 1.0
    step = capture(lambda x: x * table / table.temperature)
    for call in range(CALLS):
        if call in (6, 15):
            table.temperature += 1.5
        yield step(batch(call))


@program
def gradients_of_states_that_are_toggled(capture: Capture) -> Iterator[Any]:
    """The caller lets a plain tensor require gradients in some calls; the step looks, and then makes and uses its gradient."""
    state = batch(2)

    @capture
    def step(x: Tensor) -> Tensor:
        loss = (state * x).square().sum()
        if state.requires_grad:
            (gradient,) = torch.autograd.grad(loss, state)
            return gradient
        return loss.detach() * x

    for call in range(CALLS):
        state.requires_grad_(call in (3, 4, 5, 11, 12, 18))
        yield step(batch(call))


@program
def data_that_the_caller_writes(capture: Capture) -> Iterator[Any]:
    """The caller writes to weights by .data and under no_grad, between calls that train them."""
    torch.manual_seed(3)
    layer = nn.Linear(3, 2).to("xla")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1, momentum=0.9)

    @capture
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = layer(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for call in range(CALLS):
        if call % 4 == 1:
            layer.weight.data.mul_(1.5)
        if call % 5 == 2:
            layer.bias.data[0] = 0.25
        if call % 7 == 3:
            with torch.no_grad():
                layer.weight.copy_(layer.weight.flip(0))
        yield step(batch(call))
    yield layer.state_dict()


@program
def an_accumulator_that_is_reset(capture: Capture) -> Iterator[Any]:
    """Each fourth call the step returns what was added up, and sets it to zero."""

    class Meter:
        def __init__(self) -> None:
            self.total, self.count = torch.zeros(3, device="xla"), 0

        def step(self, x: Tensor) -> Tensor:
            self.total += x
            self.count += 1
            if self.count == 4:
                mean = self.total / self.count
                self.total.zero_()
                self.count = 0
                return mean
            return x

    meter = Meter()
    step = capture(meter.step)
    for call in range(32):
        yield step(batch(call))
        yield meter.total


@program
def an_accumulator_that_is_made_anew(capture: Capture) -> Iterator[Any]:
    """Each fourth call the step replaces what was added up by new zeros, or by a copy of its argument."""

    class Meter:
        def __init__(self) -> None:
            self.total, self.first, self.count = torch.zeros(3, device="xla"), torch.zeros(3, device="xla"), 0

        def step(self, x: Tensor) -> Tensor:
            if self.count % 4 == 0:
                self.total = torch.zeros_like(self.total)
                self.first = x.clone()
            self.total = self.total + x
            self.count += 1
            return self.total - self.first

    meter = Meter()
    step = capture(meter.step)
    for call in range(32):
        yield step(batch(call))
        yield meter.total, meter.first


@program
def an_accumulator_that_is_filled_with_ones(capture: Capture) -> Iterator[Any]:
    """Each third call ends with a product set back to one in place."""
    product = torch.ones(3, device="xla")
    shared = types.SimpleNamespace(count=0)

    @capture
    def step(x: Tensor) -> Tensor:
        product.mul_(x + 2)
        shared.count += 1
        result = product * 1.5
        if shared.count % 3 == 0:
            product.fill_(1.0)
        return result

    for call in range(30):
        yield step(batch(call))
        yield product


@program
def a_window_of_tensors(capture: Capture) -> Iterator[Any]:
    """The trainer keeps the last four results in a list that it makes anew at each call."""

    class Trainer:
        def __init__(self) -> None:
            self.last: list[Tensor] = []

        def step(self, x: Tensor) -> Tensor:
            self.last = [*self.last[-3:], x.square()]
            return torch.stack(self.last).mean(0)

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(CALLS):
        yield step(batch(call))
        yield trainer.last
        if call == 11:
            trainer.last = []


@program
def a_hidden_state_that_loses_its_graph_in_place(capture: Capture) -> Iterator[Any]:
    """The hidden state is cut from its graph by detach_ after the backward pass."""
    torch.manual_seed(5)
    cell = nn.RNNCell(3, 3).to("xla")
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.1)

    class Trainer:
        hidden = torch.zeros(1, 3, device="xla")

        def step(self, x: Tensor) -> Tensor:
            self.hidden = cell(x[None], self.hidden)
            loss = self.hidden.square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            self.hidden.detach_()
            return loss.detach()

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(CALLS):
        yield step(batch(call))
        yield trainer.hidden, trainer.hidden.requires_grad
        if call == 12:
            trainer.hidden = torch.zeros(1, 3, device="xla")


@program
def a_tensor_of_another_dtype(capture: Capture) -> Iterator[Any]:
    """The caller replaces a table by one of another dtype and then by one of another shape."""
    shared = types.SimpleNamespace(table=batch(1))
    step = capture(lambda x: (x * shared.table).sum())
    for call in range(24):
        if call in (5, 11):
            shared.table = shared.table.to(torch.bfloat16 if call == 5 else torch.int32)
        if call == 17:
            shared.table = torch.ones(2, 3, device="xla")
        yield step(batch(call))


@program
def an_average_model_with_a_count_on_the_device(capture: Capture) -> Iterator[Any]:
    """An average of weights whose decay depends on a count that is a tensor on the device."""
    weight, average, count = batch(1), batch(1), torch.zeros((), device="xla")

    @capture
    def step(x: Tensor) -> None:
        weight.sub_(0.1 * weight * x)
        count.add_(1)
        decay = torch.clamp((1 + count) / (10 + count), max=0.9)
        average.mul_(decay).add_(weight * (1 - decay))

    for call in range(CALLS):
        step(batch(call))
        yield average, count
