"""Configuration in the shapes that scripts have, which the caller changes between calls."""

from __future__ import annotations

import argparse
import collections
import dataclasses
import enum
import functools
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from captured_programs import Capture, program
from torch import Tensor

gain_low, gain_high = 0.5, 2.0


def batch(call: int, size: int = 3) -> Tensor:
    """Other numbers for each call, on the device."""
    return torch.cos(torch.arange(size, dtype=torch.float32) + 2 * call).to("xla")


@dataclasses.dataclass
class LossConfig:
    """The innermost of three levels."""

    weight: float = 1.0
    kind: str = "l2"


@dataclasses.dataclass
class ModelConfig:
    """The level between."""

    loss: LossConfig = dataclasses.field(default_factory=LossConfig)
    scale: float = 2.0


@dataclasses.dataclass
class Config:
    """The outermost level."""

    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    name: str = "run"


class Mode(enum.Enum):
    """How to reduce."""

    MEAN = "mean"
    SUM = "sum"


@program
def three_levels_of_configuration(capture: Capture) -> Iterator[Any]:
    """The innermost level changes between calls 2 and 3, the one between is another object at call 7, all is at call 20."""

    class Trainer:
        def __init__(self, config: Config) -> None:
            self.config = config

        def loss(self, x: Tensor) -> Tensor:
            inner = self.config.model.loss
            each = x.square() if inner.kind == "l2" else x.abs()
            return each * inner.weight * self.config.model.scale

    trainer = Trainer(Config())
    step = capture(trainer.loss)
    for call in range(24):
        if call == 2:
            trainer.config.model.loss.weight = 3.0
        if call == 7:
            trainer.config.model = ModelConfig(LossConfig(kind="l1"), 0.5)
        if call == 20:
            trainer.config = Config()
        yield step(batch(call))


@program
def arguments_of_the_command_line(capture: Capture) -> Iterator[Any]:
    """Options of argparse are set anew at each third call; one of them says whether there is a bias at all."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--scale", type=float, default=1.0)
    parser.add_argument("--bias", type=float)
    args = parser.parse_args(["--scale", "1.5"])

    @capture
    def step(x: Tensor) -> Any:
        y = x * args.scale
        return y if args.bias is None else y + args.bias

    for call in range(20):
        if call % 3 == 2:
            args.scale += 0.5
        if call in (8, 14):
            args.bias = None if args.bias else 10.0
        yield step(batch(call))


@program
def attributes_by_computed_names(capture: Capture) -> Iterator[Any]:
    """The name of the attribute of self, and that of a global variable, are in attributes themselves."""
    global gain_high

    class Stage:
        def __init__(self) -> None:
            self.phase, self.level = "early", "low"
            self.rate_early, self.rate_late = 1.0, 0.25

        def run(self, x: Tensor) -> Any:
            return x * getattr(self, "rate_" + self.phase) + globals()[f"gain_{self.level}"]

    stage = Stage()
    step = capture(stage.run)
    try:
        for call in range(22):
            if call == 2:
                stage.phase = "late"
            if call == 7:
                stage.rate_late = 8.0
            if call == 13:
                stage.level = "high"
            if call == 17:
                gain_high = -6.0
            yield step(batch(call))
    finally:
        gain_high = 2.0


@program
def a_weak_reference(capture: Capture) -> Iterator[Any]:
    """A child knows its parent weakly; the parent's number changes, and in the end the parent is gone."""

    class Parent:
        def __init__(self, strength: float) -> None:
            self.strength = strength

    class Child:
        def __init__(self, parent: Parent) -> None:
            self.parent = weakref.ref(parent)

        def pull(self, x: Tensor) -> Tensor:
            parent = self.parent()
            return x + 100 if parent is None else x * parent.strength

    parent: Parent | None = Parent(2.0)
    assert parent is not None
    child = Child(parent)
    step = capture(child.pull)
    for call in range(20):
        if parent is not None and call in (2, 9):
            parent.strength = call + 0.5
        if call == 15:
            parent = None
        yield step(batch(call))


@program
def properties_that_compute(capture: Capture) -> Iterator[Any]:
    """A property of a property, of numbers that change; its setter is used by the caller, too."""

    class Span:
        def __init__(self) -> None:
            self.low, self.high = 0.0, 2.0

        @property
        def width(self) -> float:
            return self.high - self.low

        @width.setter
        def width(self, value: float) -> None:
            self.high = self.low + value

        @property
        def middle(self) -> float:
            return self.low + self.width / 2

    span = Span()
    step = capture(lambda x: (x - span.middle) / span.width)
    for call in range(20):
        if call in (3, 7, 19):
            span.low -= 1.5
        if call == 11:
            span.width = 16.0
        yield step(batch(call))


@program
def a_cached_property(capture: Capture) -> Iterator[Any]:
    """A property is computed once: a change of its source is seen only after the caller deletes what was kept."""

    class Table:
        def __init__(self) -> None:
            self.source, self.computed = 3.0, 0

        @functools.cached_property
        def factor(self) -> float:
            self.computed += 1
            return self.source * 2

    table = Table()
    step = capture(lambda x: x * table.factor)
    for call in range(20):
        if call in (5, 12):
            table.source += 1
        if call in (9, 16):
            del table.factor
        yield step(batch(call))
    yield table.computed


