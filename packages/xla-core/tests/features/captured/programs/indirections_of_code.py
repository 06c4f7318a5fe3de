"""Code that a step reaches by way of something, and that is replaced: caches, registries, imports, builtins, texts, classes."""

from __future__ import annotations

import builtins
import functools
import operator
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from captured_programs import Capture, program
from torch import Tensor

CALLS = 22


def batch(call: int, size: int = 3) -> Tensor:
    """Other numbers for each call, on the device."""
    return torch.cos(torch.arange(size, dtype=torch.float32) * 3 + call).to("xla")


def changing(values: list[Any], call: int) -> Any:
    """One value for calls 0 to 6, another for calls 7 to 12, then the first again, and so on."""
    return values[(call >= 7) + (call >= 13) + (call >= 19) & 1]


@program
def settings_of_a_cached_function(capture: Capture) -> Iterator[Any]:
    """The settings are made once, and cached; the caller clears the cache, changes the source, and asks for them."""
    source = {"rate": 2.0}

    @functools.lru_cache(maxsize=1)
    def settings() -> types.SimpleNamespace:
        return types.SimpleNamespace(**source)

    step = capture(lambda x: x * settings().rate)
    for call in range(CALLS):
        if call in (7, 13):
            source["rate"] += 1.5
            settings.cache_clear()
            settings()
        yield step(batch(call))


@program
def an_implementation_that_is_registered_later(capture: Capture) -> Iterator[Any]:
    """singledispatch: from call 8 on there is an implementation for the class of the layer."""

    class Layer:
        pass

    @functools.singledispatch
    def apply(layer: Any, x: Tensor) -> Tensor:
        return x * 2

    layer = Layer()
    step = capture(lambda x: apply(layer, x))
    for call in range(CALLS):
        if call == 8:
            apply.register(Layer, lambda layer, x: x - 7)
        yield step(batch(call))


@program
def settings_of_a_module_imported_inside(capture: Capture) -> Iterator[Any]:
    """The step imports the user's module of settings, and a name of it."""
    settings = types.ModuleType("settings_of_a_program")
    settings.rate, settings.bias = 2.0, 0.0
    sys.modules[settings.__name__] = settings

    @capture
    def step(x: Tensor) -> Tensor:
        import settings_of_a_program
        from settings_of_a_program import bias

        return x * settings_of_a_program.rate + bias

    for call in range(CALLS):
        settings.rate = changing([2.0, 0.5], call)
        if call == 16:
            settings.bias = 3.0
        yield step(batch(call))


@program
def a_name_among_the_builtins(capture: Capture) -> Iterator[Any]:
    """A function that was put among the builtins, as tools do, is replaced."""
    builtins.scaled_by_a_tool = lambda x: x * 2
    step = capture(lambda x: scaled_by_a_tool(x))  # noqa: F821
    for call in range(CALLS):
        if call == 9:
            builtins.scaled_by_a_tool = lambda x: x * 5
        yield step(batch(call))
    del builtins.scaled_by_a_tool


@program
def a_builtin_that_is_shadowed(capture: Capture) -> Iterator[Any]:
    """From call 9 on a global variable hides a builtin function."""
    variables: dict[str, Any] = {"__name__": "program_of_a_shadow"}
    exec("def step(x):\n    return x * max(1, 2)\n", variables)  # noqa: S102
    step = capture(variables["step"])
    for call in range(CALLS):
        if call == 9:
            variables["max"] = lambda *values: 10
        yield step(batch(call))


@program
def functions_of_a_text(capture: Capture) -> Iterator[Any]:
    """A configuration in Python's syntax, executed without a module: its function reads its variables."""
    variables: dict[str, Any] = {}
    exec("rate = 2.0\nclass Options:\n    bias = 1.0\ndef step(x):\n    return x * rate + Options.bias\n", variables)  # noqa: S102
    step = capture(variables["step"])
    for call in range(CALLS):
        variables["rate"] = changing([2.0, 3.0], call)
        if call == 16:
            variables["Options"].bias = -1.0
        yield step(batch(call))


@program
def code_that_is_reloaded(capture: Capture) -> Iterator[Any]:
    """As notebooks reload functions: the code of a helper is replaced in place."""

    def helper(x: Tensor) -> Tensor:
        return x * 2

    def changed(x: Tensor) -> Tensor:
        return x - 5

    step = capture(lambda x: helper(x) + 1)
    for call in range(CALLS):
        if call == 9:
            helper.__code__ = changed.__code__
        yield step(batch(call))


@program
def defaults_that_are_set_later(capture: Capture) -> Iterator[Any]:
    """A helper that had no defaults gets some, and loses them."""

    def helper(x: Tensor, *factor: float) -> Tensor:
        return x * (factor[0] if factor else 1.0)

    def other(x: Tensor, scale: float = 3.0) -> Tensor:
        return x + scale

    step = capture(lambda x: helper(x) + other(x))
    for call in range(CALLS):
        if call == 7:
            other.__defaults__ = (8.0,)
        if call == 15:
            other.__defaults__ = (3.0,)
        yield step(batch(call))


@program
def an_object_that_becomes_another_class(capture: Capture) -> Iterator[Any]:
    """A strategy changes its class, and so what its method does."""

    class Slow:
        def apply(self, x: Tensor) -> Tensor:
            return x * 2

    class Fast(Slow):
        def apply(self, x: Tensor) -> Tensor:
            return x + 3

    strategy = Slow()
    step = capture(lambda x: strategy.apply(x))
    for call in range(CALLS):
        strategy.__class__ = changing([Slow, Fast], call)
        yield step(batch(call))


@program
def attributes_by_getters_of_operator(capture: Capture) -> Iterator[Any]:
    """attrgetter, itemgetter and methodcaller fetch nested settings."""

    class Rate:
        value = 2.0

        def times(self, factor: float) -> float:
            return self.value * factor

    config = types.SimpleNamespace(rate=Rate(), table={"bias": 1.0})
    rate, bias, times = operator.attrgetter("rate.value"), operator.itemgetter("bias"), operator.methodcaller("times", 2.0)
    step = capture(lambda x: x * rate(config) + bias(config.table) + times(config.rate))
    for call in range(CALLS):
        config.rate.value = changing([2.0, 6.0], call)
        if call == 16:
            config.table["bias"] = 9.0
        yield step(batch(call))


@program
def functions_chosen_by_reduce(capture: Capture) -> Iterator[Any]:
    """A pipeline of functions in a tuple, folded; the caller extends it and takes it back."""
    stages: list[Callable[[Any], Any]] = [lambda x: x * 2, torch.tanh]
    shared = types.SimpleNamespace(stages=tuple(stages))
    step = capture(lambda x: functools.reduce(lambda value, stage: stage(value), shared.stages, x))
    for call in range(CALLS):
        if call == 7:
            shared.stages = (*shared.stages, operator.neg)
        if call == 14:
            shared.stages = (shared.stages[1], shared.stages[0])
        yield step(batch(call))
