"""Hooks on modules: from the start or later, counting, changing values, for one module or for all, and parametrizations."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from captured_programs import Capture, program
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
    register_module_full_backward_hook,
)
from torch.nn.utils import parametrize, prune


def batch(call: int, size: int = 4) -> Tensor:
    """Other numbers for each call, on the device."""
    return torch.sin(torch.arange(2 * size, dtype=torch.float32) * 2 + call).reshape(2, size).to("xla")


def network() -> Any:
    """Two small layers, the same each time."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3)).to("xla")


def training(model: nn.Module, capture: Capture) -> Any:
    """A captured step that trains a model."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)

    def train(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return capture(train)


@program
def a_forward_hook_with_a_number(capture: Capture) -> Iterator[Any]:
    """A hook scales what a layer gives by a number of its closure, which changes."""
    model, scale = network(), 2.0

    def scaled(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return output * scale

    model[0].register_forward_hook(scaled)
    step = training(model, capture)
    for call in range(22):
        if call in (2, 7, 20):
            scale = 1 + call / 10
        yield step(batch(call))
        yield model[2].weight


@program
def a_forward_hook_that_comes_and_goes(capture: Capture) -> Iterator[Any]:
    """A hook is added at call 4, taken away at call 9, and added twice at call 15."""
    model = network()
    step = training(model, capture)
    handles = []
    for call in range(22):
        if call == 4:
            handles.append(model[2].register_forward_hook(lambda module, args, output: output + 1))
        if call == 9:
            handles.pop().remove()
        if call == 15:
            handles = [model[2].register_forward_hook(lambda module, args, output: output * -2) for _ in range(2)]
        yield step(batch(call))
        yield model[0].weight


@program
def a_hook_before_the_forward(capture: Capture) -> Iterator[Any]:
    """Hooks before the forward, one with keyword arguments, normalize the input with a mean that the module holds."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.mean = network()[0], 0.5

        def forward(self, x: Tensor, *, gain: float = 1.0) -> Any:
            return self.linear(x).detach() * gain

    model = Model()
    model.register_forward_pre_hook(lambda module, args: (args[0] - module.mean,))
    model.register_forward_pre_hook(lambda module, args, kwargs: (args, {"gain": kwargs.get("gain", 1.0) * 2}), with_kwargs=True)
    step = capture(lambda x, **options: model(x, **options))
    for call in range(22):
        if call in (3, 11):
            model.mean += 1
        yield step(batch(call), gain=0.5) if call % 4 == 1 else step(batch(call))


@program
def a_hook_that_counts(capture: Capture) -> Iterator[Any]:
    """A hook counts the forwards of each layer by its name, in a dict that only the caller reads."""
    model, counts = network(), dict.fromkeys("012", 0)

    def count(name: str, module: nn.Module, args: Any, output: Any) -> None:
        counts[name] += 1

    for name, module in model.named_children():
        module.register_forward_hook(functools.partial(count, name))
    step = training(model, capture)
    for call in range(20):
        yield step(batch(call))
        yield counts
        if call == 10:
            counts["1"] = 0


@program
def a_hook_that_acts_at_each_third_forward(capture: Capture) -> Iterator[Any]:
    """A hook that is an object counts, and scales what the layer gives at each third forward."""

    class EveryThird:
        def __init__(self) -> None:
            self.seen, self.scale = 0, 3.0

        def __call__(self, module: nn.Module, args: Any, output: Tensor) -> Tensor | None:
            self.seen += 1
            return output * self.scale if self.seen % 3 == 0 else None

    model, hook = network(), EveryThird()
    model[0].register_forward_hook(hook)
    step = training(model, capture)
    for call in range(22):
        yield step(batch(call))
        yield model[0].bias
        if call == 13:
            hook.scale = -1.0
    yield hook.seen


@program
def features_that_a_hook_keeps(capture: Capture) -> Iterator[Any]:
    """A hook puts the features of a middle layer in a dict, and the step returns them with the output."""
    model = network()
    features: dict[str, Tensor] = {}
    model[1].register_forward_hook(lambda module, args, output: features.update(middle=output.detach()))

    @capture
    @torch.no_grad()
    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        return model(x), features["middle"] * 2

    for call in range(20):
        yield step(batch(call))
        yield features["middle"]


@program
def statistics_that_a_hook_adds_up(capture: Capture) -> Iterator[Any]:
    """A hook adds activations to a tensor on the device in place; another tensor takes its place at call 8."""
    model = network()
    sums = {"middle": torch.zeros(4).to("xla")}

    @torch.no_grad()
    def add(module: nn.Module, args: Any, output: Tensor) -> None:
        sums["middle"] += output.abs().sum(0)

    model[1].register_forward_hook(add)
    step = training(model, capture)
    first = sums["middle"]
    for call in range(20):
        if call == 8:
            sums["middle"] = torch.ones(4).to("xla")
        yield step(batch(call))
        yield sums["middle"], first


@program
def a_hook_that_removes_itself(capture: Capture) -> Iterator[Any]:
    """A hook prints shapes at the first forward only, as summaries of models do, and then takes itself away; it comes again at call 12."""
    model, shapes = network(), list[Any]()

    def attach() -> None:
        def note(module: nn.Module, args: Any, output: Tensor) -> None:
            shapes.append((tuple(args[0].shape), tuple(output.shape)))
            handle.remove()

        handle = model[2].register_forward_hook(note)

    attach()
    step = training(model, capture)
    for call in range(20):
        if call == 12:
            attach()
        yield step(batch(call))
        yield shapes


