"""Configuration of modules and classes: attributes that shadow, methods that are replaced, options of layers, by-hand updates."""

from __future__ import annotations

import functools
import json
import logging
import math
import operator
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from captured_programs import Capture, program
from torch import Tensor, nn

log = logging.getLogger("captured_programs.configurations")


def batch(call: int, size: int = 4) -> Tensor:
    """Other numbers for each call, on the device."""
    return torch.cos(torch.arange(2 * size, dtype=torch.float32) + 2 * call).reshape(2, size).to("xla")


def linear() -> nn.Linear:
    """The same small layer each time."""
    torch.manual_seed(0)
    return nn.Linear(4, 3).to("xla")


@program
def an_attribute_that_shadows_its_class(capture: Capture) -> Iterator[Any]:
    """A number of the base class, of the class and of the object are found in turn."""

    class Base:
        scale = 1.0

    class Special(Base):
        def run(self, x: Tensor) -> Tensor:
            return x * self.scale

    special = Special()
    step = capture(special.run)
    for call in range(24):
        if call == 3:
            Base.scale = 2.0
        if call == 7:
            Special.scale = 3.0
        if call == 12:
            special.scale = 4.0
        if call == 17:
            del special.scale
        if call == 20:
            del Special.scale
        yield step(batch(call))


@program
def a_method_that_is_replaced(capture: Capture) -> Iterator[Any]:
    """The forward of a class, then that of one object are replaced by others; the object becomes one of another class."""

    class Layer(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x * 2

    class Other(Layer):
        def forward(self, x: Tensor) -> Tensor:
            return x.square()

    layer, first = Layer(), Layer.forward
    step = capture(lambda x: layer(x))
    for call in range(24):
        if call == 4:
            Layer.forward = lambda self, x: x + 5  # type: ignore[method-assign]
        if call == 9:
            layer.forward = functools.partial(torch.mul, other=-1.0)  # type: ignore[method-assign]
        if call == 14:
            del layer.forward
            Layer.forward = first  # type: ignore[method-assign]
        if call == 19:
            layer.__class__ = Other
        yield step(batch(call))


class Weights(NamedTuple):
    """Weights of a loss."""

    first: float = 1.0
    second: float = 0.0


@dataclass(frozen=True)
class Frozen:
    """A configuration that is replaced as a whole."""

    weights: Weights = Weights()
    names: tuple[str, ...] = ("first", "second")


@program
def configurations_that_are_replaced(capture: Capture) -> Iterator[Any]:
    """A frozen dataclass with a named tuple is replaced; getters of the operator module read it, and asdict does."""

    class Owner:
        config = Frozen()

    second = operator.attrgetter("config.weights.second")
    step = capture(lambda x: x * Owner.config.weights.first + second(Owner) + len(Owner.config.names))
    for call in range(22):
        if call == 2:
            Owner.config = replace(Owner.config, weights=Weights(2.0, 0.5))
        if call == 7:
            Owner.config = replace(Owner.config, weights=Owner.config.weights._replace(second=-3.0))
        if call == 13:
            Owner.config = replace(Owner.config, names=())
        if call == 20:
            Owner.config = Frozen()
        yield step(batch(call))


@program
def a_configuration_as_text(capture: Capture) -> Iterator[Any]:
    """Options are parsed from a text at each call, and the level of a logger decides whether a norm is computed."""
    source = {"text": '{"scale": 2.0, "clip": null}'}
    before = log.level

    @capture
    def step(x: Tensor) -> dict[str, Tensor]:
        options = json.loads(source["text"])
        y = x * options["scale"]
        if options["clip"]:
            y = y.clamp(-options["clip"], options["clip"])
        return {"y": y, "norm": y.norm()} if log.isEnabledFor(logging.DEBUG) else {"y": y}

    try:
        log.setLevel(logging.WARNING)
        for call in range(22):
            if call in (3, 12):
                source["text"] = json.dumps({"scale": call, "clip": 0.5 if call == 12 else None})
            if call in (8, 17):
                log.setLevel(logging.DEBUG if call == 8 else logging.INFO)
            yield step(batch(call))
    finally:
        log.setLevel(before)


@program
def options_of_layers(capture: Capture) -> Iterator[Any]:
    """The caller changes the slope of an activation, the epsilon of a norm and the probability of dropout, which is zero for a while."""
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.LeakyReLU(0.1), nn.Dropout(0.25), nn.LayerNorm(4)).to("xla")
    step = capture(lambda x: model(x).detach())
    for call in range(24):
        if call == 2:
            model[0].negative_slope = 0.5
        if call == 7:
            model[2].eps = 0.1
        if call in (10, 20):
            model[1].p = (call - 10) / 20
        yield step(batch(call))


