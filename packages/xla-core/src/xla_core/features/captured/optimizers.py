"""Follows the hyperparameters and step counts of optimizers as numbers during a recorded call."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from xla_core.base.private_torch import DISABLED_TORCH_FUNCTION, make_subclass
from xla_core.engine.tensor import optim
from xla_core.engine.tensor.plain import tensor_behind
from xla_core.engine.tracing.numbers import Applied, Comparison, Number, Symbol, Tracer


class _CountedTensor(torch.Tensor):
    """A step count on the CPU that shares the optimizer's memory. Its `item()` returns a number that is followed."""

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


# Python calls these to choose a branch, which must be noticed.
for _name in ("int", "bool"):
    setattr(_CountedTensor, f"__{_name}__", _of_count({"int": int, "bool": bool}[_name], getattr(torch.Tensor, f"__{_name}__")))
for _name in ("mod", "floordiv", "eq", "ne", "lt", "le", "gt", "ge"):
    setattr(_CountedTensor, f"__{_name}__", _of_count(getattr(operator, _name), getattr(torch.Tensor, f"__{_name}__")))
optim.trust(Number, _CountedTensor)


@dataclass(slots=True, eq=False)
class Counter:
    """A CPU tensor with a step count in an optimizer's state. start, end: its value before and after the call."""

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
    """An optimizer that is followed. numbers: its hyperparameters before the call; starts: an index for each different start count."""

    optimizer: Optimizer
    numbers: dict[Symbol, float] = field(default_factory=dict)
    counters: dict[int, Counter] = field(default_factory=dict)
    starts: dict[tuple[str, float], int] = field(default_factory=dict)


def hyperparameters(optimizer: Optimizer) -> dict[Symbol, float]:
    """The floats in an optimizer's groups, which may change between calls."""
    return {
        symbol: item.true if isinstance(item, Number) else item
        for index, group in enumerate(optimizer.param_groups)
        for name in group
        for symbol, item in _numbers(optimizer, index, name, group[name])
    }


def _numbers(optimizer: Optimizer, index: int, name: str, value: Any) -> Iterator[tuple[Symbol, float]]:
    items: Any = value if isinstance(value, (tuple, list)) and name != "params" else (value,)
    for position, item in enumerate(items):
        if _changeable(name, item):
            yield (
                Symbol(f"{name} of group {index} of {type(optimizer).__name__}", (id(optimizer), index, name, position)),
                item.item() if isinstance(item, torch.Tensor) else item,
            )


def _changeable(name: str, item: Any) -> bool:
    """Whether a hyperparameter is a number that programs take as an input: a float, a rate of any kind."""
    if isinstance(item, torch.Tensor):
        return not item.dim() and item.device.type == "cpu" and item.is_floating_point() and tensor_behind(item) is None
    kinds = (int, float, np.floating, np.integer) if name == "lr" else (float, np.floating)
    true = item.true if isinstance(item, Number) else item
    return isinstance(true, kinds) and not isinstance(true, bool) and math.isfinite(true)


def is_followed(name: str, value: Any) -> bool:
    """Whether an entry of an optimizer's group is a number that is followed, or has one."""
    items = value if isinstance(value, (tuple, list)) and name != "params" else (value,)
    return any(_changeable(name, item) for item in items)


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
    """Make a function that reads the present hyperparameters as fast as Python can look them up."""
    by_id = {id(optimizer): optimizer for optimizer in optimizers}
    keys = [symbol.key for symbol in symbols]
    groups = [(by_id[owner].param_groups[index], name, position) for owner, index, name, position in keys]

    def read() -> list[Any]:
        values = []
        for group, name, position in groups:
            value = group.get(name)
            value = value[position] if type(value) is tuple or type(value) is list else value
            values.append(value.item() if isinstance(value, torch.Tensor) else value)
        return values

    return read


@dataclass(frozen=True, slots=True)
class Following:
    """How to follow optimizers. names: hyperparameters that may change, None for all; others are constants of the program.

    capturable: let optimizers count on the device if they can, because their Python cannot be followed.
    """

    names: frozenset[str] | None = None
    capturable: bool = False


# Tried one after the other, if an optimizer's step cannot be captured.
WAYS = tuple(Following(names, capturable) for capturable in (False, True) for names in (None, frozenset({"lr"})))


