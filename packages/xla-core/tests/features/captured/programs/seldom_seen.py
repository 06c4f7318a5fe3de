"""What is easy to overlook: names that are absent at first, other threads, mocks, objects behind caches, targets outside."""

from __future__ import annotations

import argparse
import functools
import itertools
import types
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from captured_programs import Capture, program
from torch import Tensor, nn

CALLS = 20


def batch(call: int, size: int = 3) -> Tensor:
    """Other numbers for each call, on the device."""
    return torch.cos(torch.arange(size, dtype=torch.float32) * 3 + call).to("xla")


@program
def an_option_that_appears_later(capture: Capture) -> Iterator[Any]:
    """Options of the command line are asked for with a default, and are there from call 8 on."""
    options = argparse.Namespace()
    step = capture(lambda x: x * getattr(options, "scale", 1.0))
    for call in range(CALLS):
        if call == 8:
            options.scale = 4.0
        if call == 15:
            del options.scale
        yield step(batch(call))


@program
def an_attribute_of_a_function_that_appears_later(capture: Capture) -> Iterator[Any]:
    """A helper looks for an attribute of its own."""

    def helper(x: Tensor) -> Tensor:
        return x * getattr(helper, "scale", 1.0)

    step = capture(lambda x: helper(x))
    for call in range(CALLS):
        if call == 8:
            helper.scale = 4.0
        yield step(batch(call))


@program
def an_attribute_of_a_class_that_appears_later(capture: Capture) -> Iterator[Any]:
    """A class gets an attribute that hides that of its base, and one that nobody had."""

    class Base:
        rate = 2.0

    class Settings(Base):
        pass

    step = capture(lambda x: x * Settings.rate + (Settings.bias if hasattr(Settings, "bias") else 0.0))
    for call in range(CALLS):
        if call == 7:
            Settings.rate = 3.0
        if call == 14:
            Settings.bias = 5.0
        yield step(batch(call))


@program(unnoticed=True)
def an_attribute_of_a_module_that_appears_later(capture: Capture) -> Iterator[Any]:
    """A module of the user's answers for names that it has not by its own `__getattr__`, until it has one."""
    module = types.ModuleType("module_of_a_program")
    values = {"rate": 2.0}
    module.__getattr__ = lambda name: values[name]  # type: ignore[method-assign]
    step = capture(lambda x: x * module.rate)
    for call in range(CALLS):
        if call == 6:
            values["rate"] = 3.0
        if call == 13:
            module.rate = -1.0
        yield step(batch(call))


@program
def a_global_variable_that_appears_later(capture: Capture) -> Iterator[Any]:
    """The step looks for a variable, and does without where there is none."""
    variables: dict[str, Any] = {"__name__": "program_of_a_variable"}
    exec("def step(x):\n    try:\n        return x * scale\n    except NameError:\n        return x + 1\n", variables)  # noqa: S102
    step = capture(variables["step"])
    for call in range(CALLS):
        if call == 8:
            variables["scale"] = 4.0
        if call == 15:
            del variables["scale"]
        yield step(batch(call))


@program(unnoticed=True)
def a_factor_from_another_thread(capture: Capture) -> Iterator[Any]:
    """The step lets a thread of a pool look up its factor."""
    config = types.SimpleNamespace(scale=1.0)

    def look() -> float:
        return config.scale

    with ThreadPoolExecutor(1) as pool:
        step = capture(lambda x: x * pool.submit(look).result())
        for call in range(CALLS):
            config.scale = 1.0 if call < 9 else 3.0
            yield step(batch(call))


@program
def flags_in_bytes(capture: Capture) -> Iterator[Any]:
    """A bytearray holds flags, which the caller sets and the step reads."""
    flags = bytearray(2)
    step = capture(lambda x: x * 2 if flags[0] else x - 1)
    for call in range(CALLS):
        flags[0] = 8 <= call < 15
        yield step(batch(call))


@program
def a_slotted_object_behind_a_cache(capture: Capture) -> Iterator[Any]:
    """A dataclass with slots that a cached function returns; the caller changes it."""

    @dataclass(slots=True)
    class Config:
        rate: float = 2.0

    @functools.cache
    def config() -> Config:
        return Config()

    step = capture(lambda x: x * config().rate)
    for call in range(CALLS):
        if call in (7, 14):
            config().rate += 1.5
        yield step(batch(call))


@program
def an_object_behind_weak_values(capture: Capture) -> Iterator[Any]:
    """A WeakValueDictionary finds the object with the rate; the caller puts another one there."""

    class Config:
        def __init__(self, rate: float) -> None:
            self.rate = rate

    kept = [Config(2.0), Config(5.0)]
    configs: weakref.WeakValueDictionary[str, Config] = weakref.WeakValueDictionary(present=kept[0])
    step = capture(lambda x: x * configs["present"].rate)
    for call in range(CALLS):
        if call == 6:
            kept[0].rate = 3.0
        if call == 13:
            configs["present"] = kept[1]
        yield step(batch(call))


