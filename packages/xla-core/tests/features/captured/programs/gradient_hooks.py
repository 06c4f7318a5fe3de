"""Hooks on parameters, tensors, graphs and optimizers, for one or for all."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch
from captured_programs import Capture, program
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook


def batch(call: int, size: int = 4) -> Tensor:
    """Other numbers for each call, on the device."""
    return torch.cos(torch.arange(2 * size, dtype=torch.float32) * 2 + call).reshape(2, size).to("xla")


def linear(seed: int = 0) -> nn.Linear:
    """A small layer, the same each time for a seed."""
    torch.manual_seed(seed)
    return nn.Linear(4, 3).to("xla")


def training(model: nn.Module, optimizer: torch.optim.Optimizer, capture: Capture) -> Any:
    """A captured step that trains a model."""

    def train(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return capture(train)


@program
def a_hook_of_a_parameter(capture: Capture) -> Iterator[Any]:
    """A hook of a parameter scales its gradient by a number that changes, and is removed at call 17."""
    model, scale = linear(), 0.5
    handle = model.weight.register_hook(lambda gradient: gradient * scale)
    step = training(model, torch.optim.SGD(model.parameters(), lr=0.1), capture)
    for call in range(22):
        if call in (2, 7):
            scale = float(call)
        if call == 17:
            handle.remove()
        yield step(batch(call))
        yield model.weight, model.weight.grad


@program
def a_hook_of_a_parameter_that_comes_later(capture: Capture) -> Iterator[Any]:
    """Rows of a weight are frozen from call 5 on by a hook with a mask, whose tensor is written to at call 12."""
    model = linear()
    mask = torch.tensor([[1.0], [0.0], [1.0]]).to("xla")
    step = training(model, torch.optim.SGD(model.parameters(), lr=0.2), capture)
    for call in range(20):
        if call == 5:
            model.weight.register_hook(lambda gradient: gradient * mask)
        if call == 12:
            mask.neg_().add_(1)
        yield step(batch(call))
        yield model.weight


@program(refused="changes the items")
def a_hook_of_a_parameter_that_counts(capture: Capture) -> Iterator[Any]:
    """Hooks note the names of the parameters in the order in which gradients came; the caller empties the list at each sixth call."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)).to("xla")
    order: list[str] = []
    for name, parameter in model.named_parameters():
        parameter.register_hook(functools.partial(lambda name, gradient: order.append(name), name))
    step = training(model, torch.optim.SGD(model.parameters(), lr=0.1), capture)
    for call in range(20):
        yield step(batch(call))
        if call % 6 == 5:
            yield order
            order.clear()
    yield order


@program
def steps_in_the_backward(capture: Capture) -> Iterator[Any]:
    """Each parameter has an optimizer of its own, which steps in a hook after its gradient was added up; a rate changes at call 7."""
    model = linear()
    parameters = list(model.parameters())
    optimizers = {parameter: torch.optim.Adam([parameter], lr=0.05) for parameter in parameters}

    def update(parameter: Any) -> None:
        optimizers[parameter].step()
        optimizers[parameter].zero_grad()

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(update)

    @capture
    def step(x: Tensor) -> Tensor:
        loss: Tensor = model(x).square().mean()
        loss.backward()
        return loss.detach()

    for call in range(20):
        if call == 7:
            optimizers[parameters[0]].param_groups[0]["lr"] = 0.5
        yield step(batch(call))
        yield model.weight, model.bias
        yield model.weight.grad is None


@program
def a_hook_after_a_gradient_that_comes_and_goes(capture: Capture) -> Iterator[Any]:
    """A hook clips a gradient in place after it was added up, from call 3 to call 13, at a limit that changes at call 8."""
    model, limit = linear(), 0.05

    def clip(parameter: Tensor) -> None:
        assert parameter.grad is not None
        parameter.grad.clamp_(-limit, limit)

    step = training(model, torch.optim.SGD(model.parameters(), lr=0.3), capture)
    handles: list[Any] = []
    for call in range(20):
        if call == 3:
            handles = [parameter.register_post_accumulate_grad_hook(clip) for parameter in model.parameters()]
        if call == 8:
            limit = 0.01
        if call == 13:
            handles.pop().remove()
        yield step(batch(call))
        yield model.weight, model.bias.grad


@program
def a_hook_of_a_tensor_inside(capture: Capture) -> Iterator[Any]:
    """The step puts a hook on a tensor between two layers, with a number of an object, only while a flag is set."""
    first, second = nn.Linear(4, 4).to("xla"), linear()
    setting = {"scale": 2.0, "hooked": True}
    torch.manual_seed(0)
    with torch.no_grad():
        first.weight.copy_(torch.eye(4))
        first.bias.zero_()
    optimizer = torch.optim.SGD([*first.parameters(), *second.parameters()], lr=0.1)

    @capture
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        middle = first(x).tanh()
        if setting["hooked"]:
            middle.register_hook(lambda gradient: gradient * setting["scale"])
        loss: Tensor = second(middle).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for call in range(22):
        if call in (2, 13):
            setting["scale"] = -call / 4
        setting["hooked"] = call not in (7, 8, 20)
        yield step(batch(call))
        yield first.weight


@program
def gradients_that_a_hook_keeps(capture: Capture) -> Iterator[Any]:
    """A hook inside the step keeps the gradient of the features, which the step returns, and retain_grad keeps another."""
    model = linear()

    @capture
    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        kept: dict[str, Tensor] = {}
        y = model(x)
        y.register_hook(lambda gradient: kept.update(output=gradient))
        z = y.tanh()
        z.retain_grad()
        z.square().sum().backward()
        model.zero_grad()
        return kept["output"], z.grad

    for call in range(20):
        if call == 9:
            with torch.no_grad():
                model.bias.fill_(1.0)
        yield step(batch(call))


