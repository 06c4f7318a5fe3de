"""The Python objects in which a function finds its tensors and numbers, and whether they still hold what they held."""

from __future__ import annotations

import struct
import types
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import chain, repeat
from operator import is_
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

PLAIN = (int, float, complex, str, bytes, bool, type(None))
ABSENT = object()
"""Held by a place where nothing is."""

_Items = list[Any] | set[Any] | deque[Any]


@dataclass(slots=True)
class PythonState:
    """Containers, and what they held (`held`) when this was made. names: of containers, by id, for messages.

    dicts: all that they hold; counted: how many attributes an object has; places: of a key in a dict; class_places: the same in a class;
    slots: attributes that a class keeps apart (`__slots__`).
    """

    dicts: list[dict[Any, Any]] = field(default_factory=list)
    lists: list[_Items] = field(default_factory=list)
    counted: list[dict[str, Any]] = field(default_factory=list)
    places: list[tuple[dict[Any, Any], Any]] = field(default_factory=list)
    class_places: list[tuple[Mapping[str, Any], str]] = field(default_factory=list)
    slots: list[tuple[types.MemberDescriptorType, Any]] = field(default_factory=list)
    cells: list[types.CellType] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    optimizers: list[Optimizer] = field(default_factory=list)
    modules: list[torch.nn.Module] = field(default_factory=list)
    held: list[Any] = field(default_factory=list)
    _columns: tuple[Any, ...] = ()
    _parts: list[tuple[int, Any]] = field(default_factory=list)

    def hold(self) -> None:
        """Keep what the containers hold now."""
        self._columns = (*_transposed(self.places), *_transposed(self.class_places))
        self.held = self.now()
        whole: list[Any] = [*self.dicts, *self.lists]
        # In the order of `now`.
        self._parts = [(1, each) for each in whole]
        self._parts += [(len(each), each) for each in self.dicts] * 2
        self._parts += [(len(each), each) for each in self.lists]
        self._parts += [(1, each) for each in (*self.counted, *self.places, *self.class_places, *self.slots, *self.cells)]

    def now(self) -> list[Any]:
        """What the containers hold now."""
        dicts, keys, classes, names = self._columns
        return [
            *map(len, self.dicts),
            *map(len, self.lists),
            *chain.from_iterable(self.dicts),
            *chain.from_iterable(map(dict.values, self.dicts)),
            *chain.from_iterable(self.lists),
            *map(len, self.counted),
            *map(dict.get, dicts, keys, repeat(ABSENT)),
            *map(types.MappingProxyType.get, classes, names, repeat(ABSENT)),
            *[slot(*place) for place in self.slots],
            *map(contents, self.cells),
        ]

    def unchanged(self) -> bool:
        """Whether the containers hold what they held."""
        now, held = self.now(), self.held
        if len(now) != len(held):
            return False
        if all(map(is_, now, held)):
            return True
        if not all(map(_same, now, held)):
            return False
        self.held = now  # equal numbers
        return True

    def changed(self) -> str | None:
        """The name of the first container that holds something else; None if none does."""
        now = self.now()
        start = 0
        for size, container in self._parts:
            part = now[start : start + size]
            # Lengths come first: what is behind them is in its place only if all of them are what they were.
            if len(part) < size or not all(map(_same, part, self.held[start : start + size])):
                return self.names[id(container)]
            start += size
        return None


def _transposed(pairs: list[tuple[Any, Any]]) -> tuple[list[Any], list[Any]]:
    return [first for first, _ in pairs], [second for _, second in pairs]


def _same(now: Any, held: Any) -> bool:
    if now is held:
        return True
    kind = type(now)
    if kind is not type(held):
        return False
    if kind is float:
        return struct.pack("d", now) == struct.pack("d", held)  # 0.0 is not -0.0
    if kind is tuple:
        return len(now) == len(held) and all(map(_same, now, held))
    return bool((kind in PLAIN or kind is types.MethodType) and now == held)


def contents(cell: types.CellType) -> Any:
    """What a variable of a closure holds; None if it has no value yet."""
    try:
        return cell.cell_contents
    except ValueError:  # a variable that has no value yet
        return None


def slot(member: types.MemberDescriptorType, owner: Any) -> Any:
    """What an object has in a slot of its class; ABSENT if nothing."""
    try:
        return member.__get__(owner)
    except AttributeError:
        return ABSENT
