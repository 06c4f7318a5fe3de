"""Optimizers inside a recorded call: their hyperparameters and step counts become numbers that are followed."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from xla_core.base.private_torch import DISABLED_TORCH_FUNCTION, make_subclass
from xla_core.engine.tensor import optim
from xla_core.engine.tracing.numbers import Applied, Comparison, Number, Symbol, Tracer


class _CountedTensor(torch.Tensor):
    """A step count on the CPU over the memory of the optimizer's own, whose `item()` is a number that is followed."""

    __torch_function__ = DISABLED_TORCH_FUNCTION
    counter: Counter
    tracer: Tracer

    def item(self) -> Any:
        """The count."""
        now = float(super().item())
        start = self.tracer.symbol(self.counter.symbol, self.counter.start)
        return start + (now - self.counter.start) if now != self.counter.start else start


def _of_count(function: Callable[..., Any], plain: Callable[..., Any]) -> Any:
    def method(self: _CountedTensor, *others: Any) -> Any:
        return function(self.item(), *others) if all(isinstance(other, (int, float)) for other in others) else plain(self, *others)

    return method


# Python asks a count such things to choose its way, which must be noticed.
for _name in ("int", "bool"):
    setattr(_CountedTensor, f"__{_name}__", _of_count({"int": int, "bool": bool}[_name], getattr(torch.Tensor, f"__{_name}__")))
for _name in ("mod", "floordiv", "eq", "ne", "lt", "le", "gt", "ge"):
    setattr(_CountedTensor, f"__{_name}__", _of_count(getattr(operator, _name), getattr(torch.Tensor, f"__{_name}__")))
optim.trust(Number, _CountedTensor)


@dataclass(slots=True, eq=False)
class Counter:
    """A CPU tensor of one number in an optimizer's state. start: before the call; end: behind it."""

    tensor: torch.Tensor
    symbol: Symbol
    start: float
    end: float = 0.0

    @property
    def advance(self) -> float:
        """What a call adds."""
        return self.end - self.start


@dataclass(slots=True, eq=False)
class Stepped:
    """An optimizer that was stepped. numbers: its hyperparameters before the call, by symbol; starts: the different counts, numbered.

    seen: its hyperparameters at each step.
    """

    optimizer: Optimizer
    numbers: dict[Symbol, float] = field(default_factory=dict)
    counters: dict[int, Counter] = field(default_factory=dict)
    starts: dict[tuple[str, float], int] = field(default_factory=dict)
    seen: list[dict[Symbol, float]] = field(default_factory=list)


def hyperparameters(optimizer: Optimizer) -> dict[Symbol, float]:
    """The floats in an optimizer's groups, which may be others at each call."""
    return {
        symbol: item
        for number, group in enumerate(optimizer.param_groups)
        for name in group
        for symbol, item in _numbers(optimizer, number, name, group[name])
    }


def _numbers(optimizer: Optimizer, number: int, name: str, value: Any) -> Iterator[tuple[Symbol, float]]:
    items: Any = value if isinstance(value, (tuple, list)) and name != "params" else (value,)
    for place, item in enumerate(items):
        if _changeable(item):
            yield Symbol(f"{name} of group {number} of {type(optimizer).__name__}", (id(optimizer), number, name, place)), float(item)


def _changeable(item: Any) -> bool:
    return isinstance(item, float) and math.isfinite(item)


def count_on_device(optimizer: Optimizer) -> None:
    """Let an optimizer keep its counts on the device (`capturable`), if it can."""
    for group in optimizer.param_groups:
        if group.get("capturable") is False:
            group["capturable"] = True
            for parameter in group["params"]:
                state = optimizer.state.get(parameter, {})
                for name, value in state.items():
                    if isinstance(value, torch.Tensor) and value.device.type == "cpu" and not value.dim():
                        state[name] = value.to(parameter.device)


def reader(optimizers: Iterable[Optimizer], symbols: Iterable[Symbol]) -> Callable[[], list[Any]]:
    """A function that gives the present values of hyperparameters, as fast as Python can look them up."""
    found = {id(optimizer): optimizer for optimizer in optimizers}
    keys = [symbol.key for symbol in symbols]
    groups = [(found[owner].param_groups[number], name, place) for owner, number, name, place in keys]

    def read() -> list[Any]:
        values = []
        for group, name, place in groups:
            value = group.get(name)
            values.append(value[place] if type(value) is tuple or type(value) is list else value)
        return values

    return read


