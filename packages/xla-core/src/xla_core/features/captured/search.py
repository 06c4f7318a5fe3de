"""Finds the Python objects that a function reads: closures, globals, attributes, modules, optimizers, and the items of lists and dicts.

An attribute of a reachable object counts if reachable code looks up its name, on any object. Where code computes names, all attributes
count.
"""

from __future__ import annotations

import functools
import os
import sys
import types
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from xla_core.engine.runtime.source_location import is_users
from xla_core.features.captured.lookups import lookups
from xla_core.features.captured.python_state import ABSENT, PLAIN, PythonState, own_items, slot

_MOST = 10_000  # a larger container is data, not state
_CONTAINERS = (torch.Tensor, torch.nn.Module, Optimizer, dict, list, tuple, types.FunctionType, types.MethodType, functools.partial)
_ITEMS = (list, set, deque)
_LIBRARIES = frozenset({"torch", "torch_xla", "xla_core", "jax", "jaxlib", "numpy", *sys.stdlib_module_names})
_NAMESPACES = frozenset({"argparse", "optparse", "types"})  # objects of their classes are the user's data
_INSTALLED = ("/site-packages/", "/dist-packages/")
# Python calls other methods with two underscores by itself. It does not call these, or not while a step computes.
_SILENT = frozenset(
    "__init__ __new__ __init_subclass__ __class_getitem__ __repr__ __str__ __reduce__ __reduce_ex__ __getstate__ __setstate__ "
    "__setattr__ __delattr__ __del__ __dir__ __sizeof__ __copy__ __deepcopy__".split()
)


def python_state(roots: Iterable[tuple[str, Any]]) -> PythonState:
    """Collect the state that is reachable from named objects."""
    search = _Search()
    for name, root in roots:
        search.visit(root, name)
    search.finish()
    search.state.hold()
    return search.state


