"""Which values the calls of a function take as inputs of their programs, besides tensors: those that differ from call to call."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import Optimizer

from xla_core.engine.tracing.numbers import Integer, Number, Symbol
from xla_core.features.captured.places import PLAIN, Place, instance_dict
from xla_core.features.captured.results import flatten_values

_NUMBERS = frozenset({int, float, Number, Integer})
_MOST_VALUES = 2
"""A number among the arguments that has more values becomes an input of programs; else each value has programs of its own."""
_MOST_OWNERS = 4
"""So many objects of a class that is not made for data have programs of their own: a method is captured for each `self`."""
_NEVER_OPENED = (torch.Tensor, torch.nn.Module, Optimizer, type, types.ModuleType, types.FunctionType, types.MethodType, BaseException)


def is_number(value: Any) -> bool:
    """Whether a value is a real number whose value may be followed: not one of a class of its own, such as an enum's."""
    return type(value) in _NUMBERS or isinstance(value, (np.floating, np.integer))


class Passed:
    """Places whose values are arguments, numbers among the arguments that are inputs, and classes whose objects are opened.

    places, names: of the places, and their names for messages; keys: of these places. numbered: numbers among the arguments, by position or
    name; nested: whether numbers that arguments hold are inputs, too. opened: classes whose objects' attributes and items are arguments.
    blind_to: what the function gives numbers to that takes them without asking; then numbers are not followed. whole: whether integers are
    followed; not once something refused them.
    """

    def __init__(self) -> None:
        self.places: list[Place] = []
        self.names: list[str] = []
        self.keys: set[tuple[Any, ...]] = set()
        self.numbered: list[int | str] = []
        self.nested = False
        self.opened: set[type] = set()
        self.blind_to: str | None = None
        self.whole = True
        self._values: dict[int | str, set[Any]] = {}
        self._values_within: dict[int, set[Any]] = {}
        self._objects: dict[tuple[int, type], set[int]] = {}
        self._owners: dict[type, set[int]] = {}  # of the places within objects that were arguments: themselves, and their `__dict__`s

    def add(self, place: Place, name: str) -> bool:
        """Take the values of a place from now on. Returns False if they are taken already."""
        if place.key in self.keys:
            return False
        self.places.append(place)
        self.names.append(name)
        self.keys.add(place.key)
        return True

    @property
    def described(self) -> list[str]:
        """Names of everything that is passed but the tensors among the arguments."""
        within = ["numbers that an argument holds"] if self.nested else []
        return [*[f"argument {at}" for at in self.numbered], *within, *self.names]

    def values(self) -> list[Any]:
        """The present values of the places."""
        return [place.get() for place in self.places]

    def symbols(self, numbered: list[int | str], args: list[Any], values: list[Any]) -> Iterator[Symbol]:
        """A symbol for each number among the arguments of a call (`numbered`), for those that `args` hold, and among the values of "
        "places."""
        for at in numbered:
            yield Symbol(f"argument {at}", ("argument", at))
        for index in range(len(self.numbers_within(args)) if self.nested else 0):
            yield Symbol(f"number {index} that an argument holds", ("within", index))
        for name, place, value in zip(self.names, self.places, values, strict=True):
            for index, leaf in enumerate(flatten_values(value, self.opened)[0]):
                if is_number(leaf):
                    yield Symbol(name, (place.key, index))

    def numbers_within(self, args: list[Any]) -> list[Any]:
        """The numbers that arguments hold which are no numbers themselves."""
        held = flatten_values([value for value in args if not is_number(value)], self.opened)[0]
        return [leaf for leaf in held if is_number(leaf)]

    def follows(self, value: Any) -> bool:
        """Whether a value is a number that may become an input."""
        return is_number(value) and self.blind_to is None and (self.whole or not isinstance(value, (int, np.integer)))

    def forget_numbers(self, blind_to: str) -> None:
        """Do not follow numbers any more."""
        self.blind_to = blind_to
        self._forget()

    def forget_integers(self) -> None:
        """Do not follow integers any more: each value has programs of its own."""
        self.whole = False
        self._forget()

    def _forget(self) -> None:
        self.numbered.clear()
        self.nested = False
        self._keep(lambda place: all(self.follows(leaf) or not is_number(leaf) for leaf in flatten_values(place.get(), self.opened)[0]))

    def _leave_to_arguments(self, owners: set[int]) -> None:
        """Do not take the values of places within such objects: they are arguments."""
        self._keep(lambda place: id(place.owner) not in owners)

    def _keep(self, wanted: Callable[[Place], bool]) -> None:
        """Take the values of only these places from now on."""
        kept = [(place, name) for place, name in zip(self.places, self.names, strict=True) if wanted(place)]
        self.places, self.names = [place for place, _ in kept], [name for _, name in kept]
        self.keys = {place.key for place in self.places}

    def learn(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Look at arguments of a new kind. Returns whether something is an argument now that was not: all programs are out of date then."""
        changed = False
        named: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
        for at, value in named:
            if self.follows(value) and at not in self.numbered:
                values = self._values.setdefault(at, set())
                values.add(value)
                if len(values) > _MOST_VALUES:
                    self.numbered.append(at)
                    changed = True
        if self.blind_to is None and self.whole and not self.nested:
            for index, value in enumerate(self.numbers_within([*args, *kwargs.values()])):
                self._values_within.setdefault(index, set()).add(value)
            self.nested = any(len(values) > _MOST_VALUES for values in self._values_within.values())
            changed = changed or self.nested
        for index, leaf in enumerate(flatten_values((args, kwargs), self.opened)[0]):
            if can_be_opened(leaf):
                met = self._objects.setdefault((index, type(leaf)), set())
                met.add(id(leaf))
                owners = self._owners.setdefault(type(leaf), set())
                owners |= {id(leaf), id(instance_dict(leaf))}
                if len(met) > (1 if is_dataclass(leaf) or isinstance(leaf, Mapping) else _MOST_OWNERS):
                    self.opened.add(type(leaf))
                    self._leave_to_arguments(owners)
                    changed = True
        return changed


def can_be_opened(value: Any) -> bool:
    """Whether an object holds nothing but tensors, numbers and texts."""
    if isinstance(value, (*PLAIN, *_NEVER_OPENED)) or not (instance_dict(value) or isinstance(value, (dict, list))):
        return False
    leaves = flatten_values(value, {type(value)})[0]
    return bool(leaves) and all(isinstance(leaf, (torch.Tensor, np.generic, torch.dtype, torch.device, *PLAIN)) for leaf in leaves)