@program
def a_cache_of_a_function(capture: Capture) -> Iterator[Any]:
    """lru_cache keeps what was computed of an epoch, which the caller counts; the global that it reads is kept, too, until cleared."""
    epoch = {"n": 0, "base": 2.0}

    @functools.lru_cache(maxsize=64)
    def factor(n: int) -> float:
        return n + epoch["base"]

    step = capture(lambda x: x * factor(int(epoch["n"])))
    for call in range(24):
        epoch["n"] = call // 4 % 3
        if call == 6:
            epoch["base"] = 50.0
        if call == 18:
            factor.cache_clear()
        yield step(batch(call))


@program
def a_partial_function_that_is_replaced(capture: Capture) -> Iterator[Any]:
    """A table of partial functions: the entry in use is replaced, and its keyword is changed in place."""

    def shaped(x: Tensor, power: float, *, shift: float) -> Tensor:
        return x.abs() ** power + shift

    table: dict[str, functools.partial[Tensor]] = {"a": functools.partial(shaped, power=2.0, shift=0.5)}
    step = capture(lambda x: table["a"](x))
    for call in range(20):
        if call == 4:
            table["a"] = functools.partial(shaped, power=1.0, shift=-0.5)
        if call == 9:
            table["a"].keywords["shift"] = 7.0
        if call == 15:
            table["a"] = functools.partial(table["a"], shift=0.0)
        yield step(batch(call))


class AttributeDict(dict[str, Any]):
    """A dict whose items are attributes."""

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value


class Wrapped:
    """Passes on what it does not have to what it wraps."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


@program
def proxies_and_dicts_with_attributes(capture: Capture) -> Iterator[Any]:
    """A configuration that is a dict, two proxies deep; items change, appear and go, and what is wrapped is replaced."""
    config = Wrapped(Wrapped(AttributeDict(scale=2.0, nested=AttributeDict(bias=1.0))))
    step = capture(lambda x: x * config.scale + config.nested.bias + getattr(config, "extra", 0.0))
    for call in range(24):
        if call in (2, 11):
            config.inner.inner.scale += 1.5
        if call == 7:
            config.inner.inner.extra = 20.0
        if call == 14:
            del config.inner.inner["extra"]
        if call == 20:
            config.inner = AttributeDict(scale=-1.0, nested=AttributeDict(bias=4.0))
        yield step(batch(call))


@program
def options_with_defaults(capture: Capture) -> Iterator[Any]:
    """Options come from dict.get, a chain of dicts and keyword arguments; they appear, change and are taken away."""
    options: dict[str, Any] = {}
    chain: collections.ChainMap[str, float] = collections.ChainMap({}, {"shift": 1.0})
    frozen = types.MappingProxyType(options)

    def shaped(x: Tensor, *, scale: float = 2.0, **rest: float) -> Tensor:
        return x * scale + sum(rest.values())

    @capture
    def step(x: Tensor) -> Tensor:
        y = shaped(x, **options) + chain["shift"]
        return y.clamp(max=options.get("limit", 1.5)) if "limit" in frozen else y

    for call in range(22):
        if call == 3:
            options["scale"] = 0.5
        if call == 7:
            chain["shift"] = -2.0
        if call == 10:
            options["limit"] = 0.25
        if call == 15:
            options.clear()
        if call == 18:
            chain.maps.pop(0)
        yield step(batch(call))


@program
def modes_of_texts_and_enums(capture: Capture) -> Iterator[Any]:
    """match decides by a text and by the member of an enum; both are other ones now and then."""
    setting = types.SimpleNamespace(activation="relu", reduce=Mode.MEAN)

    @capture
    def step(x: Tensor) -> Any:
        match setting.activation:
            case "relu":
                y = x.relu()
            case "tanh" | "sigmoid" as name:
                y = getattr(torch, name)(x)
            case other:
                raise ValueError(f"no activation {other}")
        match setting.reduce:
            case Mode.MEAN:
                return y.mean()
            case Mode.SUM:
                return y.sum()

    for call in range(24):
        setting.activation = ["relu", "tanh", "sigmoid", "relu"][call // 6]
        setting.reduce = Mode.SUM if call in (2, 8, 9, 20) else Mode.MEAN
        yield step(batch(call))
    setting.activation = "none"
    try:
        yield step(batch(0))
    except ValueError as error:
        yield str(error)


@program
def a_registry_of_functions(capture: Capture) -> Iterator[Any]:
    """The function is found by a name in a registry; its entry, its default argument and its code are replaced."""
    registry: dict[str, Callable[..., Tensor]] = {}

    def register(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        return registry.setdefault(function.__name__, function)

    @register
    def soft(x: Tensor, slope: float = 1.0) -> Tensor:
        return x.sigmoid() * slope

    @register
    def hard(x: Tensor, slope: float = 1.0) -> Tensor:
        return x.clamp(-slope, slope)

    chosen = ["soft"]
    step = capture(lambda x: registry[chosen[0]](x))
    for call in range(24):
        if call == 5:
            soft.__defaults__ = (3.0,)
        if call == 10:
            chosen[0] = "hard"
        if call == 15:
            registry["hard"] = lambda x: x * 9
        if call == 20:
            registry["hard"] = hard
            hard.__code__ = soft.__code__
        yield step(batch(call))