@program(unnoticed=True)
def calls_of_a_mock(capture: Capture) -> Iterator[Any]:
    """A test counts the calls of a callback by a mock, which also gives a number."""
    callback = mock.MagicMock(return_value=2.0)

    @capture
    def step(x: Tensor) -> Tensor:
        return x * callback("step")

    for call in range(CALLS):
        if call == 10:
            callback.return_value = 5.0
        yield step(batch(call))
    yield callback.call_count


@program
def a_step_that_is_captured_in_the_constructor(capture: Capture) -> Iterator[Any]:
    """A module captures its own method when it is made, and keeps it under the method's name."""

    class Module(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.layer, self.count = nn.Linear(3, 1), 0
            self.to("xla")
            self.optimizer = torch.optim.Adam(self.parameters(), lr=0.05)
            self.training_step = capture(self.training_step)

        def training_step(self, x: Tensor) -> Tensor:
            self.count += 1
            loss = self.layer(x).square().mean() * (1 + 1 / self.count)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            return loss.detach()

    module = Module()
    for call in range(CALLS):
        yield module.training_step(batch(call))
    yield module.layer.weight, module.count


@program
def a_target_that_the_caller_copies(capture: Capture) -> Iterator[Any]:
    """Q-learning, where the caller copies the network into the target after each fourth call."""
    torch.manual_seed(3)
    online, target = nn.Linear(3, 2).to("xla"), nn.Linear(3, 2).to("xla")
    optimizer = torch.optim.Adam(online.parameters(), lr=0.05)

    @capture
    def step(x: Tensor) -> Tensor:
        with torch.no_grad():
            goal = 0.9 * target(x).max() + 1
        loss = (online(x)[0] - goal).square()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for call in range(30):
        yield step(batch(call))
        if call % 4 == 3:
            target.load_state_dict(online.state_dict())
    yield target.weight


@program
def a_copy_that_the_step_makes_now_and_then(capture: Capture) -> Iterator[Any]:
    """Each fifth call one state becomes equal to another one, and they go apart again."""

    class Trainer:
        def __init__(self) -> None:
            self.fast, self.slow, self.count = batch(0), batch(0), 0

        def step(self, x: Tensor) -> Tensor:
            self.fast.add_(x * self.slow)
            self.count += 1
            if self.count % 5 == 0:
                self.slow.copy_(self.fast)
            return x * 2

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(40):
        yield step(batch(call))
        yield trainer.fast, trainer.slow


@program
def errors_after_a_count(capture: Capture) -> Iterator[Any]:
    """The step raises its count and then refuses each seventh call; the caller goes on, and looks at the count and its class."""

    class Trainer:
        count = 0

        def step(self, x: Tensor) -> Tensor:
            self.count += 1
            if self.count % 7 == 0:
                raise ValueError(f"call {self.count}")
            return x * self.count

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(30):
        try:
            yield step(batch(call))
        except ValueError as error:
            yield str(error)
        yield trainer.count, type(trainer.count).__name__


@program
def names_of_a_product(capture: Capture) -> Iterator[Any]:
    """Modes come from itertools.product over lists that the caller extends."""
    scales, shifts = [1.0, 2.0], [0.5]
    step = capture(lambda x: sum(x * scale + shift for scale, shift in itertools.product(scales, shifts)))
    for call in range(CALLS):
        if call == 7:
            shifts.append(-1.0)
        if call == 14:
            scales[1] = 7.0
        yield step(batch(call))


@program
def the_number_of_references(capture: Capture) -> Iterator[Any]:
    """The step computes more while an object of the caller's lives."""

    class Session:
        pass

    session: Any = Session()
    reference = weakref.ref(session)
    step = capture(lambda x: x * 2 if reference() is not None else x - 1)
    for call in range(CALLS):
        if call == 10:
            session = None
        yield step(batch(call))


@program
def a_state_dict_that_is_kept(capture: Capture) -> Iterator[Any]:
    """The caller keeps state dicts without copying them, which show what the step trains, and loads a copied one."""
    torch.manual_seed(3)
    layer = nn.Linear(3, 2).to("xla")
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)

    @capture
    def step(x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = layer(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    kept, copied = layer.state_dict(), {name: value.clone() for name, value in layer.state_dict().items()}
    for call in range(CALLS):
        yield step(batch(call))
        yield kept
        if call == 12:
            layer.load_state_dict(copied)
    yield copied
