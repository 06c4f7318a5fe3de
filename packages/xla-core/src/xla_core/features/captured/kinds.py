"""What to note of an object of each kind that a recorded call can reach: what it holds, and which of that is read without telling."""

from __future__ import annotations

import contextvars
import functools
import sys
import threading
import types
import weakref
from collections import deque
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import Optimizer

from xla_core.engine.runtime.source_location import is_users
from xla_core.engine.tensor.plain import tensor_behind
from xla_core.features.captured import hooks, watching
from xla_core.features.captured.lookups import lookups
from xla_core.features.captured.objects import KnownContainer, Objects, Read
from xla_core.features.captured.optimizers import is_followed
from xla_core.features.captured.places import (
    MOST_ITEMS,
    Cell,
    ClassItem,
    Contents,
    Context,
    HostNumber,
    Item,
    ListItem,
    checksum,
    has_small_contents,
    instance_dict,
    own_items,
)
from xla_core.features.captured.user_code import is_class_of_user, is_installed, is_of_user

OF_OPTIMIZERS = ("state", "param_groups", "defaults")
"""Attributes of optimizers whose contents are noted."""
# Libraries whose objects have what a call reads.
_FOLLOWED = frozenset({"_weakrefset", "collections", "configparser", "logging", "queue", "torch", "weakref"})
# Special methods that run when an object is made or ends, and the one that `watching` replaces.
_CALLED_ONCE = frozenset({"__new__", "__init__", "__post_init__", "__init_subclass__", "__set_name__", "__del__", "__getattribute__"})
_MOST_BYTES = 1 << 26
"""Of larger arrays on the host it is not noticed if the call writes to them."""


def note(objects: Objects, value: Any, name: str) -> None:
    """Note an object, and what it holds if it is a container, a function or a module."""
    for kinds, handle in HANDLERS:
        if isinstance(value, kinds):
            handle(objects, value, name)
            return
    if not objects.iterators.holds(value, name):
        _object(objects, value, name)


def _tensor(objects: Objects, tensor: torch.Tensor, name: str) -> None:
    objects.on_tensor(tensor)
    for hook in hooks.of_tensor(tensor):
        objects.observe(hook, f"a hook of {name}")
    if tensor.device.type == "cpu" and tensor_behind(tensor) is None:
        if not has_small_contents(tensor):
            objects.note(Contents(tensor, "version"), name)
        elif not tensor.dim() and tensor.dtype.is_floating_point:
            objects.place(HostNumber(tensor), name, True)
        else:
            objects.note(Contents(tensor, "tensor"), name)
    if instance_dict(tensor) is not None:
        objects.named(tensor, name)


def _array(objects: Objects, array: np.ndarray[Any, Any], name: str) -> None:
    if has_small_contents(array):
        objects.note(Contents(array, "array"), name)
    elif array.dtype.hasobject and array.size <= MOST_ITEMS:
        objects.note(Contents(array, "objects"), name)
        for item in array.flat:
            objects.observe(item, name)
    elif array.nbytes <= _MOST_BYTES:
        objects.large_arrays.append((array, name, checksum(array)))


def _bytes(objects: Objects, buffer: bytearray, name: str) -> None:
    if len(buffer) <= _MOST_BYTES:
        objects.note(Contents(buffer, "bytes"), name)


def _event(objects: Objects, event: threading.Event, name: str) -> None:
    objects.note(Contents(event, "flag"), name)
    objects.named(event, name)


def _function(objects: Objects, function: types.FunctionType, name: str) -> None:
    objects.functions.setdefault(function.__code__, []).append(function)
    objects.observe(function.__dict__.get("__wrapped__"), name)
    for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
        objects.observe(value, name)
    if is_users(function.__code__.co_filename) and is_of_user(function.__globals__.get("__name__") or ""):
        objects.named(function, name)
        objects.note(Contents(function, "definition"), name)
    else:  # a decorator of a library's: what it calls is in its closure
        for cell in function.__closure__ or ():
            objects.observe(Cell(cell).get(), name)


def _method(objects: Objects, method: types.MethodType, name: str) -> None:
    objects.observe(method.__self__, name.removesuffix(f".{method.__name__}"))
    objects.observe(method.__func__, name)