class _Search:
    """Finds each container once."""

    def __init__(self) -> None:
        self.state = PythonState()
        self._seen: dict[int, Any] = {}  # keeps objects alive, so that their ids stay theirs
        self._read: set[str] = set()
        self._called: set[str] = set()
        self._asked: set[str] = set()
        self._computed = False
        self._computed_inside = False  # by libraries, of their own objects
        self._owners: list[tuple[Any, str]] = []  # whose attributes are looked up
        self._noted: set[tuple[int, str]] = set()  # attributes, by the id of their owner

    def visit(self, value: Any, name: str) -> None:
        """Note an object, and what it contains."""
        if value is None or isinstance(value, (torch.Tensor, *PLAIN)) or id(value) in self._seen:
            return
        self._seen[id(value)] = value
        if value in _LOOKING:
            self._computed = True
        elif isinstance(value, types.FunctionType):
            self._function(value, name)
        elif isinstance(value, type):
            self._class(value)
            for base in value.__mro__ if _of_user(value.__module__) else ():
                for key in ("__init__", "__new__"):  # it may be called
                    self.visit(vars(base).get(key), f"{base.__name__}.{key}")
        elif isinstance(value, types.ModuleType):
            if _of_user(value.__name__) and not _is_installed(getattr(value, "__file__", None) or ""):
                self._owners.append((value, name))
        elif isinstance(value, torch.nn.Module):
            self._module(value, name)
        elif isinstance(value, Optimizer):
            self._optimizer(value, name)
        else:
            self._data(value, name)

    def _data(self, value: Any, name: str) -> None:
        """Visit a container, a wrapper, or an instance of a user's class."""
        if isinstance(value, dict):
            self._dict(value, name)
        elif isinstance(value, _ITEMS):
            self._list(value, name)
        elif isinstance(value, (tuple, frozenset)):
            for item in value:
                self.visit(item, name)
        elif isinstance(value, types.MethodType):
            self.visit(value.__self__, f"{name}.__self__")
            self.visit(value.__func__, name)
        elif isinstance(value, functools.partial):
            for item in (value.func, value.args, value.keywords):
                self.visit(item, name)
        else:
            for item in _wrapped(value):
                self.visit(item, name)
        self._object(value, name)

    def finish(self) -> None:
        """Note those attributes of the visited objects whose names the visited functions look up."""
        counts = None
        while counts != (counts := (len(self._owners), len(self._read), len(self._called), self._computed, self._computed_inside)):
            for owner, name in self._owners:  # grows meanwhile
                self._attributes(owner, name)

    def _dict(self, container: dict[Any, Any], name: str, keyed: bool = True) -> None:
        if dict.__len__(container) > _MOST:
            return
        self._seen[id(container)] = container
        self.state.dicts.append(container)
        if keyed:
            self.state.keyed.append(container)
        self.state.names[id(container)] = name
        for key, value in dict.items(container):
            self.visit(value, f"{name}[{key!r}]" if isinstance(key, (str, int)) else name)

    def _list(self, container: Any, name: str) -> None:
        items = own_items(container)
        if len(items) > _MOST:
            return
        self.state.lists.append(container)
        self.state.names[id(container)] = name
        for index, value in enumerate(items):
            self.visit(value, f"{name}[{index}]")

    def _place(self, holder: dict[Any, Any], key: Any, name: str) -> None:
        place = (holder, key)
        self.state.places.append(place)
        self.state.names[id(place)] = name
        self.visit(holder.get(key), name)

    def _module(self, module: torch.nn.Module, name: str) -> None:
        self.state.modules.append(module)
        attributes = module.__dict__
        self.state.dicts.append(attributes)
        self.state.names[id(attributes)] = f"{name} ({type(module).__name__})"
        for key, value in attributes.items():
            if type(value) is dict and key.startswith("_"):
                self._dict(value, f"{name}.{key}", False)  # parameters, buffers, modules, hooks
            else:
                self.visit(value, f"{name}.{key}")
        self.visit(type(module).forward, f"{name}.forward")
        self._class(type(module))

    def _optimizer(self, optimizer: Optimizer, name: str) -> None:
        self.state.optimizers.append(optimizer)
        attributes = optimizer.__dict__
        groups = optimizer.param_groups
        # Unlike other lists and dicts, groups may change their floats.
        self._seen.update((id(container), container) for container in (groups, *groups, optimizer.defaults))
        for key in ("state", "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks", "param_groups"):
            self._place(attributes, key, f"{name}.{key}")
        self.state.lists.append(groups)
        self.state.names[id(groups)] = f"{name}.param_groups"
        for index, group in enumerate(groups):
            for key, value in group.items():
                # Floats, alone or in a tuple, may change: they are inputs (features/captured/optimizers.py).
                if not isinstance(value, float) and not (isinstance(value, tuple) and any(isinstance(item, float) for item in value)):
                    self._place(group, key, f"{name}.param_groups[{index}][{key!r}]")
        if _of_user(type(optimizer).__module__):
            self._object(optimizer, name)

    def _function(self, function: types.FunctionType, name: str) -> None:
        self.visit(function.__dict__.get("__wrapped__"), name)
        if not is_users(function.__code__.co_filename) or not _of_user(function.__module__ or ""):
            return
        looked_up = lookups(function.__code__)
        self._read |= looked_up.read
        self._called |= looked_up.called
        self._asked |= looked_up.asked
        if _is_installed(function.__code__.co_filename):
            self._computed_inside = self._computed_inside or looked_up.computed
        else:
            self._computed = self._computed or looked_up.computed
        if looked_up.environment:
            self.visit(vars(os.environ)["_data"], "os.environ")
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self.state.cells.append(cell)
            self.state.names[id(cell)] = variable
            self.visit(cell.cell_contents if _is_set(cell) else None, variable)
        self.visit(function.__defaults__, name)
        self.visit(function.__kwdefaults__, name)
        for variable in sorted(looked_up.read | looked_up.called):
            if variable in function.__globals__:
                self._place(function.__globals__, variable, variable)
        self._owners.append((function, name))

    def _class(self, cls: type) -> None:
        """Visit the attributes of a class and its bases, and the methods that Python calls by itself."""
        for base in cls.__mro__:
            if not _of_user(base.__module__) or (id(base), "") in self._noted:
                continue
            self._noted.add((id(base), ""))
            self._owners.append((base, base.__name__))
            for key, value in vars(base).items():
                if key.startswith("__") and key.endswith("__") and key not in _SILENT and isinstance(value, types.FunctionType):
                    if not (key in ("__eq__", "__hash__") and _is_installed(value.__code__.co_filename)):
                        self.visit(value, f"{base.__name__}.{key}")

    def _object(self, instance: Any, name: str) -> None:
        """Visit a user's object: attributes with tensors, modules, functions or containers, and others that code looks up."""
        cls = type(instance)
        if not _of_user(cls.__module__):
            return
        self._class(cls)
        attributes = getattr(instance, "__dict__", None)
        if isinstance(attributes, dict):
            self._owners.append((instance, name))
            self.state.counted.append(attributes)
            self.state.names[id(attributes)] = name
            for key, value in tuple(attributes.items()):
                if isinstance(value, _CONTAINERS):
                    self._attribute(instance, attributes, key, name)
        elif cls.__dictoffset__ == 0:
            self._owners.append((instance, name))

    def _attributes(self, owner: Any, name: str) -> None:
        attributes = vars(owner) if hasattr(owner, "__dict__") else {}
        if isinstance(owner, (types.FunctionType, types.ModuleType)):
            names = [key for key, value in attributes.items() if self._looks_up(key, value, False)]
        elif isinstance(owner, type):
            all_names = self._all_of(owner)
            names = [key for key, value in attributes.items() if self._looks_up(key, value, all_names and not key.startswith("__"))]
        elif len(attributes) > _MOST:
            return
        else:
            all_names = self._all_of(type(owner))
            names = [*[key for key, value in attributes.items() if self._looks_up(key, value, all_names)], *self._asked]
            for key, member in _slots(type(owner)):
                if self._looks_up(key, slot(member, owner), all_names):
                    self._slot(owner, key, member, name)
        for key in names:
            self._attribute(owner, attributes, key, name)

    def _all_of(self, cls: type) -> bool:
        """Whether code computes the names of attributes that it looks up on objects of this class."""
        return self._computed or (self._computed_inside and _is_installed(getattr(sys.modules.get(cls.__module__), "__file__", None) or ""))

    def _looks_up(self, key: str, value: Any, everything: bool) -> bool:
        # Code does not call a number: the name was meant for another object.
        return everything or key in self._read or (key in self._called and not isinstance(value, PLAIN))

    def _attribute(self, owner: Any, attributes: Any, key: str, name: str) -> None:
        if (id(owner), key) in self._noted:
            return
        self._noted.add((id(owner), key))
        if isinstance(owner, type):
            place = (attributes, key)
            self.state.class_places.append(place)
            self.state.names[id(place)] = f"{name}.{key}"
            for item in (attributes[key], *_wrapped(attributes[key])):
                self.visit(item, f"{name}.{key}")
        else:
            self._place(attributes, key, f"{name}.{key}")

    def _slot(self, owner: Any, key: str, member: types.MemberDescriptorType, name: str) -> None:
        if (id(owner), key) not in self._noted:
            self._noted.add((id(owner), key))
            place = (member, owner)
            self.state.slots.append(place)
            self.state.names[id(place)] = f"{name}.{key}"
            value = slot(member, owner)
            self.visit(None if value is ABSENT else value, f"{name}.{key}")


