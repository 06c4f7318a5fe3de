"""The Python objects in which a function finds its tensors, and whether they are still what they were: modules, optimizers, closures."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain
from operator import is_
from typing import Any

import torch
from torch.optim.optimizer import Optimizer

from xla_core.runtime.source_location import is_users

_MOST = 10_000  # what holds more is data, not state
_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_KNOWN = (torch.Tensor, torch.nn.Module, Optimizer, dict, list, tuple, types.FunctionType, types.MethodType, functools.partial)


@dataclass(slots=True)
class PythonState:
    """Containers, and what they held (`held`) when this was made. names: of containers, by id, for messages; sizes: of dicts and lists."""

    dicts: list[dict[Any, Any]] = field(default_factory=list)
    lists: list[list[Any]] = field(default_factory=list)
    places: list[tuple[dict[Any, Any], Any]] = field(default_factory=list)
    cells: list[Any] = field(default_factory=list)
    names: dict[int, str] = field(default_factory=dict)
    optimizers: list[Optimizer] = field(default_factory=list)
    modules: list[torch.nn.Module] = field(default_factory=list)
    held: list[Any] = field(default_factory=list)
    sizes: dict[int, int] = field(default_factory=dict)

    def now(self) -> list[Any]:
        """What the containers hold now."""
        return [
            *chain.from_iterable(map(dict.values, self.dicts)),
            *chain.from_iterable(self.lists),
            *[place.get(key) for place, key in self.places],
            *[contents(cell) for cell in self.cells],
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
        start = 0
        for container in (*self.dicts, *self.lists, *self.places, *self.cells):
            size, now = self._part(container)
            if not _all_same(now, self.held[start : start + size]):
                return self.names[id(container)]
            start += size
        return None

    def _part(self, container: Any) -> tuple[int, list[Any]]:
        """How much of `held` was this container's, and what it holds now."""
        if isinstance(container, dict):
            return self.sizes[id(container)], list(container.values())
        if isinstance(container, list):
            return self.sizes[id(container)], list(container)
        return 1, [container[0].get(container[1]) if isinstance(container, tuple) else contents(container)]


def _same(now: Any, held: Any) -> bool:
    if now is held:
        return True
    kind = type(now)
    return kind is type(held) and (kind in _PLAIN and now == held or kind is types.MethodType and now == held)


def _all_same(now: list[Any], held: list[Any]) -> bool:
    return len(now) == len(held) and all(map(_same, now, held))


def contents(cell: Any) -> Any:
    """What a variable of a closure holds; None if it has no value yet."""
    try:
        return cell.cell_contents
    except ValueError:  # a variable that has no value yet
        return None


def python_state(roots: Iterable[tuple[str, Any]]) -> PythonState:
    """The state that can be found from named objects: closures, globals by name, modules, optimizers, and what is in lists and dicts."""
    walk = _Walk()
    for name, root in roots:
        walk.visit(root, name)
    state = walk.state
    state.held = state.now()
    state.sizes = {id(container): len(container) for container in (*state.dicts, *state.lists)}
    return state


class _Walk:
    """Finds containers; each once."""

    def __init__(self) -> None:
        self.state = PythonState()
        self._seen: dict[int, Any] = {}  # keeps what has an id alive

    def visit(self, found: Any, name: str) -> None:
        """Note what `found` is or holds."""
        if found is None or isinstance(found, (torch.Tensor, type, types.ModuleType, *_PLAIN)) or id(found) in self._seen:
            return
        self._seen[id(found)] = found
        if isinstance(found, torch.nn.Module):
            self._module(found, name)
        elif isinstance(found, Optimizer):
            self._optimizer(found, name)
        elif isinstance(found, dict):
            self._dict(found, name)
        elif isinstance(found, list):
            self._list(found, name)
        elif isinstance(found, (tuple, set, frozenset)):
            for item in found:
                self.visit(item, name)
        elif isinstance(found, types.MethodType):
            self.visit(found.__self__, f"{name}.__self__")
            self.visit(found.__func__, name)
        elif isinstance(found, functools.partial):
            for item in (found.func, found.args, found.keywords):
                self.visit(item, name)
        elif isinstance(found, types.FunctionType):
            self._function(found, name)
        else:
            self._object(found, name)

    def _dict(self, found: dict[Any, Any], name: str) -> None:
        if len(found) > _MOST:
            return
        self.state.dicts.append(found)
        self.state.names[id(found)] = name
        for key, value in found.items():
            self.visit(value, f"{name}[{key!r}]" if isinstance(key, (str, int)) else name)

    def _list(self, found: list[Any], name: str) -> None:
        if len(found) > _MOST:
            return
        self.state.lists.append(found)
        self.state.names[id(found)] = name
        for place, value in enumerate(found):
            self.visit(value, f"{name}[{place}]")

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
            self.visit(value, f"{name}.{key}")
        self.visit(type(module).forward, f"{name}.forward")

    def _optimizer(self, optimizer: Optimizer, name: str) -> None:
        self.state.optimizers.append(optimizer)
        attributes = optimizer.__dict__
        for key in ("state", "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"):
            self._place(attributes, key, f"{name}.{key}")
        groups = optimizer.param_groups
        place = (attributes, "param_groups")
        self.state.places.append(place)
        self.state.names[id(place)] = f"{name}.param_groups"
        self.state.lists.append(groups)
        self.state.names[id(groups)] = f"{name}.param_groups"
        for number, group in enumerate(groups):
            for key, value in group.items():
                # Floats, alone or in a tuple, may change: they are inputs (captured/optimizers.py).
                if not isinstance(value, float) and not (isinstance(value, tuple) and any(isinstance(item, float) for item in value)):
                    self._place(group, key, f"{name}.param_groups[{number}][{key!r}]")

    def _function(self, function: types.FunctionType, name: str) -> None:
        if not is_users(function.__code__.co_filename):
            return
        for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self.state.cells.append(cell)
            self.state.names[id(cell)] = variable
            self.visit(contents(cell), variable)
        self.visit(function.__defaults__, name)
        for variable in sorted(set(_names(function.__code__))):
            if variable in function.__globals__:
                self._place(function.__globals__, variable, variable)

    def _object(self, found: Any, name: str) -> None:
        """An object of the user's: of its attributes, those that hold tensors, modules, optimizers, functions or containers of such."""
        attributes = getattr(found, "__dict__", None)
        if not isinstance(attributes, dict) or type(found).__module__.partition(".")[0] in _LIBRARIES:
            return
        for key, value in attributes.items():
            if isinstance(value, _KNOWN):
                self._place(attributes, key, f"{name}.{key}")


_LIBRARIES = ("torch", "torch_xla", "xla_core", "jax", "jaxlib", "numpy", "logging", "threading", "builtins", "collections")


def _names(code: types.CodeType) -> Iterator[str]:
    """The names that a function may look up, those in functions inside of it included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
