"""Finds the Python objects in which a function looks: closures, globals, attributes, modules, optimizers, and what is in lists and dicts.

Attributes are found by name: of an object that can be reached, those count whose names the code that can be reached looks up, on whatever
object. Where names are computed, all count.
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

_MOST = 10_000  # what holds more is data, not state
_CONTAINERS = (torch.Tensor, torch.nn.Module, Optimizer, dict, list, tuple, types.FunctionType, types.MethodType, functools.partial)
_ITEMS = (list, set, deque)
_LIBRARIES = frozenset({"torch", "torch_xla", "xla_core", "jax", "jaxlib", "numpy", *sys.stdlib_module_names})
_NAMESPACES = frozenset({"argparse", "optparse", "types"})  # have classes whose objects are the user's data
_INSTALLED = ("/site-packages/", "/dist-packages/")
# Python calls the other methods of such names by itself; these not, or not while a step computes.
_SILENT = frozenset(
    "__init__ __new__ __init_subclass__ __class_getitem__ __repr__ __str__ __reduce__ __reduce_ex__ __getstate__ __setstate__ "
    "__setattr__ __delattr__ __del__ __dir__ __sizeof__ __copy__ __deepcopy__".split()
)


def python_state(roots: Iterable[tuple[str, Any]]) -> PythonState:
    """The state that can be found from named objects."""
    search = _Search()
    for name, root in roots:
        search.visit(root, name)
    search.finish()
    search.state.hold()
    return search.state


class _Search:
    """Finds containers; each once."""

    def __init__(self) -> None:
        self.state = PythonState()
        self._seen: dict[int, Any] = {}  # keeps what has an id alive
        self._read: set[str] = set()
        self._called: set[str] = set()
        self._asked: set[str] = set()
        self._computed = False
        self._computed_inside = False  # by libraries, of their own objects
        self._owners: list[tuple[Any, str]] = []  # whose attributes are looked up
        self._noted: set[tuple[int, str]] = set()  # attributes, by the id of their owner

    def visit(self, found: Any, name: str) -> None:
        """Note what `found` is or holds."""
        if found is None or isinstance(found, (torch.Tensor, *PLAIN)) or id(found) in self._seen:
            return
        self._seen[id(found)] = found
        if found in _LOOKING:
            self._computed = True
        elif isinstance(found, types.FunctionType):
            self._function(found, name)
        elif isinstance(found, type):
            self._class(found)
            for each in found.__mro__ if _of_user(found.__module__) else ():
                for key in ("__init__", "__new__"):  # it may be called
                    self.visit(vars(each).get(key), f"{each.__name__}.{key}")
        elif isinstance(found, types.ModuleType):
            if _of_user(found.__name__) and not _is_installed(getattr(found, "__file__", None) or ""):
                self._owners.append((found, name))
        elif isinstance(found, torch.nn.Module):
            self._module(found, name)
        elif isinstance(found, Optimizer):
            self._optimizer(found, name)
        else:
            self._data(found, name)

    def _data(self, found: Any, name: str) -> None:
        """A container, a wrapper of something, or an object of a class of the user's."""
        if isinstance(found, dict):
            self._dict(found, name)
        elif isinstance(found, _ITEMS):
            self._list(found, name)
        elif isinstance(found, (tuple, frozenset)):
            for item in found:
                self.visit(item, name)
        elif isinstance(found, types.MethodType):
            self.visit(found.__self__, f"{name}.__self__")
            self.visit(found.__func__, name)
        elif isinstance(found, functools.partial):
            for item in (found.func, found.args, found.keywords):
                self.visit(item, name)
        else:
            for item in _wrapped(found):
                self.visit(item, name)
        self._object(found, name)

    def finish(self) -> None:
        """Note the attributes of all that was found, by the names that all that was found looks up."""
        known = None
        while known != (known := (len(self._owners), len(self._read), len(self._called), self._computed, self._computed_inside)):
            for owner, name in self._owners:  # grows meanwhile
                self._attributes(owner, name)

    def _dict(self, found: dict[Any, Any], name: str, keyed: bool = True) -> None:
        if dict.__len__(found) > _MOST:
            return
        self._seen[id(found)] = found
        self.state.dicts.append(found)
        if keyed:
            self.state.keyed.append(found)
        self.state.names[id(found)] = name
        for key, value in dict.items(found):
            self.visit(value, f"{name}[{key!r}]" if isinstance(key, (str, int)) else name)

    def _list(self, found: Any, name: str) -> None:
        items = own_items(found)
        if len(items) > _MOST:
            return
        self.state.lists.append(found)
        self.state.names[id(found)] = name
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
        # Not as other lists and dicts: the floats in groups may change.
        self._seen.update((id(each), each) for each in (groups, *groups, optimizer.defaults))
        for key in ("state", "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks", "param_groups"):
            self._place(attributes, key, f"{name}.{key}")
        self.state.lists.append(groups)
        self.state.names[id(groups)] = f"{name}.param_groups"
        for number, group in enumerate(groups):
            for key, value in group.items():
                # Floats, alone or in a tuple, may change: they are inputs (features/captured/optimizers.py).
                if not isinstance(value, float) and not (isinstance(value, tuple) and any(isinstance(item, float) for item in value)):
                    self._place(group, key, f"{name}.param_groups[{number}][{key!r}]")
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

    def _class(self, found: type) -> None:
        """What instances of a class find there, and the methods that Python calls by itself."""
        for each in found.__mro__:
            if not _of_user(each.__module__) or (id(each), "") in self._noted:
                continue
            self._noted.add((id(each), ""))
            self._owners.append((each, each.__name__))
            for key, value in vars(each).items():
                if key.startswith("__") and key.endswith("__") and key not in _SILENT and isinstance(value, types.FunctionType):
                    if not (key in ("__eq__", "__hash__") and _is_installed(value.__code__.co_filename)):
                        self.visit(value, f"{each.__name__}.{key}")

    def _object(self, found: Any, name: str) -> None:
        """An object of the user's: attributes that hold tensors, modules, functions or containers, and others that are looked up."""
        kind = type(found)
        if not _of_user(kind.__module__):
            return
        self._class(kind)
        attributes = getattr(found, "__dict__", None)
        if isinstance(attributes, dict):
            self._owners.append((found, name))
            self.state.counted.append(attributes)
            self.state.names[id(attributes)] = name
            for key, value in tuple(attributes.items()):
                if isinstance(value, _CONTAINERS):
                    self._attribute(found, attributes, key, name)
        elif kind.__dictoffset__ == 0:
            self._owners.append((found, name))

    def _attributes(self, owner: Any, name: str) -> None:
        held = vars(owner) if hasattr(owner, "__dict__") else {}
        if isinstance(owner, (types.FunctionType, types.ModuleType)):
            names = [key for key, value in held.items() if self._looks_up(key, value, False)]
        elif isinstance(owner, type):
            everything = self._all_of(owner)
            names = [key for key, value in held.items() if self._looks_up(key, value, everything and not key.startswith("__"))]
        elif len(held) > _MOST:
            return
        else:
            everything = self._all_of(type(owner))
            names = [*[key for key, value in held.items() if self._looks_up(key, value, everything)], *self._asked]
            for key, member in _slots(type(owner)):
                if self._looks_up(key, slot(member, owner), everything):
                    self._slot(owner, key, member, name)
        for key in names:
            self._attribute(owner, held, key, name)

    def _all_of(self, kind: type) -> bool:
        """Whether the names of attributes are computed that are looked up on objects of this class."""
        return self._computed or (
            self._computed_inside and _is_installed(getattr(sys.modules.get(kind.__module__), "__file__", None) or "")
        )

    def _looks_up(self, key: str, value: Any, everything: bool) -> bool:
        # What is called is no number: that of another object was meant.
        return everything or key in self._read or (key in self._called and not isinstance(value, PLAIN))

    def _attribute(self, owner: Any, held: Any, key: str, name: str) -> None:
        if (id(owner), key) in self._noted:
            return
        self._noted.add((id(owner), key))
        if isinstance(owner, type):
            place = (held, key)
            self.state.class_places.append(place)
            self.state.names[id(place)] = f"{name}.{key}"
            for item in (held[key], *_wrapped(held[key])):
                self.visit(item, f"{name}.{key}")
        else:
            self._place(held, key, f"{name}.{key}")

    def _slot(self, owner: Any, key: str, member: types.MemberDescriptorType, name: str) -> None:
        if (id(owner), key) not in self._noted:
            self._noted.add((id(owner), key))
            place = (member, owner)
            self.state.slots.append(place)
            self.state.names[id(place)] = f"{name}.{key}"
            value = slot(member, owner)
            self.visit(None if value is ABSENT else value, f"{name}.{key}")


