"""What a recorded call left changed in Python: attributes, variables and items that a captured call has to set, too."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
import torch

from xla_core.features.captured.lookups import line_that_sets
from xla_core.features.captured.objects import KnownContainer
from xla_core.features.captured.places import ABSENT, Contents, Item, ListItem, Place, Slot, checksum, own_items, same
from xla_core.features.captured.reads import Reads


@dataclass(frozen=True, slots=True)
class Write:
    """A place with its value after the call. name, line: for messages."""

    place: Place
    name: str
    after: Any
    line: str | None


def writes(reads: Reads, kept: Container[tuple[Any, ...]]) -> Iterator[Write | str]:
    """The places that a call changed, and what it changed in other ways as reasons not to capture it. kept: places that it has not."""
    changed: dict[tuple[Any, ...], tuple[Place, str, Any]] = {}
    place: Place
    for known in reads.objects.instances.values():
        for key, _, after in _differences(known.before, known.attributes or {}):
            if known.follows(after) and known.attributes is not None:
                place = Item(known.attributes, key)
                changed[place.key] = (place, f"{known.name}.{key}", after)
        for slot, before in known.slots.values():
            if not same(slot.get(), before):
                changed[slot.key] = (slot, f"{known.name}.{slot.member.__name__}", slot.get())
    for members in reads.objects.module_dicts.values():
        for key, _, after in _differences(members.before, members.container):
            place = Item(members.container, key)
            changed[place.key] = (place, f"{members.name.rpartition('.')[0]}.{key}", after)
    for container in reads.objects.containers.values():
        yield from _of_container(container, reads, changed)
    for read in list(reads.objects.reads.values()):
        if isinstance(read.place, (Item, ListItem)) and id(read.place.owner) in reads.objects.containers:
            continue
        if read.place.key in kept:
            continue
        now = read.place.get()
        if now is read.before or same(now, read.before):
            continue
        if not isinstance(read.place, Contents):
            changed[read.place.key] = (read.place, read.name, now)
        elif isinstance(read.place.owner, (torch.Tensor, np.ndarray, bytearray, threading.Event)):
            yield f"it writes to {read.name}, which is on the host: keep that on the device, or write to it behind the call"
    for array, name, before in reads.objects.large_arrays:
        if checksum(array) != before:
            yield f"it writes to {name}, which is on the host: keep that on the device, or write to it behind the call"
    for place, name, after in changed.values():
        variable = place.name if isinstance(place, Item) else place.member.__name__ if isinstance(place, Slot) else name.rpartition(".")[2]
        yield Write(place, name, after, line_that_sets(reads.codes, variable))


def undone(reads: Reads, kept: Container[tuple[Any, ...]], true: Callable[[Any], Any]) -> bool:
    """Undo what a call has changed in Python so far; returns whether all of it could be. true: gives a value without traced numbers."""
    for members in reads.objects.module_dicts.values():
        for key, before, _ in list(_differences(members.before, members.container)):
            Item(members.container, key).put(true(before))
    for known in reads.objects.instances.values():
        if known.attributes is not None:
            for key, before, _ in list(_differences(known.before, known.attributes)):
                Item(known.attributes, key).put(true(before))
        for slot, before in known.slots.values():
            if not same(slot.get(), before):
                slot.put(true(before))
    for contents in reads.objects.containers.values():
        if isinstance(contents.container, (dict, set)):
            contents.container.clear()
            contents.container.update(true(contents.before))
        elif isinstance(contents.container, list):
            contents.container[:] = true(list(contents.before))
    for read in reads.objects.reads.values():
        if not isinstance(read.place, Contents) and not same(read.place.get(), read.before) and read.place.key not in kept:
            read.place.put(true(read.before))
    return not any(isinstance(write, str) for write in writes(reads, kept))


def _differences(before: dict[Any, Any], now: dict[Any, Any]) -> Iterator[tuple[Any, Any, Any]]:
    for key, value in now.items():
        if not same(value, before.get(key, ABSENT)):
            yield key, before.get(key, ABSENT), value
    for key in before:
        if key not in now:
            yield key, before[key], ABSENT


def _of_container(known: KnownContainer, reads: Reads, changed: dict[tuple[Any, ...], tuple[Place, str, Any]]) -> Iterator[str]:
    container = known.container
    if isinstance(container, dict):
        keys = list(own_items(container))
        if keys != [*[key for key in known.before if key in container], *[key for key in keys if key not in known.before]]:
            yield f"it changes the order of the keys of {known.name}: do that before the call, or behind it"
        for key, _, after in _differences(known.before, dict(dict.items(container))):
            place: Place = Item(container, key)
            changed[place.key] = (place, f"{known.name}[{key!r}]", after)
        return
    items = list(own_items(container))
    if isinstance(container, list) and len(items) == len(known.before):
        for index, (before, after) in enumerate(zip_longest(known.before, items)):
            if not same(after, before):
                place = ListItem(container, index)
                changed[place.key] = (place, f"{known.name}[{index}]", after)
    elif len(items) != len(known.before) or any(not same(after, before) for before, after in zip(known.before, items, strict=True)):
        line = reads.lines.get(id(container))
        yield (
            f"it changes the items of {known.name}, which has {len(known.before)} before and {len(items)} after the call"
            f"{f' (at {line})' if line else ''}: return what it adds, and add it behind the call"
        )