def _partial(objects: Objects, partial: functools.partial[Any], name: str) -> None:
    for item in (partial.func, *partial.args, partial.keywords):
        objects.observe(item, name)
    objects.named(partial, name)


def _class(objects: Objects, cls: type, name: str) -> None:
    if is_class_of_user(cls):
        objects.named(cls, cls.__name__)
        objects.observe(type(cls), type(cls).__name__)


def _python_module(objects: Objects, module: types.ModuleType, name: str) -> None:
    if is_of_user(module.__name__) and not is_installed(vars(module).get("__file__") or ""):
        objects.named(module, name)


def _dict(objects: Objects, container: dict[Any, Any], name: str) -> None:
    objects.containers[id(container)] = KnownContainer(container, name, {key: dict.get(container, key) for key in own_items(container)})
    if dict.__len__(container) <= MOST_ITEMS:
        objects.place(Contents(container, "keys"), name, True)
        for key in list(own_items(container)):
            objects.place(Item(container, key), f"{name}[{key!r}]" if isinstance(key, (str, int)) else name, True)
            objects.observe(key, name)


def _list(objects: Objects, container: Any, name: str) -> None:
    items = list(own_items(container))
    objects.containers[id(container)] = KnownContainer(container, name, items)
    if len(items) <= MOST_ITEMS:
        if isinstance(container, list):
            objects.place(Contents(container, "length"), name, True)
            for index in range(len(items)):
                objects.place(ListItem(container, index), f"{name}[{index}]", True)
        else:
            objects.place(Contents(container, "members" if isinstance(container, set) else "items"), name, True)
            for item in items:
                objects.observe(item, name)


def _mapping(objects: Objects, proxy: types.MappingProxyType[Any, Any], name: str) -> None:
    objects.place(Contents(proxy, "mapping"), name, True)


def _tuple(objects: Objects, items: tuple[Any, ...] | frozenset[Any], name: str) -> None:
    for item in items:
        objects.observe(item, name)


def _reference(objects: Objects, reference: weakref.ref[Any], name: str) -> None:
    objects.place(Contents(reference, "target"), name, True)
    if reference() is not None:
        watching.watch(type(reference()))


def _context(objects: Objects, variable: contextvars.ContextVar[Any], name: str) -> None:
    objects.place(Context(variable), variable.name, True)


def _module(objects: Objects, module: torch.nn.Module, name: str) -> None:
    objects.modules.append((module, name))
    watching.watch(torch.nn.Module)
    attributes = module.__dict__
    objects.instance(module, name, attributes)
    for key, value in list(attributes.items()):
        if isinstance(value, dict) and key.startswith("_"):
            label = f"{name}.{key}"
            if objects.assuming is not None:
                objects.assuming.ids.append(id(value))
            objects.module_dicts[id(value)] = KnownContainer(value, label, dict(dict.items(value)))
            for item_key, item in list(value.items()):
                if not objects.is_passed(Item(value, item_key)):
                    objects.observe(item, f"{name}.{item_key}" if key in hooks.MEMBERS else label)
    objects.observe(type(module), type(module).__name__)


def _optimizer(objects: Objects, optimizer: Optimizer, name: str) -> None:
    objects.optimizers.append((optimizer, name))
    watching.watch(Optimizer)
    attributes = optimizer.__dict__
    objects.instance(optimizer, name, attributes)
    for key in OF_OPTIMIZERS:
        if key in attributes:
            place = Item(attributes, key)
            objects.reads[place.key] = Read(place, f"{name}.{key}", attributes[key], True)
    states = Contents(optimizer.state, "values")  # whether a state is another dict: torch's optimizers keep tensors in it
    objects.reads[states.key] = Read(states, f"{name}.state", states.get(), True)
    for key in hooks.OF_OPTIMIZERS:
        objects.observe(attributes.get(key), f"{name}.{key}")
    for state in optimizer.state.values():
        if isinstance(state, dict):
            objects.state_dicts.append((state, dict(state)))
    groups = optimizer.param_groups
    objects.place(Contents(groups, "length"), f"{name}.param_groups", True)
    for index, group in enumerate(groups):
        objects.note(ListItem(groups, index), f"{name}.param_groups[{index}]")
        for key, value in group.items():
            # Floats, alone or in a tuple, may change: they are inputs (features/captured/optimizers.py).
            objects.place(Item(group, key), f"{name}.param_groups[{index}][{key!r}]", not is_followed(key, value))
    if is_class_of_user(type(optimizer)):
        objects.observe(optimizer.state, f"{name}.state")
        objects.observe(type(optimizer), type(optimizer).__name__)