class _Looking:
    """The functions of Python that look up any attribute, wherever they are held."""

    _functions = frozenset({id(getattr), id(hasattr), id(vars), id(dir)})

    def __contains__(self, found: Any) -> bool:
        return id(found) in self._functions


_LOOKING = _Looking()


def _of_user(module: str) -> bool:
    """Whether what is of this module may be the user's."""
    root = module.partition(".")[0]
    return root not in _LIBRARIES or module in _NAMESPACES


def _is_installed(path: str) -> bool:
    return any(part in path for part in _INSTALLED)


def _is_set(cell: types.CellType) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:  # a variable that has no value yet
        return False


def _wrapped(found: Any) -> Iterator[Any]:
    """What is behind a property, a method of a class, a cached function, or a reference."""
    if isinstance(found, property):
        yield found.fget
    elif isinstance(found, (staticmethod, classmethod)):
        yield found.__func__
    elif isinstance(found, (functools.cached_property, functools.partialmethod)):
        yield found.func
    elif isinstance(found, weakref.ref):
        yield found()
    elif isinstance(vars(type(found)).get("__dict__"), types.GetSetDescriptorType):
        yield vars(found).get("__wrapped__")  # functools.lru_cache


def _slots(kind: type) -> Iterator[tuple[str, types.MemberDescriptorType]]:
    for each in kind.__mro__:
        for key, member in vars(each).items():
            if isinstance(member, types.MemberDescriptorType):
                yield key, member
