"""Whole numbers that change and go where Python's own are wanted: dimensions, sizes, `math`, enums; names that are looked up oddly."""

from __future__ import annotations

import enum
import functools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import cos, log2
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from captured_programs import Capture, program
from torch import Tensor
from torch.nn import functional

CALLS = 24


def batch(call: int, size: int = 3) -> Tensor:
    """Other numbers for each call, on the device."""
    return torch.cos(torch.arange(size, dtype=torch.float32) * 3 + call).to("xla")


def turned(capture: Capture, compute: Callable[[Tensor, int], Tensor], first: bool) -> Iterator[Any]:
    """A step whose dimension turns, before or after it is used."""
    state = SimpleNamespace(dim=0, last=[0])

    def step(x: Tensor) -> Tensor:
        if first:
            state.dim = 1 - state.dim
            state.last[0] = state.dim
        result = compute(torch.outer(x, x), state.dim)
        if not first:
            state.dim = 1 - state.dim
            state.last[0] = state.dim
        return result

    captured = capture(step)
    for call in range(CALLS):
        yield captured(batch(call)), state.dim, state.last


@program
def the_dimension_of_a_maximum_turns(capture: Capture) -> Iterator[Any]:
    """`argmax` takes a number of C's."""
    yield from turned(capture, lambda x, dim: x.argmax(dim), False)


@program
def the_dimension_of_a_softmax_turns(capture: Capture) -> Iterator[Any]:
    """The number has changed before it is refused."""
    yield from turned(capture, lambda x, dim: torch.softmax(x, dim), True)


@program
def the_dimension_of_a_concatenation_turns(capture: Capture) -> Iterator[Any]:
    """By its name."""
    yield from turned(capture, lambda x, dim: torch.cat([x, x + 1], dim=dim), True)


@program(refused="steps.classes changes as well")
def more_classes_at_each_call(capture: Capture) -> Iterator[Any]:
    """Each call has another shape."""
    steps = SimpleNamespace(classes=3)

    @capture
    def step(x: Tensor) -> Tensor:
        steps.classes += 1
        return functional.one_hot((x > 0).long(), steps.classes)

    for call in range(CALLS):
        yield step(batch(call)), steps.classes


def counted(capture: Capture, factor: Callable[[int], float]) -> Iterator[Any]:
    """A step with a factor that follows from a count."""
    state = SimpleNamespace(count=1)

    def step(x: Tensor) -> Tensor:
        result = x * factor(state.count)
        state.count += 1
        return result

    captured = capture(step)
    for call in range(CALLS):
        yield captured(batch(call)), state.count


@program
def a_common_divisor_of_a_count(capture: Capture) -> Iterator[Any]:
    """An integer function of `math`."""
    yield from counted(capture, lambda count: math.gcd(12, count))


@program
def a_root_of_a_count(capture: Capture) -> Iterator[Any]:
    """Another one."""
    yield from counted(capture, lambda count: math.isqrt(count) + 1)


@program
def a_power_of_two_by_a_count(capture: Capture) -> Iterator[Any]:
    """`ldexp` takes an int of C's."""
    yield from counted(capture, lambda count: math.ldexp(1.0, count % 4))


@program(refused="names isinstance, which it may ask for float")
def a_count_that_is_asked_for_its_type(capture: Capture) -> Iterator[Any]:
    """A fraction or a count: what `isinstance` says decides."""
    yield from counted(capture, lambda count: 0.5 if isinstance(count, float) else 2.0)


@program
def a_number_of_numpy_as_an_item(capture: Capture) -> Iterator[Any]:
    """A schedule of NumPy, one number of it at each call."""
    rates = np.linspace(1, 0.1, CALLS)
    state = SimpleNamespace(rate=rates[0])
    step = capture(lambda x: x * state.rate.item() + state.rate.ndim)
    for call in range(CALLS):
        state.rate = rates[call]
        yield step(batch(call))


