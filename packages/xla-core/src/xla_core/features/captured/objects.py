"""What a recorded call can reach that was there before it: objects, containers and places, with what was in them then."""

from __future__ import annotations

import threading
import types
import weakref
from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import Optimizer

from xla_core.engine.tracing.numbers import TRACED
from xla_core.features.captured.iterators import Iterators
from xla_core.features.captured.places import (
    ABSENT,
    PLAIN,
    ClassItem,
    Contents,
    Item,
    Place,
    Slot,
)
from xla_core.features.captured.user_code import is_class_of_user

_NOW = object()
_LEAVES = (torch.dtype, torch.device, torch.Size, torch.finfo, torch.Generator, types.BuiltinFunctionType, threading.Thread)


@dataclass(slots=True, eq=False)
class Read:
    """A place with its value before the call. name: for messages; read: whether the call reads it, so that a program depends on it.

    fixed: its value is never an input of a program.
    """

    place: Place
    name: str
    before: Any
    read: bool
    fixed: bool = False


@dataclass(slots=True, eq=False)
class Known:
    """An object that was there before the call. cls: its class; attributes, before: its `__dict__`, now and then.

    slots: the places of its `__slots__` with their values then, by name.
    """

    name: str
    cls: type
    attributes: dict[str, Any] | None
    before: dict[str, Any]
    slots: dict[str, tuple[Slot, Any]]

    def follows(self, value: Any) -> bool:
        """Whether a captured call sets an attribute that got this value. Libraries keep other things, which only they use, in theirs."""
        if is_class_of_user(self.cls) or self.cls.__module__.startswith("torch.optim."):
            return True
        return (
            isinstance(value, (bool, int, float, str, torch.Tensor)) if issubclass(self.cls, torch.nn.Module) else isinstance(value, bool)
        )


@dataclass(slots=True, eq=False)
class KnownContainer:
    """A dict, list, set or deque that was there before the call, and a copy of its items (of a dict: a dict)."""

    container: Any
    name: str
    before: Any


@dataclass(slots=True, eq=False)
class Assumed:
    """An object that was reached in a way that is not followed. If it ends with the call, what was noted of it (ids, places) is dropped."""

    reference: weakref.ref[Any]
    ids: list[int] = field(default_factory=list)
    places: list[tuple[Any, ...]] = field(default_factory=list)