@program
def hooks_of_two_tensors(capture: Capture) -> Iterator[Any]:
    """A hook of several gradients notes how many came and scales by a global count of its calls, which Python keeps."""
    model, other = linear(), linear(1)
    calls = [0]

    @capture
    def step(x: Tensor) -> Any:
        first, second = model(x), other(x)

        def note(gradients: Any) -> None:
            calls[0] += sum(gradient is not None for gradient in gradients)

        torch.autograd.graph.register_multi_grad_hook((first, second), note)
        loss = (first * second).sum()
        loss.backward()
        return loss.detach()

    for call in range(20):
        yield step(batch(call))
        yield calls, model.weight.grad
        if call == 11:
            model.zero_grad()


@program
def hooks_of_saved_tensors(capture: Capture) -> Iterator[Any]:
    """Tensors that autograd saves are packed with a lower precision and counted; the precision is a variable of the caller."""
    model = linear()
    precision, packed = torch.bfloat16, [0]

    def pack(tensor: Tensor) -> Tensor:
        packed[0] += 1
        return tensor.to(precision)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @capture
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor.float()):
            loss: Tensor = model(x).exp().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for call in range(20):
        if call == 8:
            precision = torch.float32
        yield step(batch(call))
        yield packed, model.weight


@program
def hooks_around_the_step_of_an_optimizer(capture: Capture) -> Iterator[Any]:
    """Before its step an optimizer has weights decayed by a number that changes; after it, weights are clamped, until call 12."""
    model, decay = linear(), 0.1
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)

    @torch.no_grad()
    def decayed(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.mul_(1 - group["lr"] * decay)

    @torch.no_grad()
    def clamped(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        model.weight.clamp_(-0.25, 0.25)

    optimizer.register_step_pre_hook(decayed)
    handle = optimizer.register_step_post_hook(clamped)
    step = training(model, optimizer, capture)
    for call in range(22):
        if call in (2, 7):
            decay = float(call)
        if call == 12:
            handle.remove()
        if call == 16:
            optimizer.param_groups[0]["lr"] = 0.01
        yield step(batch(call))
        yield model.weight


@program
def a_hook_of_an_optimizer_that_counts(capture: Capture) -> Iterator[Any]:
    """A hook after the step counts steps, and every fourth time copies the weights into a slow copy, as Lookahead does."""
    model, slow = linear(), linear()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    state = {"steps": 0, "every": 4}

    @torch.no_grad()
    def follow(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        state["steps"] += 1
        if state["steps"] % state["every"] == 0:
            for mine, theirs in zip(slow.parameters(), model.parameters(), strict=True):
                mine.lerp_(theirs, 0.5)
                theirs.copy_(mine)

    optimizer.register_step_post_hook(follow)
    step = training(model, optimizer, capture)
    for call in range(24):
        yield step(batch(call))
        yield model.weight, slow.weight
        if call == 16:
            state["every"] = 2
    yield state


@program
def hooks_of_all_optimizers(capture: Capture) -> Iterator[Any]:
    """Global hooks of optimizers: one counts from the start by class, one that changes gradients is there between calls 6 and 14."""
    counts: dict[str, int] = {}
    model, factor = linear(), 2.0
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def count(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        counts[type(optimizer).__name__] = counts.get(type(optimizer).__name__, 0) + 1

    def scaled(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        for parameter in optimizer.param_groups[0]["params"]:
            parameter.grad.mul_(factor)

    handles = [register_optimizer_step_post_hook(count)]
    try:
        step = training(model, optimizer, capture)
        for call in range(22):
            if call == 6:
                handles.append(register_optimizer_step_pre_hook(scaled))
            if call == 10:
                factor = -1.0
            if call == 14:
                handles.pop().remove()
            yield step(batch(call))
            yield model.weight, counts
    finally:
        for handle in handles:
            handle.remove()


@program
def a_hook_of_a_node(capture: Capture) -> Iterator[Any]:
    """A hook of the node of a loss in the graph, and one before it, put on inside the step, scale the gradient by an attribute."""

    class Trainer:
        def __init__(self) -> None:
            self.model, self.scale, self.early = linear(), 2.0, 1.0

        def step(self, x: Tensor) -> Tensor:
            self.model.zero_grad()
            y = self.model(x)
            loss: Tensor = y.square().mean()
            assert loss.grad_fn is not None
            loss.grad_fn.register_hook(lambda inputs, outputs: tuple(each * self.scale for each in inputs))
            loss.grad_fn.register_prehook(lambda outputs: tuple(each * self.early for each in outputs))
            loss.backward()
            return loss.detach()

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(20):
        if call in (4, 15):
            trainer.scale = call / 8
        if call == 9:
            trainer.early = -1.0
        yield step(batch(call))
        yield trainer.model.weight.grad


@program
def hooks_of_state_dicts(capture: Capture) -> Iterator[Any]:
    """The step copies a model into another by state dicts, with a hook that renames and one that scales by a number that changes."""
    source, target = linear(), nn.Sequential(linear(1))
    scale = 1.0

    def renamed(module: nn.Module, state: dict[str, Any], prefix: str, metadata: Any) -> dict[str, Any]:
        return {f"0.{name}": value * scale for name, value in state.items()}

    source._register_state_dict_hook(renamed)

    @capture
    @torch.no_grad()
    def step(x: Tensor) -> Any:
        target.load_state_dict(source.state_dict())
        return target(x)

    for call in range(20):
        if call in (2, 11):
            scale = call / 4
        if call == 7:
            with torch.no_grad():
                source.weight.neg_()
        yield step(batch(call))
    yield target[0].weight
