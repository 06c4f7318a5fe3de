"""Python state that a step reads by way of something: metaclasses, descriptors, mappings, caches, imports, code that is replaced."""

from __future__ import annotations

import collections
import contextlib
import copy
import enum
import heapq
import queue
import threading
import types
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from fractions import Fraction
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
def a_property_of_a_metaclass(capture: Capture) -> Iterator[Any]:
    """A class of settings, whose metaclass computes the rate from what it keeps itself."""

    class Meta(type):
        base = 2.0

        @property
        def rate(cls) -> float:
            return cls.base * type(cls).base

    class Settings(metaclass=Meta):
        pass

    step = capture(lambda x: x * Settings.rate)
    for call in range(CALLS):
        Meta.base = changing([2.0, 3.0], call)
        yield step(batch(call))


@program
def a_descriptor_with_weak_keys(capture: Capture) -> Iterator[Any]:
    """Values of a descriptor live in a WeakKeyDictionary of the descriptor."""

    class Setting:
        def __init__(self) -> None:
            self.values: weakref.WeakKeyDictionary[Any, float] = weakref.WeakKeyDictionary()

        def __get__(self, instance: Any, owner: Any) -> float:
            return self.values.get(instance, 1.0)

        def __set__(self, instance: Any, value: float) -> None:
            self.values[instance] = value

    class Trainer:
        rate = Setting()

        def step(self, x: Tensor) -> Tensor:
            return x * self.rate

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(CALLS):
        trainer.rate = changing([1.0, 4.0], call)
        yield step(batch(call))


@program(refused="something else at each call")
def counts_by_weak_keys(capture: Capture) -> Iterator[Any]:
    """The step counts how often it has used each layer in a dict with weak keys, and scales with that."""

    class Layer:
        pass

    layers = [Layer(), Layer()]
    counts: weakref.WeakKeyDictionary[Layer, int] = weakref.WeakKeyDictionary()

    @capture
    def step(x: Tensor) -> Tensor:
        counts[layers[0]] = counts.get(layers[0], 0) + 1
        return x * counts[layers[0]]

    for call in range(CALLS):
        yield step(batch(call))
    yield counts[layers[0]]


@program
def a_chain_of_settings(capture: Capture) -> Iterator[Any]:
    """A ChainMap of defaults and options of the user, which come and go."""
    options: dict[str, float] = {}
    settings = collections.ChainMap(options, {"rate": 0.5, "bias": 1.0})
    step = capture(lambda x: x * settings["rate"] + settings["bias"])
    for call in range(CALLS):
        if call in (4, 15):
            options["rate"] = call
        if call == 10:
            options.clear()
        if call == 18:
            settings.maps.insert(0, {"bias": -2.0})
        yield step(batch(call))


@program
def a_dict_of_the_users(capture: Capture) -> Iterator[Any]:
    """A UserDict that answers for missing keys."""

    class Defaults(collections.UserDict[str, float]):
        def __missing__(self, key: str) -> float:
            return float(len(key))

    settings = Defaults()
    step = capture(lambda x: x * settings["rate"])
    for call in range(CALLS):
        if call == 6:
            settings["rate"] = 7.0
        if call == 14:
            del settings["rate"]
        yield step(batch(call))


@program
def items_of_an_object(capture: Capture) -> Iterator[Any]:
    """A class with __getitem__, __len__, __contains__ and __call__ over what it keeps."""

    class Table:
        def __init__(self) -> None:
            self.rows = [1.0, 2.0]

        def __getitem__(self, index: int) -> float:
            return self.rows[index]

        def __len__(self) -> int:
            return len(self.rows)

        def __contains__(self, value: float) -> bool:
            return value in self.rows

        def __call__(self, x: Tensor) -> Tensor:
            return x * self[len(self) - 1] + (5.0 in self)

    table = Table()
    step = capture(lambda x: table(x) * table[0])
    for call in range(CALLS):
        if call in (5, 6, 16):
            table.rows.append(call - 1.0)
        if call == 12:
            table.rows[0] = 3.0
        yield step(batch(call))


@dataclass(frozen=True)
class State:
    """A state that is never changed, only replaced."""

    count: int = 0
    scale: float = 1.0
    name: str = "a"


@program
def a_frozen_state_that_the_step_replaces(capture: Capture) -> Iterator[Any]:
    """The step replaces its frozen state by one with a higher count."""

    class Trainer:
        state = State()

        def step(self, x: Tensor) -> Tensor:
            self.state = replace(self.state, count=self.state.count + 1)
            return x * self.state.count

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(CALLS):
        yield step(batch(call))
    yield trainer.state.count


