"""Walk the nestings that users put tensors in: dicts (keys and values), lists, tuples, sets, DataWrappers and plain objects.

A `Survey` visits everything below a value once, in a fixed order, and can rebuild the nesting around replaced leaves
without touching the original. Sharing and cycles survive. Tensors, classes, functions and modules are never opened.
"""

from __future__ import annotations

import copy
import types
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

import torch

_CLOSED = (torch.Tensor, type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType, types.MethodType)


class DataWrapper:
    """Base of user classes whose tensors are not attributes; subclass it and define both methods."""

    def get_tensors(self) -> Any:
        """The tensors inside, nested in any way."""
        raise NotImplementedError(f"{type(self).__name__} must define get_tensors()")

    def from_tensors(self, tensors: Any) -> Any:
        """A new wrapper around `tensors`, which are nested as get_tensors() returned them."""
        raise NotImplementedError(f"{type(self).__name__} must define from_tensors()")


def _children(value: Any) -> list[Any]:
    """The direct children of `value`; empty for leaves."""
    if isinstance(value, dict):
        return [part for item in value.items() for part in item]
    if isinstance(value, (list, tuple, set, frozenset, deque)):
        return list(value)
    if isinstance(value, DataWrapper):
        return [value.get_tensors()]
    if hasattr(value, "__dict__") and not isinstance(value, _CLOSED):
        return list(vars(value).values())
    return []


def _label(value: Any, index: int) -> str:
    """The label of child `index` of `value`, for paths."""
    if isinstance(value, dict):
        key = list(value)[index // 2]
        return f"[{key!r}]" if index % 2 else f".key({key!r})"
    if isinstance(value, (list, tuple, deque)):
        return f"[{index}]"
    if isinstance(value, (set, frozenset)):
        return f".item({index})"
    return ".get_tensors()" if isinstance(value, DataWrapper) else f".{list(vars(value))[index]}"


class Survey:
    """Everything below `root` that `select` accepts, each object once, in the order in which they are found."""

    def __init__(self, root: Any, select: Callable[[Any], bool]) -> None:
        self.root = root
        self.leaves: list[Any] = []
        self._parts: dict[int, tuple[Any, list[Any]]] = {}  # by id; keeps results of get_tensors() alive, so that ids stay unique
        self._met: dict[int, tuple[Any, int]] = {}  # by id: the parent where it was met first, and its index there
        todo: list[tuple[Any, Any, int]] = [(root, None, 0)]
        while todo:
            value, parent, index = todo.pop()
            if id(value) in self._parts:
                continue
            self._met[id(value)] = (parent, index)
            chosen = select(value)
            parts = [] if chosen else _children(value)
            self._parts[id(value)] = (value, parts)
            if chosen:
                self.leaves.append(value)
            todo.extend((parts[i], value, i) for i in reversed(range(len(parts))))

    def path(self, value: Any) -> str:
        """The path at which `value` was met first, such as `obj['model'][2].weight`."""
        labels: list[str] = []
        while value is not self.root:
            value, index = self._met[id(value)]
            labels.append(_label(value, index))
        return "obj" + "".join(reversed(labels))

    def rebuild(self, results: Iterable[Any]) -> Any:
        """The nesting with `results` in place of the leaves. Objects and DataWrappers that hold no leaf are kept as they are."""
        done = {id(leaf): result for leaf, result in zip(self.leaves, results, strict=True)}
        return self._rebuild(self.root, done, self._holders())

    def _holders(self) -> set[int]:
        """The ids of all objects from which a leaf can be reached."""
        parents: dict[int, list[int]] = {}
        for key, (_, parts) in self._parts.items():
            for part in parts:
                parents.setdefault(id(part), []).append(key)
        holders: set[int] = set()
        todo = [id(leaf) for leaf in self.leaves]
        while todo:
            fresh = [key for key in parents.get(todo.pop(), ()) if key not in holders]
            holders.update(fresh)
            todo.extend(fresh)
        return holders

    def _rebuild(self, value: Any, done: dict[int, Any], holders: set[int]) -> Any:
        if id(value) in done:
            return done[id(value)]
        parts = self._parts[id(value)][1]
        # Mutable objects are entered into `done` before their children: every cycle passes through one, and so closes.
        if isinstance(value, (tuple, frozenset)):
            items = [self._rebuild(part, done, holders) for part in parts]
            same = all(new is old for new, old in zip(items, parts, strict=True))
            return done.setdefault(id(value), value if same else _immutable_like(value, items))
        if isinstance(value, (dict, list, set, deque)):
            result = done[id(value)] = copy.copy(value)
            _refill(result, parts, [self._rebuild(part, done, holders) for part in parts])
            return result
        if id(value) not in holders:
            return value
        if isinstance(value, DataWrapper):
            return done.setdefault(id(value), value.from_tensors(self._rebuild(parts[0], done, holders)))
        result = done[id(value)] = copy.copy(value)
        for name, part in zip(list(vars(value)), parts, strict=True):
            result.__dict__[name] = self._rebuild(part, done, holders)
        return result


def _immutable_like(value: tuple[Any, ...] | frozenset[Any], items: list[Any]) -> Any:
    cls: Any = type(value)
    return cls._make(items) if hasattr(cls, "_make") else cls(items)


def _refill(result: Any, old: list[Any], new: list[Any]) -> None:
    """Put `new` in place of `old` into a shallow copy of a mutable container (dicts: keys and values in turn)."""
    if isinstance(result, dict):
        if any(key is not before for key, before in zip(new[::2], old[::2], strict=True)):
            result.clear()
        for key, item in zip(new[::2], new[1::2], strict=True):
            result[key] = item
    elif isinstance(result, list):
        result[:] = new
    else:
        result.clear()
        for item in new:
            (result.add if isinstance(result, set) else result.append)(item)


def for_each_instance(value: Any, select_fn: Callable[[Any], bool], fn: Callable[[Any], object]) -> None:
    """Call `fn` on everything in the nesting that `select_fn` accepts, each object once."""
    for leaf in Survey(value, select_fn).leaves:
        fn(leaf)


def for_each_instance_rewrite(value: Any, select_fn: Callable[[Any], bool], fn: Callable[[Any], Any]) -> Any:
    """The nesting with `fn(x)` in place of everything that `select_fn` accepts; visits as for_each_instance does."""
    survey = Survey(value, select_fn)
    return survey.rebuild([fn(leaf) for leaf in survey.leaves])