def _object(objects: Objects, instance: Any, name: str) -> None:
    cls = type(instance)
    if id(instance) in objects.opened:
        return
    if isinstance(instance, functools._lru_cache_wrapper):
        _cached(objects, instance, name)
    for item in _wrapped(instance):
        objects.observe(item, name)
    attributes = vars(instance) if isinstance(instance, threading.local) else instance_dict(instance)
    library = cls.__module__.partition(".")[0]
    followed = is_class_of_user(cls) or library in _FOLLOWED
    if not followed or isinstance(instance, types.SimpleNamespace) or not watching.watch(cls):
        if attributes is not None and (followed or library in sys.stdlib_module_names):
            objects.named(instance, name)
        return
    objects.instance(instance, name, attributes)
    if is_class_of_user(cls):
        objects.note(Contents(instance, "class"), f"the class of {name}")
        for key in special_methods(cls):  # type: ignore[arg-type]
            _special(objects, cls, key)
        objects.observe(cls, cls.__name__)


def _special(objects: Objects, cls: type, name: str) -> None:
    """Note a special method, which Python finds without its name being in the code."""
    for holder in cls.__mro__:
        if is_class_of_user(holder):
            objects.place(ClassItem(holder, name), f"{holder.__name__}.{name}", True)


def _cached(objects: Objects, cached: Any, name: str) -> None:
    """Note a cached function, and what its code names, which does not run as long as its results are kept."""
    objects.place(Contents(cached, "cache"), name, True)
    function = cached.__wrapped__
    if isinstance(function, types.FunctionType) and is_of_user(function.__globals__.get("__name__") or ""):
        found = lookups(function.__code__)
        objects.fixed = True
        for variable in found.variables & function.__globals__.keys():
            objects.place(Item(function.__globals__, variable), variable, True)
        for cell in function.__closure__ or ():
            objects.place(Cell(cell), name, True)
        objects.fixed = False
        objects.name_attributes(found.attributes, found.set_attributes, found.asked, found.computed)


HANDLERS: tuple[tuple[Any, Any], ...] = (
    (torch.nn.Module, _module),
    (torch.Tensor, _tensor),
    (np.ndarray, _array),
    (bytearray, _bytes),
    (threading.Event, _event),
    (types.FunctionType, _function),
    (types.MethodType, _method),
    (functools.partial, _partial),
    (type, _class),
    (types.ModuleType, _python_module),
    (Optimizer, _optimizer),
    (dict, _dict),
    (types.MappingProxyType, _mapping),
    ((list, set, deque), _list),
    ((tuple, frozenset), _tuple),
    (weakref.ref, _reference),
    (contextvars.ContextVar, _context),
)
"""What to do with an object, by its class; the first that fits is taken, `_object` if none does."""


_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, staticmethod, classmethod, functools.partialmethod)


@functools.lru_cache(maxsize=4096)
def special_methods(cls: type) -> frozenset[str]:
    """The names of special methods that a class and its bases of the user's define."""
    return frozenset(
        key
        for holder in cls.__mro__
        if is_class_of_user(holder)
        for key, value in vars(holder).items()
        if key.startswith("__") and isinstance(value, _FUNCTIONS) and key not in _CALLED_ONCE
    )


def _wrapped(value: Any) -> Iterable[Any]:
    """The function behind a property, a class's method or a cached function."""
    if isinstance(value, property):
        yield value.fget
    elif isinstance(value, (staticmethod, classmethod)):
        yield value.__func__
    elif isinstance(value, (functools.cached_property, functools.partialmethod)):
        yield value.func
    elif isinstance(vars(type(value)).get("__dict__"), types.GetSetDescriptorType):
        yield vars(value).get("__wrapped__")  # functools.lru_cache
