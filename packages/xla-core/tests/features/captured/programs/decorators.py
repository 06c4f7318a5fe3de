"""Functions behind decorators and context managers, and what their closures hold, replaced or changed between calls."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from captured_programs import Capture, program
from torch import Tensor, nn

F = TypeVar("F", bound=Callable[..., Any])


def batch(call: int, size: int = 4) -> Tensor:
    """Other numbers for each call, on the device."""
    return torch.sin(torch.arange(2 * size, dtype=torch.float32) * 2 + call).reshape(2, size).to("xla")


def linear(seed: int = 0) -> nn.Linear:
    """A small layer, the same each time for a seed."""
    torch.manual_seed(seed)
    return nn.Linear(4, 3).to("xla")


def scaled_by(factor: float) -> Callable[[F], F]:
    """A decorator that multiplies what a function returns."""

    def decorate(function: F) -> F:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) * factor

        return wrapper  # type: ignore[return-value]

    return decorate


@program
def evaluation_without_gradients(capture: Capture) -> Iterator[Any]:
    """An evaluation under torch.no_grad() reads a model from its closure, which is replaced, loaded and trained between calls."""
    model = linear()

    @capture
    @torch.no_grad()
    def evaluate(x: Tensor) -> Tensor:
        y: Tensor = model(x)
        assert not y.requires_grad
        return y.softmax(-1)

    for call in range(24):
        if call == 2:
            model = linear(1)
        if call == 7:
            model.load_state_dict(linear(2).state_dict())
        if call in (12, 13, 20):
            with torch.no_grad():
                model.weight.mul_(-0.5)
        yield evaluate(batch(call))


@program
def evaluation_in_inference_mode(capture: Capture) -> Iterator[Any]:
    """A method under torch.inference_mode() keeps averages on the device; the metric that it is for is another object later."""

    class Metric:
        def __init__(self) -> None:
            self.total = torch.zeros(()).to("xla")
            self.batches = 0

        @torch.inference_mode()
        def update(self, x: Tensor) -> Tensor:
            self.total += x.mean()
            return self.total / 2

    first, second = Metric(), Metric()
    steps = capture(first.update), capture(second.update)
    for call in range(24):
        yield steps[0 if call < 9 else call % 2](batch(call))
        if call == 14:
            first.total.zero_()
    yield first.total, second.total


@program
def a_helper_that_turns_gradients_on(capture: Capture) -> Iterator[Any]:
    """Inside torch.no_grad() a helper under torch.enable_grad() computes a gradient penalty; its strength is a cell of its closure."""
    model, strength = linear(), 1.0

    @torch.enable_grad()
    def penalty(x: Tensor) -> Tensor:
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(model(x).square().sum(), x)
        return gradient.square().sum().detach() * strength

    @capture
    @torch.no_grad()
    def step(x: Tensor) -> Any:
        return model(x).sum() + penalty(x)

    for call in range(22):
        if call in (2, 7, 20):
            strength = call / 4
        if call == 11:
            model = linear(3)
        yield step(batch(call))


@program
def a_decorator_of_ones_own(capture: Capture) -> Iterator[Any]:
    """The function that a wrapper calls, and the factor in the wrapper's closure, are exchanged."""
    bias = 1.0

    @scaled_by(2.0)
    def inner(x: Tensor) -> Tensor:
        return x + bias

    step = capture(inner)
    cells = dict(zip(inner.__code__.co_freevars, inner.__closure__ or (), strict=True))
    for call in range(24):
        if call == 2:
            bias = -1.0
        if call == 7:
            cells["factor"].cell_contents = 5.0
        if call == 13:
            cells["function"].cell_contents = torch.square
        if call == 20:
            cells["function"].cell_contents = scaled_by(-1.0)(torch.abs)
        yield step(batch(call))


