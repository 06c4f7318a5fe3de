"""Functions that change others on the way: wrappers with state of their own, modes of torch that are turned on inside, late binding."""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from captured_programs import Capture, program
from torch import Tensor, nn


def batch(call: int, size: int = 4) -> Tensor:
    """Other numbers for each call, on the device."""
    return torch.cos(torch.arange(2 * size, dtype=torch.float32) + call).reshape(2, size).to("xla")


def linear(seed: int = 0) -> nn.Linear:
    """A small layer, the same each time for a seed."""
    torch.manual_seed(seed)
    return nn.Linear(4, 3).to("xla")


@program
def a_wrapper_that_counts(capture: Capture) -> Iterator[Any]:
    """A wrapper keeps the number of calls as an attribute and does something more at each fourth."""

    def every(k: int) -> Callable[[Callable[[Tensor], Tensor]], Any]:
        def decorate(function: Callable[[Tensor], Tensor]) -> Any:
            @functools.wraps(function)
            def wrapper(x: Tensor) -> Tensor:
                wrapper.calls += 1  # type: ignore[attr-defined]
                y = function(x)
                return y.sort(-1).values if wrapper.calls % k == 0 else y  # type: ignore[attr-defined]

            wrapper.calls = 0  # type: ignore[attr-defined]
            return wrapper

        return decorate

    @every(4)
    def inner(x: Tensor) -> Tensor:
        return x.square()

    step = capture(inner)
    for call in range(22):
        if call == 9:
            inner.calls = 2
        yield step(batch(call))
    yield inner.calls