class _Looking:
    """Python's functions that look up any attribute. Compares by identity, since objects may not be hashable."""

    _functions = frozenset({id(getattr), id(hasattr), id(vars), id(dir)})

    def __contains__(self, value: Any) -> bool:
        return id(value) in self._functions


_LOOKING = _Looking()


def _of_user(module: str) -> bool:
    """Whether objects of this module may be the user's."""
    root = module.partition(".")[0]
    return root not in _LIBRARIES or module in _NAMESPACES


def _is_installed(path: str) -> bool:
    return any(part in path for part in _INSTALLED)


def _is_set(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # a variable that has no value yet
        return False


def _wrapped(value: Any) -> Iterator[Any]:
    """The function behind a property, a class's method or a cached function, or the object behind a weak reference."""
    if isinstance(value, property):
        yield value.fget
    elif isinstance(value, (staticmethod, classmethod)):
        yield value.__func__
    elif isinstance(value, (functools.cached_property, functools.partialmethod)):
        yield value.func
    elif isinstance(value, weakref.ref):
        yield value()
    elif isinstance(vars(type(value)).get("__dict__"), types.GetSetDescriptorType):
        yield vars(value).get("__wrapped__")  # functools.lru_cache


def _slots(cls: type) -> Iterator[tuple[str, types.MemberDescriptorType]]:
    for base in cls.__mro__:
        for key, member in vars(base).items():
            if isinstance(member, types.MemberDescriptorType):
                yield key, member