@program
def decorators_on_decorators(capture: Capture) -> Iterator[Any]:
    """Three decorators over one another, one from torch and two that pass keyword arguments on, with a model that goes to eval."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).to("xla")
    settings = {"shift": 0.5}

    def shifted(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        @functools.wraps(function)
        def wrapper(*args: Any, **kwargs: Any) -> Tensor:
            return function(*args, **kwargs) + settings["shift"]

        return wrapper

    @capture
    @shifted
    @torch.no_grad()
    @scaled_by(3.0)
    def step(x: Tensor, *, power: int = 1) -> Any:
        return model(x) ** power

    for call in range(24):
        if call == 3:
            settings["shift"] = -2.0
        if call in (8, 19):
            model.train(not model.training)
        yield step(batch(call), power=1 + call % 2)
    yield model[1].running_var


@program
def a_decorator_that_is_a_class(capture: Capture) -> Iterator[Any]:
    """The decorator is an object: it holds the function, a number and a count of calls, which Python alone reads."""

    class Counted:
        def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
            functools.update_wrapper(self, function)
            self.function, self.gain, self.calls = function, 1.0, 0

        def __call__(self, x: Tensor) -> Tensor:
            self.calls += 1
            return self.function(x) * self.gain

    @Counted
    def inner(x: Tensor) -> Tensor:
        return x.cumsum(0)

    step = capture(inner)
    for call in range(22):
        if call == 4:
            inner.gain = 2.5
        if call == 10:
            inner.function = torch.neg
        yield step(batch(call))
        if call % 5 == 0:
            yield inner.calls


@program
def a_decorator_that_is_a_descriptor(capture: Capture) -> Iterator[Any]:
    """A decorator for methods, a class with __get__, passes the object on; what the object has changes."""

    class Method:
        def __init__(self, function: Callable[[Any, Tensor], Tensor]) -> None:
            self.function, self.limit = function, 1.0

        def __get__(self, owner: Any, kind: type | None = None) -> Callable[[Tensor], Tensor]:
            return lambda x: self.function(owner, x).clamp(max=self.limit)

    class Model:
        def __init__(self) -> None:
            self.scale = 1.0

        @Method
        def run(self, x: Tensor) -> Tensor:
            return x * self.scale

    model = Model()
    step = capture(lambda x: model.run(x))
    for call in range(22):
        if call in (2, 14):
            model.scale = call / 2
        if call == 7:
            vars(Model)["run"].limit = 0.25
        if call == 18:
            model = Model()
        yield step(batch(call))


@program
def a_context_manager_around_the_step(capture: Capture) -> Iterator[Any]:
    """A context manager made of a generator puts averaged weights in for an evaluation and takes them out again."""
    model, average = linear(), linear(1)
    swapped = [0]

    @contextlib.contextmanager
    def averaged() -> Iterator[None]:
        kept = [each.detach().clone() for each in model.parameters()]
        with torch.no_grad():
            for each, other in zip(model.parameters(), average.parameters(), strict=True):
                each.copy_(other)
        swapped[0] += 1
        try:
            yield
        finally:
            with torch.no_grad():
                for each, before in zip(model.parameters(), kept, strict=True):
                    each.copy_(before)

    @capture
    @torch.no_grad()
    def evaluate(x: Tensor) -> Any:
        plain = model(x)
        with averaged():
            return plain + 2 * model(x)

    for call in range(20):
        if call in (4, 9):
            average = linear(call)
        if call == 15:
            with torch.no_grad():
                model.bias.add_(1.0)
        yield evaluate(batch(call))
        yield model.weight
    yield swapped


@program
def a_context_manager_as_a_decorator(capture: Capture) -> Iterator[Any]:
    """A context manager that decorates sets a variable while the function runs, which a helper reads; it is set by the caller, too."""
    state = {"scale": 1.0}

    @contextlib.contextmanager
    def scaling(value: float) -> Iterator[None]:
        before, state["scale"] = state["scale"], state["scale"] * value
        try:
            yield
        finally:
            state["scale"] = before

    def helper(x: Tensor) -> Tensor:
        return x * state["scale"]

    @capture
    @scaling(2.0)
    def step(x: Tensor) -> Tensor:
        with scaling(5.0):
            y = helper(x)
        return y + helper(x)

    for call in range(20):
        if call in (2, 8):
            state["scale"] = call + 0.5
        if call == 12:
            with scaling(-1.0):
                yield step(batch(call))
        yield step(batch(call))
    yield state


@program
def a_training_step_of_a_factory(capture: Capture) -> Iterator[Any]:
    """A factory closes over model, optimizer and loss; the caller puts others into its cells, and later the first ones again."""

    def factory(model: nn.Module, optimizer: torch.optim.Optimizer, loss_of: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        def train(x: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(model(x))
            loss.backward()
            optimizer.step()
            return loss.detach()

        return train

    models = [linear(), linear(1)]
    optimizers = [torch.optim.SGD(models[0].parameters(), lr=0.1), torch.optim.Adam(models[1].parameters(), lr=0.05)]
    train: Any = factory(models[0], optimizers[0], lambda y: y.square().mean())
    cells = dict(zip(train.__code__.co_freevars, train.__closure__, strict=True))
    step = capture(train)
    for call in range(24):
        if call == 5:
            cells["loss_of"].cell_contents = lambda y: y.abs().sum()
        if call in (9, 17):
            cells["model"].cell_contents = models[call == 9]
            cells["optimizer"].cell_contents = optimizers[call == 9]
        if call == 20:
            optimizers[0].param_groups[0]["lr"] = 0.5
        yield step(batch(call))
        yield [each.weight for each in models]


@program
def parts_that_are_swapped_by_name(capture: Capture) -> Iterator[Any]:
    """Variables of the enclosing function, a tensor, a layer and a function, get other values by plain assignments."""
    shift, layer = torch.full((3,), 0.5).to("xla"), linear()
    activation: Callable[[Tensor], Tensor] = torch.tanh

    @capture
    @torch.no_grad()
    def step(x: Tensor) -> Tensor:
        return activation(layer(x)) + shift

    for call in range(24):
        if call == 2:
            shift = torch.full((3,), -4.0).to("xla")
        if call == 7:
            shift.mul_(0.5)
        if call == 10:
            activation = torch.nn.functional.gelu
        if call == 14:
            layer = linear(5)
        if call == 20:
            shift.data = torch.arange(3.0).to("xla")
        yield step(batch(call))