@program
def a_frozen_state_that_the_caller_replaces(capture: Capture) -> Iterator[Any]:
    """The caller replaces a frozen state before each call; only the count differs, and at times the scale."""
    shared = types.SimpleNamespace(state=State())
    step = capture(lambda x: x * shared.state.scale)
    for call in range(40):
        shared.state = replace(shared.state, count=call, scale=1.0 if call < 30 else 3.0)
        yield step(batch(call))


class Mode(enum.Enum):
    """A mode with a factor that is set on its member."""

    TRAIN = 1
    TEST = 2


@program
def an_attribute_of_a_member_of_an_enum(capture: Capture) -> Iterator[Any]:
    """The caller sets an attribute on the members of an enum, which the step reads."""
    shared = types.SimpleNamespace(mode=Mode.TRAIN)
    for mode in Mode:
        mode.factor = 1.0
    step = capture(lambda x: x * shared.mode.factor)
    for call in range(CALLS):
        Mode.TRAIN.factor = changing([1.0, 5.0], call)
        yield step(batch(call))


@program
def numbers_that_are_exact(capture: Capture) -> Iterator[Any]:
    """Rates as Fraction and Decimal, which the caller replaces at times and the step turns into floats."""
    shared = types.SimpleNamespace(rate=Fraction(1, 2), bias=Decimal("0.5"))
    step = capture(lambda x: x * float(shared.rate) + float(shared.bias))
    for call in range(CALLS):
        if call in (7, 16):
            shared.rate = shared.rate / 3
        if call == 12:
            shared.bias += 1
        yield step(batch(call))


@program
def an_event_of_threads(capture: Capture) -> Iterator[Any]:
    """A threading.Event says whether to warm up."""
    warm = threading.Event()
    step = capture(lambda x: x * 2 if warm.is_set() else x + 1)
    for call in range(CALLS):
        if call == 8:
            warm.set()
        if call == 17:
            warm.clear()
        yield step(batch(call))


@program(refused=r"changes|takes|get|queue|was .* in call")
def a_queue_of_factors(capture: Capture) -> Iterator[Any]:
    """The step takes its factor from a queue.Queue that the caller fills."""
    factors: queue.Queue[float] = queue.Queue()
    step = capture(lambda x: x * factors.get_nowait())
    for call in range(CALLS):
        factors.put(1.0 + call // 4)
        yield step(batch(call))


@program(refused="changes|items|heap")
def a_heap_of_costs(capture: Capture) -> Iterator[Any]:
    """The step takes the smallest cost and puts back a higher one."""
    costs = [1.0, 2.0, 4.0]
    heapq.heapify(costs)

    @capture
    def step(x: Tensor) -> Tensor:
        return x * heapq.heapreplace(costs, costs[0] + 3)

    for call in range(CALLS):
        yield step(batch(call))
    yield costs


@program(refused="changes|items")
def a_deque_that_rotates(capture: Capture) -> Iterator[Any]:
    """Factors in turn: the step rotates them."""
    factors = collections.deque([1.0, 2.0, 3.0])

    @capture
    def step(x: Tensor) -> Tensor:
        factors.rotate(-1)
        return x * factors[0]

    for call in range(CALLS):
        yield step(batch(call))
    yield list(factors)


@program
def copies_of_a_configuration(capture: Capture) -> Iterator[Any]:
    """The step works on a deep copy of the configuration, which the caller changes."""
    config: dict[str, Any] = {"rates": [1.0, 2.0], "nested": types.SimpleNamespace(bias=1.0)}

    @capture
    def step(x: Tensor) -> Tensor:
        mine = copy.deepcopy(config)
        mine["rates"].append(3.0)
        return x * sum(mine["rates"]) + mine["nested"].bias

    for call in range(CALLS):
        config["nested"].bias = changing([1.0, 4.0], call)
        if call == 16:
            config["rates"][0] = 10.0
        yield step(batch(call))


@program
def a_context_that_restores(capture: Capture) -> Iterator[Any]:
    """A context manager of the caller's sets a setting around some calls, another one inside the step around a part."""
    config = types.SimpleNamespace(scale=1.0)

    @contextlib.contextmanager
    def scaled(value: float) -> Iterator[None]:
        before, config.scale = config.scale, config.scale * value
        try:
            yield
        finally:
            config.scale = before

    @capture
    def step(x: Tensor) -> Tensor:
        with scaled(3.0):
            y = x * config.scale
        return y + config.scale

    for call in range(CALLS):
        with scaled(changing([1.0, 2.0], call)):
            yield step(batch(call))
    yield config.scale