@dataclass(frozen=True, slots=True)
class Following:
    """How optimizers are followed. names: of the hyperparameters that may change, None for all; others are part of the program.

    capturable: those that can count on the device are told to, for what Python computes there cannot be followed.
    """

    names: frozenset[str] | None = None
    capturable: bool = False


# What is tried, one after the other, where what an optimizer does cannot be captured.
WAYS = tuple(Following(names, capturable) for capturable in (False, True) for names in (None, frozenset({"lr"})))


class Watch:
    """Follows the optimizers that one thread steps during a recorded call. now: the number of entries that are pending."""

    def __init__(self, tracer: Tracer, following: Following, mine: Callable[[], bool], now: Callable[[], int]) -> None:
        self.tracer = tracer
        self.slots: list[tuple[int, int]] = []  # what optimizers have recorded
        self._following = following
        self._now = now
        self._begin = 0
        self.stepped: dict[int, Stepped] = {}
        self.depth = 0
        self._mine = mine
        self._undo: list[Callable[[], None]] = []
        self._ends = (register_optimizer_step_pre_hook(self._before), register_optimizer_step_post_hook(self._after))

    def close(self) -> None:
        """Stop; what was put into optimizers is gone, also if a step was cut off."""
        for end in self._ends:
            end.remove()
        self._restore()
        for stepped in self.stepped.values():
            for counter in stepped.counters.values():
                counter.end = float(counter.tensor)

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._mine():
            return
        self.depth += 1
        self._begin = self._now()
        if self._following.capturable:
            count_on_device(optimizer)
        known = self.stepped.get(id(optimizer))
        if known is None:
            known = self.stepped[id(optimizer)] = Stepped(optimizer, hyperparameters(optimizer))
        known.seen.append(hyperparameters(optimizer))
        for number, group in enumerate(optimizer.param_groups):
            for name, value in list(group.items()):
                if name != "params":
                    self._follow(optimizer, number, group, name, value)
            for parameter in group["params"]:
                if parameter in optimizer.state:
                    self._count(known, optimizer.state[parameter])

    def _follow(self, optimizer: Optimizer, number: int, group: dict[str, Any], name: str, value: Any) -> None:
        listed = isinstance(value, (tuple, list))
        items = list(value) if listed else [value]
        if not any(map(_changeable, items)):
            return
        if self._following.names is not None and name not in self._following.names:
            for symbol, item in _numbers(optimizer, number, name, value):
                self.tracer.comparisons.append(Comparison(Applied(operator.eq, (symbol, item)), True))
            return
        symbols = iter(_numbers(optimizer, number, name, value))
        followed = [self.tracer.symbol(*next(symbols)) if _changeable(item) else item for item in items]
        put: Any = type(value)(followed) if listed else followed[0]
        group[name] = put

        def undo() -> None:
            if group.get(name) is put:
                group[name] = value

        self._undo.append(undo)

    def _count(self, stepped: Stepped, state: dict[str, Any]) -> None:
        for name, value in list(state.items()):
            if type(value) is not torch.Tensor or value.dim() or value.device.type != "cpu" or not value.is_floating_point():
                continue
            counter = stepped.counters.get(id(value))
            if counter is None:
                start = float(value)
                # Counts that are equal stay equal: one number stands for all of them.
                alike = stepped.starts.setdefault((name, start), len(stepped.starts))
                symbol = Symbol(f"{name} of {type(stepped.optimizer).__name__}", (id(stepped.optimizer), name, alike))
                counter = stepped.counters[id(value)] = Counter(value, symbol, start)
            counted: Any = make_subclass(_CountedTensor, value, False)
            counted.counter, counted.tracer = counter, self.tracer
            state[name] = counted
            self._undo.append(_put_back(state, name, counted, value))

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._mine():
            self.depth -= 1
            self.slots.append((self._begin, self._now()))
            self._restore()

    def _restore(self) -> None:
        while self._undo:
            self._undo.pop()()


def _put_back(state: dict[str, Any], name: str, put: Any, value: Any) -> Callable[[], None]:
    def undo() -> None:
        if state.get(name) is put:
            state[name] = value

    return undo
