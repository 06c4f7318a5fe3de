"""Puts traced numbers where the Python of a recorded call reads those that it takes as inputs, and the true ones back behind it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager
from operator import is_
from typing import Any

from xla_core.engine.tracing.numbers import Applied, Comparison, Symbol, traced_math
from xla_core.features.captured.arguments import CONTAINERS, numbered_in
from xla_core.features.captured.guards import Guards
from xla_core.features.captured.numbers_for_torch import TakesNumbers
from xla_core.features.captured.objects import Read
from xla_core.features.captured.passed import Passed, is_number
from xla_core.features.captured.places import HostNumber, Item, ListItem, Place, same
from xla_core.features.captured.recorded import Recorded
from xla_core.features.captured.results import attributes_of
from xla_core.features.captured.tape import Tape


class _Put:
    """Puts traced numbers where numbers are: into containers and objects, and new tuples where tuples are. symbol: makes one of a "
    "number."""

    def __init__(self, symbol: Callable[[Any], Any], opened: Collection[type]) -> None:
        self._symbol = symbol
        self._opened = opened
        self._undo: list[tuple[Place, Any, Any]] = []

    def at(self, place: Place, value: Any) -> None:
        """Put them at a place that has `value`."""
        traced = self.traced(value)
        if traced is not value:
            place.put(traced)
            self._undo.append((place, value, traced))

    def traced(self, value: Any) -> Any:
        """The value with traced numbers, in the order of `results.flatten_values`: itself, but for numbers and tuples."""
        if is_number(value):
            return self._symbol(value)
        if isinstance(value, tuple):
            items = [self.traced(item) for item in value]
            return value if all(map(is_, items, value)) else (type(value)(*items) if hasattr(value, "_fields") else tuple(items))
        if type(value) in self._opened:
            for name, item in attributes_of(value).items():
                self.at(Item(vars(value), name), item)
        if isinstance(value, list) and (type(value) is list or type(value) in self._opened):
            for index, item in enumerate(value):
                self.at(ListItem(value, index), item)
        elif isinstance(value, dict) and (type(value) in CONTAINERS or type(value) in self._opened):
            for key, item in list(value.items()):
                self.at(Item(value, key), item)
        return value

    def back(self) -> None:
        """Put the true numbers back, where the traced ones still are."""
        while self._undo:
            place, value, traced = self._undo.pop()
            if place.get() is traced:
                place.put(value)


@contextmanager
def numbers_followed(
    tape: Tape, passed: Passed, args: tuple[Any, ...], kwargs: dict[str, Any], values: list[Any]
) -> Iterator[tuple[tuple[Any, ...], dict[str, Any], list[Symbol]]]:
    """Let the call find traced numbers at passed places (which have these `values`), and make arguments with traced numbers.

    Gives the arguments, and the symbols of all these numbers.
    """
    numbered = list(numbered_in(args, kwargs, passed.numbered))
    symbols = list(passed.symbols(numbered, [*args, *kwargs.values()], values))
    remaining = iter(symbols)
    others, named = list(args), dict(kwargs)
    for at in numbered:
        holder: Any = others if isinstance(at, int) else named
        holder[at] = tape.tracer.symbol(next(remaining), holder[at])
    put = _Put(lambda number: tape.tracer.symbol(next(remaining), number), passed.opened)
    if passed.nested:
        others = [value if is_number(value) else put.traced(value) for value in others]
        named = {name: value if is_number(value) else put.traced(value) for name, value in named.items()}
    for place, value in zip(passed.places, values, strict=True):
        if isinstance(place, HostNumber):
            tape.host_numbers[id(place.owner)] = put.traced(value)
        else:
            put.at(place, value)
    with ExitStack() as stack:
        if tape.following is not None or symbols:
            stack.enter_context(traced_math())
        if symbols:
            stack.enter_context(TakesNumbers())
        try:
            yield tuple(others), named, symbols
        finally:
            put.back()


def guards(recorded: Recorded, passed: Passed) -> Guards:
    """What a program depends on that was made from this call."""
    objects = recorded.objects
    if objects is None:
        raise ValueError("a verified call has no guards")
    places = [read for read in objects.reads.values() if read.read and read.place.key not in passed.keys]
    dicts = []
    for members in objects.module_dicts.values():
        now = members.container
        keys = [(id(now), name) for name in members.before]
        if (
            list(now) == list(members.before)
            and not passed.keys.intersection(keys)
            and all(map(same, now.values(), members.before.values()))
        ):
            dicts.append(now)
        else:
            places += [
                Read(Item(now, name), members.name, value, True)
                for name, value in members.before.items()
                if (id(now), name) not in passed.keys
            ]
    dicts += [
        state for state, before in objects.state_dicts if list(state) == list(before) and all(map(same, state.values(), before.values()))
    ]
    return Guards(places, dicts, [module for module, _ in objects.modules], [leaf.tensor for leaf in recorded.leaves])


def on_the_host(old: Recorded, new: Recorded) -> list[Comparison]:
    """Conditions for numbers in CPU tensors that were the same in both calls: code that takes them out is not followed."""
    before = dict(zip(old.symbols, old.numbers, strict=True))
    return [
        Comparison(Applied(operator.eq, (symbol, value)), True)
        for symbol, value in zip(new.symbols, new.numbers, strict=True)
        if symbol.key[0][-1] == HostNumber.KIND and before.get(symbol) == value
    ]
