"""What a captured call returns, and what it leaves in Python: descriptions in addition to those of `engine/tracing/origins.py`."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import torch

from xla_core.base.private_torch import TreeSpec, register_node, tree_flatten, tree_map, tree_unflatten
from xla_core.engine.tracing.numbers import Expression, Number
from xla_core.features.captured.places import ABSENT, instance_dict
from xla_core.features.captured.user_code import is_class_of_user

PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
"""Returned objects that are the same at each call."""
_CONTAINERS: tuple[type[Any], ...] = (OrderedDict, dict, list)


@dataclass(frozen=True, slots=True)
class Existing:
    """An existing tensor that the call returns: argument `index`, or `tensor` if `index` is None. identity: the tensor's id."""

    index: int | None
    identity: int = 0
    tensor: Any = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class ArgumentContainer:
    """A dict or list that is container `index` among the arguments, or the object that is number `index` of those taken apart "
    "(`opened`)."""

    index: int
    opened: bool = False


@dataclass(frozen=True, slots=True)
class GradientOf:
    """The gradient of leaf `index` after the call."""

    index: int


@dataclass(frozen=True, slots=True)
class Again:
    """The tensor that is result `index`, too."""

    index: int


@dataclass(frozen=True, slots=True)
class Computed:
    """A number that is computed from those that the call takes as inputs. value: what it was."""

    expression: Expression
    value: Any = field(default=None, compare=False)


RETURNED = object()
"""Stands for what the call returns, where it leaves the same object in Python, too."""


class Made:
    """An object that a call makes: an instance of a class with these attributes and items. As a node of a tree it becomes such an instance.

    keys: of the items, if it is a dict. own: whether its items are its attributes.
    """

    def __init__(self, cls: type, attributes: dict[str, Any], items: list[Any], keys: tuple[Any, ...] | None, own: bool) -> None:
        self.cls, self.attributes, self.items, self.keys, self.own = cls, attributes, items, keys, own


def _taken_apart(made: Made) -> tuple[list[Any], Any]:
    return [*made.attributes.values(), *made.items], (made.cls, tuple(made.attributes), made.keys, made.own)


def _made(values: Any, context: Any) -> Any:
    cls, names, keys, own = context
    base: Any = next((base for base in _CONTAINERS if issubclass(cls, base)), object)
    instance = base.__new__(cls)
    if own:
        object.__setattr__(instance, "__dict__", instance)
    remaining = list(values)
    for name in names:
        object.__setattr__(instance, name, remaining.pop(0))
    if keys is not None:
        for key, value in zip(keys, remaining, strict=True):
            base.__setitem__(instance, key, value)
    elif remaining:
        base.extend(instance, remaining)
    return instance


register_node(Made, _taken_apart, _made)


def flatten(value: Any, is_old: Callable[[Any], bool]) -> tuple[list[Any], TreeSpec]:
    """Flatten what a call returns: nested lists, tuples, dicts and objects that it made. is_old: whether an object was there before."""

    def whole(node: Any) -> bool:
        return isinstance(node, torch.Size) or (isinstance(node, _CONTAINERS) and is_old(node))

    return tree_flatten(tree_map(lambda leaf: _opened(leaf, is_old, ()), value, is_leaf=whole), is_leaf=whole)


def flatten_values(value: Any, opened: Collection[type]) -> tuple[list[Any], TreeSpec]:
    """Flatten what a call takes: nested lists, tuples, dicts and objects of these classes."""
    if not opened:
        return tree_flatten(value)
    return tree_flatten(tree_map(lambda leaf: _opened(leaf, lambda each: type(each) not in opened, ()), value))


def replaced(value: Any, replace: Callable[[Any], Any]) -> Any:
    """The value with other leaves; the same object if none is another one."""
    leaves, tree = tree_flatten(value)
    others = [replace(leaf) for leaf in leaves]
    return value if all(map(lambda one, other: one is other, leaves, others)) else tree_unflatten(others, tree)


def with_true_numbers(value: Any, seen: set[int]) -> Any:
    """A value without traced numbers, also deep in containers and in objects of users, which are changed in place. seen: ids of these."""
    if isinstance(value, Number):
        return value.true
    if isinstance(value, (torch.Tensor, torch.nn.Module, type, *PLAIN)) or id(value) in seen:
        return value
    seen.add(id(value))

    def true(item: Any) -> Any:
        return with_true_numbers(item, seen)

    if isinstance(value, tuple):
        items = [true(item) for item in value]
        same_items = all(one is other for one, other in zip(items, value, strict=True))
        return value if same_items else type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        pairs = [(true(key), true(item)) for key, item in dict.items(value)]
        if any(one is not key or other is not value[key] for (one, other), key in zip(pairs, list(value), strict=True)):
            value.clear()
            for key, item in pairs:  # the `update` of a Counter counts
                value[key] = item
    elif isinstance(value, (list, deque)):
        for index, item in enumerate(value):
            value[index] = true(item)
    elif isinstance(value, set):
        members = [true(item) for item in value]
        value.clear()
        value.update(members)
    attributes = instance_dict(value)
    if attributes is not None and attributes is not value and is_class_of_user(type(value)):
        for name, item in list(attributes.items()):
            attributes[name] = true(item)
    return value


def attributes_of(value: Any) -> dict[str, Any]:
    """The attributes of an object, those of a dataclass in their order; none if its items are its attributes."""
    attributes = instance_dict(value) or {}
    if attributes is value:
        return {}
    if is_dataclass(value):
        return {each.name: getattr(value, each.name) for each in fields(value) if hasattr(value, each.name)} | attributes
    return attributes


def _opened(leaf: Any, is_old: Callable[[Any], bool], around: tuple[int, ...]) -> Any:
    """A leaf as a node, if it is an object that can be made again. around: the ids of the objects that it is in."""
    if isinstance(leaf, (torch.Tensor, Number, type, *PLAIN)) or leaf is ABSENT or leaf is RETURNED or is_old(leaf) or id(leaf) in around:
        return leaf
    attributes = attributes_of(leaf)
    own = instance_dict(leaf) is leaf
    items, keys = _items(leaf)
    if items is None and (not attributes or "__new__" in vars(type(leaf))):
        return leaf

    def opened(item: Any) -> Any:
        return tree_map(lambda inner: _opened(inner, is_old, (*around, id(leaf))), item)

    return Made(type(leaf), {name: opened(item) for name, item in attributes.items()}, list(map(opened, items or ())), keys, own)


def _items(value: Any) -> tuple[list[Any] | None, tuple[Any, ...] | None]:
    """The items of an object of a class derived from dict or list, and the keys; None if there are none."""
    if isinstance(value, dict):
        return list(dict.values(value)), tuple(dict.keys(value))
    return (list(list.__iter__(value)), None) if isinstance(value, list) else (None, None)
