"""Objects that look after their attributes in ways of their own, and state that functions reach by names, frames, files and the clock."""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from captured_programs import Capture, program
from torch import Tensor, nn

CALLS = 20


def batch(call: int, size: int = 3) -> Tensor:
    """Other numbers for each call, on the device."""
    return torch.cos(torch.arange(size, dtype=torch.float32) * 3 + call).to("xla")


@program
def a_trainer_behind_a_weak_proxy(capture: Capture) -> Iterator[Any]:
    """The module knows its trainer by a weak proxy, and reads the epoch there."""

    class Trainer:
        epoch = 0

    class Module(nn.Module):
        def __init__(self, trainer: Trainer) -> None:
            super().__init__()
            self.trainer = weakref.proxy(trainer)

        def forward(self, x: Tensor) -> Tensor:
            return x * (1 + self.trainer.epoch)

    trainer = Trainer()
    step = capture(Module(trainer))
    for call in range(CALLS):
        trainer.epoch = call // 6
        yield step(batch(call))


@program
def a_model_behind_a_weak_proxy(capture: Capture) -> Iterator[Any]:
    """The step has its model by a weak proxy only, whose flag and layer the caller changes."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(3)
            self.layer, self.negative = nn.Linear(3, 3), False

        def forward(self, x: Tensor) -> Tensor:
            return -self.layer(x) if self.negative else self.layer(x)

    model = Model().to("xla")
    proxy = weakref.proxy(model)
    step = capture(lambda x: proxy(x).detach())
    for call in range(CALLS):
        model.negative = 6 <= call < 12
        if call == 15:
            model.layer = nn.Identity()
        yield step(batch(call))


@program
def an_object_that_notes_what_is_set(capture: Capture) -> Iterator[Any]:
    """__setattr__ counts how often attributes are set, and keeps values in a dict of its own."""

    class Noted:
        def __init__(self) -> None:
            object.__setattr__(self, "values", {})
            object.__setattr__(self, "sets", 0)

        def __setattr__(self, name: str, value: Any) -> None:
            self.values[name] = value
            object.__setattr__(self, "sets", self.sets + 1)

        def __getattr__(self, name: str) -> Any:
            try:
                return self.values[name]
            except KeyError:
                raise AttributeError(name) from None

    noted = Noted()
    noted.scale = 1.0

    @capture
    def step(x: Tensor) -> Tensor:
        noted.scale = noted.scale + 0.5
        return x * noted.scale

    for call in range(CALLS):
        yield step(batch(call))
        if call == 9:
            noted.scale = 0.0
    yield noted.sets, noted.scale


@program
def attributes_by_the_dict_of_an_object(capture: Capture) -> Iterator[Any]:
    """The step counts with `self.__dict__`, `vars` and setattr of computed names."""

    class Trainer:
        def __init__(self) -> None:
            self.calls, self.h0, self.h1 = 0, 0.0, 0.0

        def step(self, x: Tensor) -> Tensor:
            self.__dict__["calls"] += 1
            name = f"h{self.calls % 2}"
            setattr(self, name, getattr(self, name) + 1.5)
            vars(self).update(total=self.h0 + self.h1)
            return x * self.total

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(24):
        yield step(batch(call))
    yield trainer.calls, trainer.h0, trainer.h1


@program
def private_names_of_two_classes(capture: Capture) -> Iterator[Any]:
    """A class and its base have private attributes of the same name, and class attributes that hide each other."""

    class Base:
        scale = 2.0

        def __init__(self) -> None:
            self.__count = 0

        def base(self) -> int:
            self.__count += 1
            return self.__count

    class Derived(Base):
        def __init__(self) -> None:
            super().__init__()
            self.__count = 10

        def step(self, x: Tensor) -> Tensor:
            self.__count -= 1
            return x * self.base() * self.scale + self.__count + super().scale

    derived = Derived()
    step = capture(derived.step)
    for call in range(CALLS):
        if call == 8:
            Derived.scale = 3.0
        if call == 13:
            Base.scale = -1.0
        yield step(batch(call))


@program
def a_registry_of_subclasses(capture: Capture) -> Iterator[Any]:
    """Classes register themselves when they are defined; all of them act in the step, one more from call 9 on."""

    class Stage:
        stages: list[type] = []

        def __init_subclass__(cls) -> None:
            Stage.stages.append(cls)

        @staticmethod
        def apply(x: Tensor) -> Tensor:
            return x

    class Double(Stage):
        @staticmethod
        def apply(x: Tensor) -> Tensor:
            return x * 2

    @capture
    def step(x: Tensor) -> Tensor:
        for stage in Stage.stages:
            x = stage.apply(x)
        return x + 1

    for call in range(CALLS):
        if call == 9:

            class Shift(Stage):
                @staticmethod
                def apply(x: Tensor) -> Tensor:
                    return x - 4

        if call == 14:
            Double.apply = staticmethod(lambda x: x * 5)
        yield step(batch(call))


@program(unnoticed=True)
def subclasses_that_python_knows(capture: Capture) -> Iterator[Any]:
    """The step asks a class for its subclasses."""

    class Part:
        weight = 1.0

    class First(Part):
        weight = 2.0

    kept: list[Any] = [First]
    step = capture(lambda x: x * sum(part.weight for part in Part.__subclasses__()))
    for call in range(CALLS):
        if call == 9:
            kept.append(type("Second", (Part,), {"weight": 4.0}))
        yield step(batch(call))


@program
def a_mapping_of_ones_own(capture: Capture) -> Iterator[Any]:
    """A Mapping that computes its values, given to a function by `**`."""

    class Config(Mapping[str, float]):
        def __init__(self) -> None:
            self.level = 1

        def __getitem__(self, key: str) -> float:
            return {"scale": 2.0 * self.level, "bias": 1.0 / self.level}[key]

        def __iter__(self) -> Iterator[str]:
            return iter(("scale", "bias"))

        def __len__(self) -> int:
            return 2

    def affine(x: Tensor, scale: float, bias: float) -> Tensor:
        return x * scale + bias

    config = Config()
    step = capture(lambda x: affine(x, **config))
    for call in range(CALLS):
        config.level = 1 + call // 7
        yield step(batch(call))


@program
def comparisons_that_fail(capture: Capture) -> Iterator[Any]:
    """Objects whose == and bool raise, as arrays' do, are items and attributes; the caller replaces them."""

    class Vague:
        __hash__ = None  # type: ignore[assignment]

        def __init__(self, value: float) -> None:
            self.value = value

        def __eq__(self, other: object) -> bool:
            raise ValueError("ambiguous")

        def __bool__(self) -> bool:
            raise ValueError("ambiguous")

    class Holder:
        def __init__(self) -> None:
            self.one, self.items, self.named = Vague(1.0), [Vague(2.0)], {"a": Vague(3.0)}

    holder = Holder()
    step = capture(lambda x: x * holder.one.value + holder.items[0].value - holder.named["a"].value)
    for call in range(CALLS):
        if call == 6:
            holder.one = Vague(-1.0)
        if call == 11:
            holder.items[0].value = 5.0
        if call == 16:
            holder.named["a"] = Vague(0.0)
        yield step(batch(call))