@program
def a_wrapper_that_warns_once(capture: Capture) -> Iterator[Any]:
    """A wrapper warns that a function is old at its first call only, by a set of names that were warned of."""
    warned: set[str] = set()

    def deprecated(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        @functools.wraps(function)
        def wrapper(x: Tensor) -> Tensor:
            if function.__name__ not in warned:
                warned.add(function.__name__)
                warnings.warn(f"{function.__name__} is old", DeprecationWarning, stacklevel=2)
            return function(x)

        return wrapper

    @capture
    @deprecated
    def step(x: Tensor) -> Tensor:
        return x * 3

    for call in range(20):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            yield step(batch(call))
        yield [str(each.message) for each in caught if "is old" in str(each.message)]
        if call == 9:
            warned.clear()


@program
def a_wrapper_that_remembers(capture: Capture) -> Iterator[Any]:
    """A table of computed factors lies in a wrapper: the step fills it by itself for arguments that it has not seen."""

    def memoized(function: Callable[[int], float]) -> Any:
        table: dict[int, float] = {}

        @functools.wraps(function)
        def wrapper(n: int) -> float:
            if n not in table:
                table[n] = function(n)
            return table[n]

        wrapper.table = table  # type: ignore[attr-defined]
        return wrapper

    base = 2.0

    @memoized
    def factor(n: int) -> float:
        return base**n

    level = {"n": 0}
    step = capture(lambda x: x * factor(level["n"]))
    for call in range(24):
        level["n"] = (call // 5) % 3
        if call == 7:
            base = 3.0
        if call == 18:
            factor.table.clear()
        yield step(batch(call))
    yield factor.table


@program
def a_wrapper_that_tries_again(capture: Capture) -> Iterator[Any]:
    """A wrapper calls a function again when it raises; how often that happens is counted, and depends on a variable."""
    broken, retries = {"for": 0}, [0]

    def retried(function: Callable[[Tensor, int], Tensor]) -> Callable[[Tensor], Tensor]:
        @functools.wraps(function)
        def wrapper(x: Tensor) -> Tensor:
            for attempt in range(3):
                try:
                    return function(x, attempt)
                except RuntimeError:
                    retries[0] += 1
            return x.new_zeros(x.shape)

        return wrapper

    @capture
    @retried
    def step(x: Tensor, attempt: int) -> Tensor:
        if attempt < broken["for"]:
            raise RuntimeError("not yet")
        return x + attempt

    for call in range(20):
        broken["for"] = {3: 1, 4: 1, 5: 1, 11: 2, 17: 3}.get(call, 0)
        yield step(batch(call))
        yield retries


@program
def gradients_by_a_switch(capture: Capture) -> Iterator[Any]:
    """torch.set_grad_enabled takes a switch of the trainer: one function trains and evaluates."""

    class Trainer:
        def __init__(self) -> None:
            self.model, self.training = linear(), True
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.2)

        def step(self, x: Tensor) -> Tensor:
            with torch.set_grad_enabled(self.training):
                loss: Tensor = self.model(x).square().mean()
            if loss.requires_grad:
                loss.backward()
                self.optimizer.step()
                self.optimizer.zero_grad()
            return loss.detach()

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(24):
        trainer.training = call % 4 != 3
        yield step(batch(call))
        yield trainer.model.bias


@program
def the_mode_of_the_caller(capture: Capture) -> Iterator[Any]:
    """The caller calls the step under no_grad at some calls and in training mode at others, and the step looks at it."""
    model = linear()

    @capture
    def step(x: Tensor) -> Tensor:
        y: Tensor = model(x)
        return y.detach() * 2 if torch.is_grad_enabled() else y

    for call in range(22):
        with torch.no_grad() if call in (5, 6, 7, 15) else contextlib.nullcontext():
            yield step(batch(call))


@program
def a_stack_of_contexts(capture: Capture) -> Iterator[Any]:
    """The contexts in which the step computes come from a list of factories, which the caller appends to and empties."""
    factories: list[Callable[[], Any]] = [torch.no_grad]
    model = linear()

    @capture
    def step(x: Tensor) -> Tensor:
        with contextlib.ExitStack() as stack:
            for factory in factories:
                stack.enter_context(factory())
            y: Tensor = model(x)
        return y.detach()

    for call in range(22):
        if call == 6:
            factories.append(functools.partial(torch.autocast, "xla", torch.bfloat16))
        if call == 12:
            factories.clear()
        if call == 18:
            factories.append(torch.inference_mode)
        yield step(batch(call))


@program
def a_tensor_that_the_context_changes(capture: Capture) -> Iterator[Any]:
    """A context manager of a class adds noise of a fixed tensor to the weights and removes it; its strength and its model change."""

    class Perturbed:
        def __init__(self, model: nn.Linear, strength: float) -> None:
            self.model, self.strength, self.entered = model, strength, 0
            self.noise = torch.linspace(-1, 1, 12).reshape(3, 4).to("xla")

        @torch.no_grad()
        def __enter__(self) -> nn.Linear:
            self.entered += 1
            self.model.weight.add_(self.noise, alpha=self.strength)
            return self.model

        @torch.no_grad()
        def __exit__(self, *_: object) -> None:
            self.model.weight.sub_(self.noise, alpha=self.strength)

    perturbed = Perturbed(linear(), 0.5)

    @capture
    def step(x: Tensor) -> Any:
        with perturbed as model:
            return model(x).detach()

    for call in range(22):
        if call == 2:
            perturbed.strength = 2.0
        if call == 8:
            perturbed.model = linear(1)
        if call == 20:
            perturbed.noise.neg_()
        yield step(batch(call))
    yield perturbed.model.weight, perturbed.entered


@program
def lambdas_in_a_loop(capture: Capture) -> Iterator[Any]:
    """Functions made in a loop all see the last value of its variable, which the caller changes later, except one with a default."""
    functions: list[Callable[[Tensor], Tensor]] = []
    factor = 0.0
    for factor in (1.0, 2.0, 3.0):
        functions.append(lambda x: x * factor)  # noqa: B023
    functions.append(lambda x, own=factor: x - own)  # type: ignore[misc]
    step = capture(lambda x: sum(function(x) for function in functions))
    for call in range(20):
        if call in (4, 10):
            factor = call / 8
        if call == 15:
            functions.pop(0)
        yield step(batch(call))


@program
def a_method_of_another_object(capture: Capture) -> Iterator[Any]:
    """A list of callbacks holds bound methods; the objects behind them change, and one callback is taken away."""

    class Callback:
        def __init__(self, weight: float) -> None:
            self.weight, self.calls = weight, 0

        def on_loss(self, loss: Tensor) -> Tensor:
            self.calls += 1
            return loss * self.weight

    callbacks = [Callback(1.0), Callback(0.5), Callback(2.0)]
    hooks = [each.on_loss for each in callbacks]

    @capture
    def step(x: Tensor) -> Tensor:
        loss = x.square().mean()
        for hook in hooks:
            loss = hook(loss) + 1
        return loss

    for call in range(22):
        if call in (2, 12):
            callbacks[1].weight = float(call)
        if call == 7:
            del hooks[0]
        yield step(batch(call))
    yield [each.calls for each in callbacks]


@program
def a_parametrized_class_decorator(capture: Capture) -> Iterator[Any]:
    """A decorator of classes wraps the method that is captured, and reads the option of the class that it was given for."""
    defaults = {"temperature": 2.0}

    def tempered(**options: float) -> Callable[[type[Any]], type[Any]]:
        def decorate(cls: type[Any]) -> type[Any]:
            inner = cls.forward

            @functools.wraps(inner)
            def forward(self: Any, x: Tensor) -> Tensor:
                y: Tensor = inner(self, x) / options.get("temperature", defaults["temperature"])
                return y

            cls.forward, cls.options = forward, options
            return cls

        return decorate

    @tempered()
    class Head(nn.Module):
        options: dict[str, float]

        def __init__(self) -> None:
            super().__init__()
            self.linear = linear()

        def forward(self, x: Tensor) -> Any:
            return self.linear(x).detach()

    head = Head()
    step = capture(head)
    for call in range(22):
        if call == 3:
            defaults["temperature"] = 0.5
        if call == 8:
            head.options["temperature"] = 4.0
        if call == 16:
            head.options.clear()
        yield step(batch(call))