class Watch:
    """Follows the optimizers that one thread steps in a recorded call. following: None to look only; now: counts the pending entries.

    ignores: whether an optimizer is none that a captured call could follow, such as one that the call has made.
    """

    def __init__(
        self,
        tracer: Tracer,
        following: Following | None,
        mine: Callable[[], bool],
        now: Callable[[], int],
        optimizers: Iterable[Optimizer],
    ) -> None:
        self.tracer = tracer
        self.slots: list[tuple[int, int]] = []  # what optimizers have recorded
        self._following = following
        self._now = now
        self._begin = 0
        self.stepped: dict[int, Stepped] = {}
        self.depth = 0
        self.ignores: Callable[[Optimizer], bool] = lambda optimizer: False
        self._mine = mine
        self.kept: set[tuple[int, str]] = set()  # entries of groups that the call has not changed: keys of their places
        self._undo: list[Callable[[], None]] = []
        self._undo_counts: list[Callable[[], None]] = []
        self._ends = (register_optimizer_step_pre_hook(self._before), register_optimizer_step_post_hook(self._after))

        for optimizer in optimizers:
            self._begin_with(optimizer)

    def restore(self) -> None:
        """Put the hyperparameters back that the call has not changed."""
        while self._undo:
            self._undo.pop()()

    def close(self) -> None:
        """Stop following, and restore the optimizers, also after a step that raised."""
        for end in self._ends:
            end.remove()
        self.restore()
        self._restore_counts()
        for stepped in self.stepped.values():
            for counter in stepped.counters.values():
                counter.end = float(counter.tensor)

    def _before(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if not self._mine() or self.ignores(optimizer):
            return
        self.depth += 1
        self._begin = self._now()
        if self._following is not None and self._following.capturable:
            count_on_device(optimizer)
        stepped = self._begin_with(optimizer)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                if parameter in optimizer.state:
                    self._count(stepped, optimizer.state[parameter])

    def _begin_with(self, optimizer: Optimizer) -> Stepped:
        """Follow the hyperparameters of an optimizer, if they are not followed yet."""
        stepped = self.stepped.get(id(optimizer))
        if stepped is None:
            stepped = self.stepped[id(optimizer)] = Stepped(optimizer, hyperparameters(optimizer))
            for index, group in enumerate(optimizer.param_groups):
                for name, value in list(group.items()):
                    # A program takes a rate for a float, also where it is an integer or in a tensor.
                    if name != "params" and (self._following is not None or not isinstance(value, (float, tuple, list))):
                        self._follow(self._following, optimizer, index, group, name, value)
        return stepped

    def _follow(self, following: Following | None, optimizer: Optimizer, index: int, group: dict[str, Any], name: str, value: Any) -> None:
        listed = isinstance(value, (tuple, list))
        items = list(value) if listed else [value]
        if not any(_changeable(name, item) for item in items):
            return
        if following is not None and following.names is not None and name not in following.names:
            for symbol, item in _numbers(optimizer, index, name, value):
                self.tracer.comparisons.append(Comparison(Applied(operator.eq, (symbol, item)), True))
            return
        symbols = iter(_numbers(optimizer, index, name, value))
        followed = [self.tracer.symbol(*next(symbols)) if _changeable(name, item) else item for item in items]
        put: Any = type(value)(followed) if listed else followed[0]
        group[name] = put

        def undo() -> None:
            if group.get(name) is put:
                group[name] = value
                self.kept.add((id(group), name))

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
            if self._following is None:
                continue
            counted: Any = make_subclass(_CountedTensor, value, False)
            counted.counter, counted.tracer = counter, self.tracer
            state[name] = counted
            self._undo_counts.append(_put_back(state, name, counted, value))

    def _after(self, optimizer: Optimizer, args: Any, kwargs: Any) -> None:
        if self._mine() and not self.ignores(optimizer):
            self.depth -= 1
            self.slots.append((self._begin, self._now()))
            self._restore_counts()

    def _restore_counts(self) -> None:
        while self._undo_counts:
            self._undo_counts.pop()()


def _put_back(state: dict[str, Any], name: str, put: Any, value: Any) -> Callable[[], None]:
    def undo() -> None:
        if state.get(name) is put:
            state[name] = value

    return undo