@program
def depths_that_are_dropped_more_and_more(capture: Capture) -> Iterator[Any]:
    """The caller raises the probability of dropping each layer at each call, as of the number of calls."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.drop = nn.Linear(4, 4), 0.0

        def forward(self, x: Tensor) -> Any:
            if not self.drop or not self.training:
                return x + self.linear(x)
            kept = torch.rand(x.shape[0], 1, device=x.device) >= self.drop
            return x + self.linear(x) * kept / (1 - self.drop)

    torch.manual_seed(0)
    model: Any = nn.Sequential(Block(), Block()).to("xla")
    step = capture(lambda x: model(x).detach())
    for call in range(20):
        for depth, block in enumerate(model):
            block.drop = 0.02 * call * depth
        if call == 16:
            model.eval()
        yield step(batch(call))


@program
def an_optimizer_by_hand(capture: Capture) -> Iterator[Any]:
    """Adam as a tutorial writes it: moments on the device, the number of the step and the corrections in Python."""

    class Adam:
        def __init__(self, parameters: list[nn.Parameter]) -> None:
            self.parameters, self.t, self.rate, self.betas = parameters, 0, 0.05, (0.9, 0.99)
            self.first = [torch.zeros_like(each) for each in parameters]
            self.second = [torch.zeros_like(each) for each in parameters]

        @torch.no_grad()
        def step(self) -> None:
            self.t += 1
            for each, first, second in zip(self.parameters, self.first, self.second, strict=True):
                assert each.grad is not None
                first.lerp_(each.grad, 1 - self.betas[0])
                second.mul_(self.betas[1]).addcmul_(each.grad, each.grad, value=1 - self.betas[1])
                mean, spread = first / (1 - self.betas[0] ** self.t), second / (1 - self.betas[1] ** self.t)
                each.sub_(self.rate * mean / (spread.sqrt() + 1e-6))
                each.grad = None

    model = linear()
    adam = Adam(list(model.parameters()))

    @capture
    def step(x: Tensor) -> Tensor:
        loss: Tensor = model(x).square().mean()
        loss.backward()
        adam.step()
        return loss.detach()

    for call in range(24):
        yield step(batch(call))
        yield model.weight
        if call == 7:
            adam.rate = 0.01
        if call == 20:
            adam.betas = (0.5, 0.9)
    yield adam.t, adam.second


@program
def a_curriculum_of_lengths(capture: Capture) -> Iterator[Any]:
    """The length that is trained on grows with the count: one more each sixth call."""

    class Curriculum:
        def __init__(self) -> None:
            self.calls = 0

        def run(self, x: Tensor) -> Tensor:
            length = min(x.shape[1], 1 + self.calls // 6)
            self.calls += 1
            return x[:, :length].cumsum(1)

    curriculum = Curriculum()
    step = capture(curriculum.run)
    for call in range(24):
        yield step(batch(call))
    yield curriculum.calls


@program
def functions_of_math_of_the_count(capture: Capture) -> Iterator[Any]:
    """A triangle, a rounding, a logarithm and a remainder of the count are numbers of the program."""
    count = {"n": 0}

    @capture
    def step(x: Tensor) -> Tensor:
        n = count["n"]
        triangle = abs(n / 4 % 2 - 1)
        rounded = round(n / 3, 1) + math.ceil(n / 5) - math.floor(n / 7)
        count["n"] = n + 1
        return x * triangle + rounded + math.log2(n + 1) * math.fmod(n, 3) - divmod(n, 4)[1]

    for call in range(24):
        yield step(batch(call))
        if call == 18:
            count["n"] = 2


@program
def weights_of_losses_by_epoch(capture: Capture) -> Iterator[Any]:
    """The caller sets the epoch; a loss of several parts, whose weights are found by the names of the parts, starts some parts later."""

    class Criterion(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.epoch = 0
            self.weights = {"square": 1.0, "absolute": 0.5, "peak": 0.25}
            self.starts = {"absolute": 2, "peak": 4}

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            parts = {"square": x.square().mean(), "absolute": x.abs().mean(), "peak": x.max()}
            active = {name: part * self.weights[name] for name, part in parts.items() if self.epoch >= self.starts.get(name, 0)}
            return {**active, "total": torch.stack(list(active.values())).sum()}

    criterion = Criterion()
    step = capture(criterion)
    for call in range(24):
        criterion.epoch = call // 4
        if call == 10:
            criterion.weights["square"] = 2.0
        if call == 21:
            del criterion.starts["peak"]
            criterion.epoch = 0
        yield step(batch(call))


@program
def clipping_by_a_setting(capture: Capture) -> Iterator[Any]:
    """Gradients are clipped at a norm that is a setting of the trainer, or not at all while it is None."""

    class Trainer:
        def __init__(self) -> None:
            self.model = linear()
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
            self.limit: float | None = None

        def step(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
            self.optimizer.zero_grad()
            loss: Tensor = self.model(x).square().mean()
            loss.backward()
            norm = None if self.limit is None else nn.utils.clip_grad_norm_(self.model.parameters(), self.limit)
            self.optimizer.step()
            return loss.detach(), norm

    trainer = Trainer()
    step = capture(trainer.step)
    for call in range(22):
        if call in (7, 12, 20):
            trainer.limit = {7: 0.05, 12: None, 20: 0.2}[call]
        yield step(batch(call))
        yield trainer.model.weight