@program(refused="changes as well")
def a_number_of_numpy_that_is_rounded(capture: Capture) -> Iterator[Any]:
    """A method whose result is another number."""
    rates = np.linspace(1, 0.1, CALLS)
    state = SimpleNamespace(rate=rates[0])
    step = capture(lambda x: x * state.rate.round(2))
    for call in range(CALLS):
        state.rate = rates[call]
        yield step(batch(call))


@program
def a_rate_divided_by_a_norm(capture: Capture) -> Iterator[Any]:
    """As in optimizers made by hand: `rate / (v.sqrt() + eps)`."""
    weights, squares = batch(0), torch.zeros(3).to("xla")
    state = SimpleNamespace(rate=1.0)

    @capture
    def step(x: Tensor) -> Tensor:
        squares.mul_(0.9).add_(x * x, alpha=0.1)
        weights.sub_(state.rate / (squares.sqrt() + 1e-8) * x)
        return weights.sum()

    for call in range(CALLS):
        state.rate = 1 / (call + 2)
        yield step(batch(call)), weights


@program
def a_limit_that_tensors_are_compared_with(capture: Capture) -> Iterator[Any]:
    """A probability and a limit that change at each call, on both sides of a comparison."""
    step = capture(lambda x, limit: torch.where((x < limit) | (-limit / 2 > x), x, 2 * x))
    for call in range(CALLS):
        yield step(batch(call), 0.03 * call)


class Level(enum.IntEnum):
    """Numbers with names."""

    LOW = 1
    MIDDLE = 4
    HIGH = 7


@program
def a_level_with_a_name(capture: Capture) -> Iterator[Any]:
    """An enum of numbers on an attribute: asked for its identity, name and value."""
    state = SimpleNamespace(level=Level.LOW)

    @capture
    def step(x: Tensor) -> Tensor:
        if state.level is Level.HIGH:
            return x * 2
        return x * len(state.level.name) + state.level.value

    for call in range(CALLS):
        state.level = list(Level)[call % 3]
        yield step(batch(call)), state.level


@program
def a_level_as_argument(capture: Capture) -> Iterator[Any]:
    """The same as an argument."""
    step = capture(lambda x, level: x * 2 if level is Level.HIGH else x - level)
    for call in range(CALLS):
        yield step(batch(call), list(Level)[call % 3])


@program
def a_cached_result_that_was_made_anew(capture: Capture) -> Iterator[Any]:
    """The caller empties a cache and fills it with another result."""
    settings = SimpleNamespace(rate=2.0)

    @functools.lru_cache(None)
    def rate_of(name: str) -> float:
        return float(getattr(settings, name))

    step = capture(lambda x: x * rate_of("rate"))
    for call in range(CALLS):
        if call == 8:
            settings.rate += 3.0
            rate_of.cache_clear()
            rate_of("rate")
        yield step(batch(call))


@program
def a_class_gets_the_attribute_that_was_made_up(capture: Capture) -> Iterator[Any]:
    """`__getattr__` serves a name until the class has it."""

    class Box:
        def __getattr__(self, name: str) -> float:
            return 2.0

    box = Box()
    step = capture(lambda x: x * box.rate)
    for call in range(CALLS):
        if call == 8:
            Box.rate = 9.0  # type: ignore[attr-defined]
        if call == 19:
            del Box.rate  # type: ignore[attr-defined]
        yield step(batch(call))


