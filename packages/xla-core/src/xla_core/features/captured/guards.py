"""What a captured program depends on besides its arguments: the contents of places, of modules and of all kinds of hooks."""

from __future__ import annotations

import types
from itertools import chain, repeat
from operator import is_
from typing import Any

import torch

from xla_core.features.captured import hooks
from xla_core.features.captured.objects import Read
from xla_core.features.captured.places import ABSENT, ClassItem, Contents, Item, same


class Guards:
    """Places with the values that they must have, compared as `places.same` does.

    reads: the places; dicts: those of modules, whose values must stay; modules: whose classes must stay; leaves: tensors whose hooks must
    stay.
    """

    def __init__(self, reads: list[Read], dicts: list[dict[Any, Any]], modules: list[torch.nn.Module], leaves: list[torch.Tensor]) -> None:
        items = [read for read in reads if isinstance(read.place, Item)]
        class_items = [read for read in reads if isinstance(read.place, ClassItem)]
        contents = [read for read in reads if isinstance(read.place, Contents)]
        others = [read for read in reads if not isinstance(read.place, (Item, ClassItem, Contents))]
        self._items = [read.place.owner for read in items], [read.place.name for read in items]  # type: ignore[attr-defined]
        self._class_items = [vars(read.place.owner) for read in class_items], [read.place.name for read in class_items]  # type: ignore[attr-defined]
        self._others = [read.place for read in others]
        self._reads, self._contents = [*items, *class_items, *others], contents
        self._held = [read.before for read in self._reads]
        self._dicts, self._filled = dicts, [each for each in dicts if each]
        self._sizes = list(map(len, dicts))
        self._modules, self._leaves = modules, leaves
        self._members = self._members_now()
        self._hooks = hooks.of_everything(leaves)

    def unchanged(self) -> bool:
        """Whether everything still is as it was."""
        if list(map(len, self._dicts)) != self._sizes:
            return False
        members = self._members_now()
        if len(members) != len(self._members) or not all(map(is_, members, self._members)):
            return False
        if (self._hooks or hooks.are_there(self._leaves)) and self._hooks != hooks.of_everything(self._leaves):
            return False
        if not all([same(read.place.get(), read.before) for read in self._contents]):
            return False
        values = self._values_now()
        if all(map(is_, values, self._held)):
            return True
        if not all(map(same, values, self._held)):
            return False
        self._held = values  # equal ones
        return True

    def changed(self) -> str | None:
        """The name of a place that has another value; None if no place has."""
        now = [*self._values_now(), *[read.place.get() for read in self._contents]]
        before = [*self._held, *[read.before for read in self._contents]]
        names = [read.name for read in (*self._reads, *self._contents)]
        return next((name for name, value, held in zip(names, now, before, strict=True) if not same(value, held)), None)

    def _values_now(self) -> list[Any]:
        return [
            *map(dict.get, *self._items, repeat(ABSENT)),
            *map(types.MappingProxyType.get, *self._class_items, repeat(ABSENT)),
            *[place.get() for place in self._others],
        ]

    def _members_now(self) -> list[Any]:
        return [*chain.from_iterable(map(dict.values, self._filled)), *map(type, self._modules)]