class Objects:
    """The objects that a call can reach. passed: keys of places whose values the call takes as arguments.

    opened: ids of objects that are taken apart, as arguments; on_tensor: called with each tensor of the device, before the call does
    something with it; note: notes what an object of any kind holds (`kinds.note`). reads: places by key; instances, containers: by id;
    module_dicts: parameters, buffers, submodules and hooks of modules, by id; state_dicts: what optimizers keep of a parameter, with a
    copy; large_arrays: with checksums; functions: by their code. escape: what code names that may take numbers without asking them. fixed:
    whether what is noted now is never an input of a program.
    """

    def __init__(
        self,
        passed: Iterable[tuple[Any, ...]],
        opened: Container[int],
        on_tensor: Callable[[torch.Tensor], None],
        note: Callable[[Objects, Any, str], None],
    ) -> None:
        self._note = note
        self.on_tensor = on_tensor
        self.opened = opened
        self.reads: dict[tuple[Any, ...], Read] = {}
        self.instances: dict[int, Known] = {}
        self.containers: dict[int, KnownContainer] = {}
        self.module_dicts: dict[int, KnownContainer] = {}
        self.optimizers: list[tuple[Optimizer, str]] = []
        self.modules: list[tuple[torch.nn.Module, str]] = []
        self.state_dicts: list[tuple[dict[Any, Any], dict[Any, Any]]] = []
        self.functions: dict[types.CodeType, list[types.FunctionType]] = {}
        self.escape: str | None = None
        self.large_arrays: list[tuple[np.ndarray[Any, Any], str, int]] = []
        self.iterators = Iterators()
        self.seen: dict[int, Any] = {}  # keeps objects alive, so that their ids stay theirs
        self.assuming: Assumed | None = None
        self._passed = frozenset(passed)
        self._owners: list[tuple[Any, str]] = []
        self._names: set[str] = set()
        self._set_names: set[str] = set()
        self._asked: set[str] = set()
        self.fixed = False
        self._computed = False

    def note(self, place: Place, name: str) -> bool:
        """Note a place that the call reads, but nothing of what is in it. Returns False if it was noted before."""
        if place.key in self.reads:
            return False
        self.reads[place.key] = Read(place, name, place.get(), True)
        return True

    def name_attributes(self, names: Iterable[str], set_names: Iterable[str], asked: Iterable[str], everything: bool) -> None:
        """Note the attributes of classes, modules, functions, namespaces and tensors that code names.

        asked: those that need not be there; everything: the code computes names, too.
        """
        fresh, fresh_set = frozenset(names) - self._names, frozenset(set_names) - self._set_names
        self._names |= fresh
        self._set_names |= fresh_set
        self._asked |= frozenset(asked)
        everything = everything and not self._computed
        self._computed = self._computed or everything
        for owner, label in list(self._owners):
            self._attributes_of(owner, label, None if everything else fresh, fresh_set)

    def place(self, place: Place, name: str, read: bool, before: Any = _NOW) -> None:
        """Note a place, and what was in it before the call, if that is not what is in it now."""
        noted = self.reads.get(place.key)
        if noted is not None:
            noted.read = noted.read or read
            return
        value = place.get() if before is _NOW else before
        self.reads[place.key] = Read(place, name, value, read, self.fixed)
        if self.assuming is not None:
            self.assuming.places.append(place.key)
        if not self.is_passed(place):
            self.observe(value, name)

    def is_passed(self, place: Place) -> bool:
        """Whether the call takes the value of a place as an argument."""
        return place.key in self._passed

    def _attributes_of(self, owner: Any, label: str, names: Iterable[str] | None, set_names: Iterable[str]) -> None:
        """Note those attributes of a class, module, function or namespace that code names. names: None for all."""
        holders = [cls for cls in owner.__mro__ if is_class_of_user(cls)] if isinstance(owner, type) else [owner]
        every = {key for holder in holders for key in vars(holder)}
        chosen = {key for key in every if not key.startswith("__")} if names is None else every.intersection(names)
        absent = {key for key in self._asked - every if not hasattr(type(owner), key)}
        for holder in holders if names is None else ():
            self.names_of(holder if isinstance(holder, type) else vars(holder), label)
        for key in sorted(chosen | absent):
            present = [key in vars(holder) for holder in holders]
            for number, holder in enumerate(holders):
                if present[number] or not any(present[:number]):
                    self.place(_attribute(holder, key), f"{label}.{key}", True)
        for key in sorted(set(set_names) - chosen - absent):
            self.place(_attribute(owner, key), f"{label}.{key}", False)

    def names_of(self, holder: Any, name: str, before: Any = _NOW) -> None:
        """Note which attributes a class, or an object with this `__dict__`, has."""
        self.place(Contents(holder, "names"), f"which attributes {name} has", True, before)

    def instance(self, instance: Any, name: str, attributes: dict[str, Any] | None) -> Known:
        """Note an object whose attributes are noted when they are looked up."""
        slots = {
            member.__name__: (Slot(member, instance), Slot(member, instance).get())
            for cls in type(instance).__mro__
            if is_class_of_user(cls)
            for member in vars(cls).values()
            if isinstance(member, types.MemberDescriptorType)
        }
        known = self.instances[id(instance)] = Known(name, type(instance), attributes, dict(attributes or ()), slots)
        return known

    def forget(self, assumed: Assumed) -> None:
        """Drop what was noted of an object that has ended."""
        for place in assumed.places:
            self.reads.pop(place, None)
        ended = set(assumed.ids)
        # Places are also noted later, when other code names their attributes.
        dicts = {id(vars(owner)) for owner, _ in self._owners if id(owner) in ended and not isinstance(owner, type)}
        dicts |= {id(known.attributes) for key, known in self.instances.items() if key in ended}
        dicts |= {id(vars(module)) for module, _ in self.modules if id(module) in ended}
        for key in [key for key, read in self.reads.items() if id(read.place.owner) in dicts]:
            del self.reads[key]
        for noted in (self.seen, self.instances, self.containers, self.module_dicts):
            for each in ended & noted.keys():
                del noted[each]
        self.modules = [(module, name) for module, name in self.modules if id(module) not in ended]
        self._owners = [(owner, name) for owner, name in self._owners if id(owner) not in ended]

    def is_known(self, value: Any) -> bool:
        """Whether an object was there before the call."""
        return self.seen.get(id(value)) is value

    def end(self) -> None:
        """Let go of what was needed during the call only: objects live on as their owners want."""
        self.on_tensor = _nothing
        for kept in (self.seen, self.instances, self.containers, self.functions, self._owners):
            kept.clear()

    def observe(self, value: Any, name: str) -> None:
        """Note an object, and what it holds if it is a container, a function or a module."""
        if isinstance(value, types.BuiltinFunctionType) and value in TRACED:
            self.escape = self.escape or f"{value.__name__} by itself instead of math.{value.__name__}"
        if value is None or value is ABSENT or isinstance(value, PLAIN) or isinstance(value, _LEAVES) or id(value) in self.seen:
            return
        self.seen[id(value)] = value
        if self.assuming is not None:
            self.assuming.ids.append(id(value))
        self._note(self, value, name)

    def named(self, owner: Any, name: str) -> None:
        """Note an object whose attributes are looked up without telling."""
        self._owners.append((owner, name))
        self._attributes_of(owner, name, None if self._computed else self._names, self._set_names)


def _attribute(holder: Any, name: str) -> Place:
    return ClassItem(holder, name) if isinstance(holder, type) else Item(holder.__dict__, name)


def _nothing(tensor: torch.Tensor) -> None:
    """Nobody asks for tensors."""