class Positive:
    """A checked attribute, whose value is in the instance's `__dict__` under the same name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return instance.__dict__.get(self.name, 1.0)

    def __set__(self, instance: Any, value: float) -> None:
        if value <= 0:
            raise ValueError(value)
        instance.__dict__[self.name] = value


class Checked:
    """Settings that are checked."""

    rate = Positive()


@program
def a_checked_attribute(capture: Capture) -> Iterator[Any]:
    """The caller sets it now and then."""
    settings = Checked()
    step = capture(lambda x: x * settings.rate)
    for call in range(CALLS):
        if call in (8, 20):
            settings.rate = 3.0 + call
        yield step(batch(call))


@program
def a_special_method_that_is_static(capture: Capture) -> Iterator[Any]:
    """`__call__` of a class is exchanged."""

    class Schedule:
        @staticmethod
        def __call__() -> float:
            return 2.0

    schedule = Schedule()
    step = capture(lambda x: x * schedule())
    for call in range(CALLS):
        if call == 8:
            Schedule.__call__ = staticmethod(lambda: 5.0)  # type: ignore[method-assign]
        yield step(batch(call))


@program
def the_number_of_results_as_argument(capture: Capture) -> Iterator[Any]:
    """Four numbers that recur, each with another shape."""
    step = capture(lambda x, count: x.topk(count).values)
    for call in range(2 * CALLS):
        yield step(batch(call, 5), 1 + call % 4)


@program(refused="it sets kind of a tensor that it returns or keeps")
def an_attribute_of_the_result(capture: Capture) -> Iterator[Any]:
    """A result with a note."""

    @capture
    def step(x: Tensor) -> Any:
        result: Any = x * 2
        result.kind = "doubled"
        return result

    for call in range(CALLS):
        result = step(batch(call))
        yield result, result.kind


@dataclass
class Note:
    """What a step leaves: a number deep inside."""

    of: Any


@program(refused="changes as well")
def numbers_deep_in_what_is_left(capture: Capture) -> Iterator[Any]:
    """A counter, keys of a dict, dataclasses in lists: numbers of Python's own, whatever the calls do."""
    state = SimpleNamespace(count=0)

    @capture
    def step(x: Tensor) -> Tensor:
        state.counter = Counter(calls=state.count)
        state.by_number = {state.count: "last"}
        state.notes = Note([Note(state.count)])
        state.count += 1
        return x * state.count

    for call in range(CALLS):
        yield step(batch(call))
        left = [state.counter["calls"], *state.by_number, state.notes.of[0].of]
        yield [(type(number).__name__, number) for number in left]


@program
def numbers_deep_in_a_result(capture: Capture) -> Iterator[Any]:
    """The same, returned."""
    state = SimpleNamespace(count=0)

    @capture
    def step(x: Tensor) -> Any:
        state.count += 1
        return x * state.count, {"at": [Note((state.count, 2 * state.count))]}

    for call in range(CALLS):
        result, rest = step(batch(call))
        yield result, [(type(number).__name__, number) for number in rest["at"][0].of]


@program
def a_shape_as_result(capture: Capture) -> Iterator[Any]:
    """A torch.Size, which knows how many elements it is for."""
    step = capture(lambda x: (x * 2, x.shape, {"of": x[None].shape}))
    for call in range(CALLS):
        result, shape, shapes = step(batch(call))
        yield result, type(shape).__name__, shape.numel(), shapes["of"].numel()


@program(refused="log2 by itself instead of math.log2")
def a_function_of_math_by_its_own_name(capture: Capture) -> Iterator[Any]:
    """`from math import log2`: C computes with what it gets."""
    yield from counted(capture, lambda count: math.ceil(log2(count % 6 + 1)))


@program(refused="cos by itself instead of math.cos")
def a_schedule_by_a_cosine_of_its_own_name(capture: Capture) -> Iterator[Any]:
    """A rate that changes at each call."""
    yield from counted(capture, lambda count: 0.5 * (1 + cos(count / CALLS)))


@program
def a_table_of_functions_of_math(capture: Capture) -> Iterator[Any]:
    """The function is looked up in a dict."""
    state = SimpleNamespace(count=0, by={"log": math.log1p, "root": math.sqrt})

    @capture
    def step(x: Tensor) -> Tensor:
        state.count = (state.count + 1) % 4
        return x * 2 if state.by["root"](state.count) > 1.2 else x - 1

    for call in range(2 * CALLS):
        yield step(batch(call))
