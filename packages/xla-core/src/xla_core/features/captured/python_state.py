"""The Python containers from which a function gets tensors and numbers, and whether their contents have changed."""

from __future__ import annotations

import struct
import types
from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain, repeat
from operator import is_
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

PLAIN = (int, float, complex, str, bytes, bool, type(None))
ABSENT = object()
"""The content of an empty place."""

_Items = list[Any] | set[Any] | deque[Any]
_BASES: tuple[Any, ...] = (OrderedDict, dict, list, set, deque)


@dataclass(slots=True)
class PythonState:
    """Containers, and their contents (`held`) when `hold` was called. names: of containers, by id, for messages.

    dicts: whose values count; keyed: dicts of the user's, whose keys count too; sizes: lengths of keyed, dicts and lists at that time.
    counted: attribute dicts whose length counts; places: pairs of a dict and a key; class_places: the same for classes; slots: pairs of a
    `__slots__` member and an object.
    """

    dicts: list[dict[Any, Any]] = field(default_factory=list)
    keyed: list[dict[Any, Any]] = field(default_factory=list)
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
    sizes: list[int] = field(default_factory=list)
    _columns: tuple[Any, ...] = ()
    _keyed: list[_Container] = field(default_factory=list)
    _lists: list[_Container] = field(default_factory=list)

    def hold(self) -> None:
        """Keep the present contents of the containers."""
        self._keyed, self._lists = list(map(own_items, self.keyed)), list(map(own_items, self.lists))
        self._columns = (*_transposed(self.places), *_transposed(self.class_places))
        self.held = self.now()
        self.sizes = list(map(len, (*self._keyed, *map(dict.values, self.dicts), *self._lists)))

    def now(self) -> list[Any]:
        """The present contents of the containers."""
        dicts, keys, classes, names = self._columns
        return [
            *map(len, self._keyed),
            *map(len, self._lists),
            *chain.from_iterable(self._keyed),
            *chain.from_iterable(map(dict.values, self.dicts)),
            *chain.from_iterable(self._lists),
            *map(len, self.counted),
            *map(dict.get, dicts, keys, repeat(ABSENT)),
            *map(types.MappingProxyType.get, classes, names, repeat(ABSENT)),
            *[slot(*place) for place in self.slots],
            *map(contents, self.cells),
        ]

    def unchanged(self) -> bool:
        """Whether the containers still have the contents that were kept."""
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
        """The name of the first container whose content changed; None if there is none."""
        start = 0
        for container, size, now in self._parts():
            before = self.held[start : start + size]
            if len(now) != len(before) or not all(map(_same, now, before)):
                return self.names[id(container)]
            start += size
        return None

    def _parts(self) -> Iterator[tuple[Any, int, list[Any]]]:
        """Containers in the order of `now`, each with its number of items in `held` and its present items."""
        sizes = iter(self.sizes)
        for container in (*self.keyed, *self.lists):
            yield container, 1, [len(own_items(container))]
        for keys in self.keyed:
            yield keys, next(sizes), list(own_items(keys))
        for values in self.dicts:
            yield values, next(sizes), list(dict.values(values))
        for items in self.lists:
            yield items, next(sizes), list(own_items(items))
        for attributes in self.counted:
            yield attributes, 1, [len(attributes)]
        for place in (*self.places, *self.class_places):
            yield place, 1, [place[0].get(place[1], ABSENT)]
        for member in self.slots:
            yield member, 1, [slot(*member)]
        for cell in self.cells:
            yield cell, 1, [contents(cell)]


class _OwnItems:
    """The items of a container as its builtin base class has them; a derived class may, for example, import modules on access."""

    __slots__ = ("_base", "_container")

    def __init__(self, container: Any, base: Any) -> None:
        self._container, self._base = container, base

    def __len__(self) -> int:
        return int(self._base.__len__(self._container))

    def __iter__(self) -> Iterator[Any]:
        return iter(self._base.__iter__(self._container))


_Container = dict[Any, Any] | _Items | _OwnItems


def own_items(container: Any) -> _Container:
    """The keys of a dict, or the items of a list, set or deque, as Python's own class has them."""
    base, cls = next(base for base in _BASES if isinstance(container, base)), type(container)
    plain = cls.__iter__ is base.__iter__ and cls.__len__ is base.__len__
    return container if plain else _OwnItems(container, base)


def _transposed(pairs: list[tuple[Any, Any]]) -> tuple[list[Any], list[Any]]:
    return [first for first, _ in pairs], [second for _, second in pairs]


def _same(now: Any, before: Any) -> bool:
    if now is before:
        return True
    cls = type(now)
    if cls is not type(before):
        return False
    if cls is float:
        return struct.pack("d", now) == struct.pack("d", before)  # 0.0 is not -0.0
    if cls is tuple:
        return len(now) == len(before) and all(map(_same, now, before))
    return bool((cls in PLAIN or cls is types.MethodType) and now == before)


def contents(cell: types.CellType) -> Any:
    """The value of a closure's variable; None if it has none yet."""
    try:
        return cell.cell_contents
    except ValueError:  # a variable that has no value yet
        return None


def slot(member: types.MemberDescriptorType, owner: Any) -> Any:
    """The value in an object's `__slots__` member; ABSENT if there is none."""
    try:
        return member.__get__(owner)
    except AttributeError:
        return ABSENT