@program
def a_backward_hook_that_scales(capture: Capture) -> Iterator[Any]:
    """A full backward hook scales the gradient of a layer's input by an attribute of the module; it is gone after call 15."""
    model = network()
    model[2].reversal = 1.0

    def reverse(module: Any, grad_input: Any, grad_output: Any) -> Any:
        return (grad_input[0] * -module.reversal,)

    handle = model[2].register_full_backward_hook(reverse)
    step = training(model, capture)
    for call in range(22):
        if call in (2, 7):
            model[2].reversal = call / 4
        if call == 16:
            handle.remove()
        yield step(batch(call))
        yield model[0].weight


@program
def a_hook_before_the_backward(capture: Capture) -> Iterator[Any]:
    """A hook before the backward of a layer clamps the gradient; it is prepended to another that doubles it at call 10."""
    model, limit = network(), 0.05

    def clamped(module: nn.Module, grad_output: Any) -> Any:
        return (grad_output[0].clamp(-limit, limit),)

    def doubled(module: nn.Module, grad_output: Any) -> Any:
        return (grad_output[0] * 2,)

    model[2].register_full_backward_pre_hook(clamped)
    step = training(model, capture)
    for call in range(22):
        if call == 4:
            limit = 0.01
        if call == 10:
            model[2].register_full_backward_pre_hook(doubled, prepend=True)
        yield step(batch(call))
        yield model[2].bias


@program
def a_hook_of_all_modules(capture: Capture) -> Iterator[Any]:
    """A global forward hook is there between calls 5 and 12, with a number that changes, and one before the forward from call 15."""
    model = network()
    step = training(model, capture)
    handles: list[Any] = []
    strength = 0.5

    def louder(module: nn.Module, args: Any, output: Tensor) -> Any:
        return output * strength if isinstance(module, nn.Tanh) else None

    def shifted(module: nn.Module, args: Any) -> Any:
        return (args[0] + 1,) if isinstance(module, nn.Tanh) else None

    try:
        for call in range(24):
            if call == 5:
                handles.append(register_module_forward_hook(louder))
            if call == 9:
                strength = 2.0
            if call == 12:
                handles.pop().remove()
            if call == 15:
                handles.append(register_module_forward_pre_hook(shifted))
            yield step(batch(call))
            yield model[0].weight
    finally:
        for handle in handles:
            handle.remove()


@program
def global_hooks_that_count(capture: Capture) -> Iterator[Any]:
    """Global hooks, there from the start, count forwards and backwards by the class of the module, as profilers do."""
    counts: dict[str, int] = {}

    def count(direction: str, module: nn.Module, *_: Any) -> None:
        key = f"{direction} {type(module).__name__}"
        counts[key] = counts.get(key, 0) + 1

    handles = [
        register_module_forward_hook(functools.partial(count, "forward")),
        register_module_full_backward_hook(functools.partial(count, "backward")),
    ]
    try:
        model = network()
        step = training(model, capture)
        for call in range(20):
            yield step(batch(call))
            if call % 5 == 4:
                yield sorted(counts.items())
    finally:
        for handle in handles:
            handle.remove()


@program
def a_parametrization(capture: Capture) -> Iterator[Any]:
    """The weight is made symmetric and scaled by a number of the parametrization; it is added at call 6 and removed at call 17."""

    class Symmetric(nn.Module):
        def __init__(self, scale: float) -> None:
            super().__init__()
            self.scale = scale

        def forward(self, weight: Tensor) -> Tensor:
            return (weight + weight.T) * self.scale

    model = network()
    symmetric = Symmetric(0.5)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    @capture
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss: Tensor = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for call in range(22):
        if call == 6:
            parametrize.register_parametrization(model[0], "weight", symmetric)
        if call == 11:
            symmetric.scale = 1.5
        if call == 17:
            parametrize.remove_parametrizations(model[0], "weight")
        yield step(batch(call))
        yield model[0].weight


@program
def norms_of_weights(capture: Capture) -> Iterator[Any]:
    """One layer has weight norm and one spectral norm, whose vectors change at each forward in training mode; eval comes at call 14."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
        nn.Tanh(),
        nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)),
    ).to("xla")
    step = training(model, capture)
    for call in range(20):
        if call in (14, 17):
            model.train(call == 17)
        yield step(batch(call))
        yield dict(model.state_dict())


@program
def a_pruning_mask(capture: Capture) -> Iterator[Any]:
    """Pruning puts a hook before the forward and a mask on the device; a smaller mask comes at call 9, and it is made final at call 16."""

    def mask(kept: int) -> Tensor:
        return (torch.arange(16).reshape(4, 4) % kept == 0).float().to("xla")

    model = network()
    prune.custom_from_mask(model[0], "weight", mask(2))
    step = training(model, capture)
    for call in range(22):
        if call == 9:
            prune.custom_from_mask(model[0], "weight", mask(3))
        if call == 16:
            prune.remove(model[0], "weight")
        yield step(batch(call))
        yield model[0].weight


@program
def an_always_called_hook(capture: Capture) -> Iterator[Any]:
    """A hook that is always called notes how often a forward ended, also when it raises for a wrong setting of the model."""

    class Checked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.limit = network()[0], 4

        def forward(self, x: Tensor) -> Any:
            if x.shape[1] > self.limit:
                raise ValueError(f"{x.shape[1]} columns are more than {self.limit}")
            return self.linear(x).detach()

    model, ended = Checked(), [0]

    def end(module: nn.Module, args: Any, output: Any) -> None:
        ended[0] += 1

    hook: Callable[..., None] = end
    model.register_forward_hook(hook, always_call=True)
    step = capture(model)
    for call in range(20):
        model.limit = 3 if call in (8, 9) else 4
        try:
            yield step(batch(call))
        except ValueError as error:
            yield str(error)
        yield ended
