"""A nesting of Python values as JSON, and back, without running anything (FORMAT.md §5). Tensors are names."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch

from xla_serialization.errors import DamagedCheckpointError, MismatchError, UnsavableError
from xla_serialization.format.manifest import Tree

_DEEPEST = 200
"""Containers in each other, at most."""
_FACTORIES: Mapping[str, Callable[[], Any]] = {made.__name__: made for made in (bool, dict, float, int, list, set, str, tuple)}
_SEQUENCES: Mapping[str, Callable[[Iterable[Any]], Any]] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
_LEAVES = frozenset({"tensor", "tensor, requires grad", "parameter", "parameter, frozen", "array", "scalar"})

Name = Callable[[torch.Tensor, tuple[str, ...]], str]
"""Takes a tensor to be saved, and the keys on the way to it; gives the name under which it is."""
Find = Callable[[str], torch.Tensor]


def encode(data: Any, name: Name) -> Tree:
    """The tree of a nesting. Raises UnsavableError, which says where, for what has no place in one."""
    return _Encoder(name).tree(data, ())


def where(keys: tuple[str, ...]) -> str:
    """A place in a nesting, for messages."""
    return " → ".join(keys) or "the value itself"


class _Encoder:
    def __init__(self, name: Name) -> None:
        self._name = name
        self._around: set[int] = set()

    def tree(self, value: Any, keys: tuple[str, ...]) -> Tree:
        if value is None or type(value) in (bool, int, str):
            return value
        if type(value) is float:
            return value if math.isfinite(value) else {"float": str(value)}
        if isinstance(value, torch.Tensor):
            return {_kind_of(value): self._name(value, keys)}
        if isinstance(value, (np.ndarray, np.generic)):
            return {"array" if isinstance(value, np.ndarray) else "scalar": self._name(_from_numpy(value, keys), keys)}
        plain = _plain(value)
        if plain is not None:
            return plain
        if id(value) in self._around:
            raise UnsavableError(f"{where(keys)}: a container that contains itself cannot be saved")
        if len(keys) >= _DEEPEST:
            raise UnsavableError(f"more than {_DEEPEST} containers in each other: save a flatter nesting")
        self._around.add(id(value))
        try:
            return self._container(value, keys)
        finally:
            self._around.discard(id(value))

    def _container(self, value: Any, keys: tuple[str, ...]) -> Tree:
        kind = type(value)
        if kind.__name__ in _SEQUENCES and kind is _SEQUENCES[kind.__name__]:
            return {kind.__name__: self._items(value, keys)}
        if kind is dict:
            return {"dict": self._pairs(value, keys)}
        if kind is OrderedDict:
            pairs = self._pairs(value, keys)
            metadata = getattr(value, "_metadata", None)
            if metadata is None:
                return {"ordered dict": pairs}
            return {"state dict": {"items": pairs, "metadata": self.tree(metadata, (*keys, "_metadata"))}}
        if kind is Counter:
            return {"counter": self._pairs(value, keys)}
        if kind is defaultdict:
            factory = value.default_factory
            if factory is not None and _FACTORIES.get(getattr(factory, "__name__", "")) is not factory:
                raise UnsavableError(f"{where(keys)}: a defaultdict of {factory!r} cannot be saved; save dict(…) of it")
            return {"default dict": {"items": self._pairs(value, keys), "factory": None if factory is None else factory.__name__}}
        if kind is deque:
            return {"deque": {"items": self._items(value, keys), "maxlen": value.maxlen}}
        raise UnsavableError(
            f"{where(keys)}: a {kind.__module__}.{kind.__qualname__} cannot be saved; save its state_dict(), or its fields in a dict"
        )

    def _items(self, values: Iterable[Any], keys: tuple[str, ...]) -> list[Tree]:
        return [self.tree(value, (*keys, str(number))) for number, value in enumerate(values)]

    def _pairs(self, values: Mapping[Any, Any], keys: tuple[str, ...]) -> list[Tree]:
        return [[self.tree(key, (*keys, "a key")), self.tree(value, (*keys, str(key)))] for key, value in values.items()]


def _kind_of(value: torch.Tensor) -> str:
    if isinstance(value, torch.nn.Parameter):
        return "parameter" if value.requires_grad else "parameter, frozen"
    return "tensor, requires grad" if value.requires_grad else "tensor"


def _from_numpy(value: np.ndarray[Any, Any] | np.generic, keys: tuple[str, ...]) -> torch.Tensor:
    try:
        return torch.from_numpy(np.array(value, order="C"))
    except TypeError as error:
        raise UnsavableError(f"{where(keys)}: a NumPy array of {value.dtype} cannot be saved; save numbers") from error


def _plain(value: Any) -> Tree | None:
    """Of values that contain no others."""
    kind = type(value)
    if kind is complex:
        parts = [part if math.isfinite(part) else {"float": str(part)} for part in (value.real, value.imag)]
        return {"complex": parts}
    if kind in (bytes, bytearray):
        return {kind.__name__: base64.b64encode(value).decode()}
    if kind is torch.Size:
        return {"size": list(value)}
    if kind in (torch.dtype, torch.device, torch.layout):
        return {kind.__name__: str(value).removeprefix("torch.")}
    if kind is range:
        return {"range": [value.start, value.stop, value.step]}
    if kind is slice and all(part is None or type(part) is int for part in (value.start, value.stop, value.step)):
        return {"slice": [value.start, value.stop, value.step]}
    if isinstance(value, PurePath):
        return {"path": value.as_posix()}
    return None


def decode(tree: Tree, find: Find, path: str) -> Any:
    """The nesting of a tree. `path`: of the index, for messages. Raises DamagedCheckpointError for a tree of no kind."""
    try:
        return _value(tree, find, 0)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, binascii.Error) as error:
        raise DamagedCheckpointError(f"{path}: the tree does not follow the format: {error}") from error


def matched(mine: Tree, theirs: Tree) -> Iterator[tuple[str, str]]:
    """Names of tensors in the same places of two trees, the first's and the second's. Raises MismatchError where the trees differ."""
    yield from _matched(mine, theirs, ())


def _matched(mine: Tree, theirs: Tree, keys: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    here, there = _leaf_name(mine), _leaf_name(theirs)
    if here is not None and there is not None:
        yield here, there
    elif here is not None or there is not None:
        raise MismatchError(
            f"{where(keys)}: a tensor on one side only, in {'the checkpoint' if here is None else 'what it is loaded into'}"
        )
    elif isinstance(mine, dict) and isinstance(theirs, dict) and mine.keys() == theirs.keys():
        ((kind, inside),) = mine.items()
        yield from _matched_inside(kind, inside, theirs[kind], keys)


def _matched_inside(kind: str, mine: Tree, theirs: Tree, keys: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    if kind in ("state dict", "default dict"):
        kind, mine, theirs = "dict", mine["items"], theirs["items"]
    if kind in ("dict", "ordered dict", "counter"):
        here, there = ({json.dumps(key): value for key, value in pairs} for pairs in (mine, theirs))
        if here.keys() != there.keys():
            only = [f"only in {side}: {', '.join(sorted(found))}" for side, found in _sides(here.keys(), there.keys()) if found]
            raise MismatchError(f"{where(keys)}: other keys; {'; '.join(only)}")
        for key, value in here.items():
            yield from _matched(value, there[key], (*keys, key.strip('"')))
    elif kind in ("list", "tuple", "deque"):
        one, other = ((inside["items"] if kind == "deque" else inside) for inside in (mine, theirs))
        if len(one) != len(other):
            raise MismatchError(f"{where(keys)}: {len(other)} items in the checkpoint, {len(one)} in what it is loaded into")
        for number, pair in enumerate(zip(one, other, strict=True)):
            yield from _matched(*pair, (*keys, str(number)))


def _sides(here: Set[str], there: Set[str]) -> list[tuple[str, Set[str]]]:
    return [("the checkpoint", there - here), ("what it is loaded into", here - there)]


def _leaf_name(tree: Tree) -> str | None:
    if isinstance(tree, dict) and len(tree) == 1:
        ((kind, name),) = tree.items()
        if kind in _LEAVES and isinstance(name, str):
            return name
    return None


def _value(tree: Tree, find: Find, depth: int) -> Any:
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree
    if not isinstance(tree, dict) or len(tree) != 1:
        raise ValueError(f"{str(tree)[:60]} is nothing that a tree holds")
    if depth > 2 * _DEEPEST:
        raise ValueError(f"more than {_DEEPEST} containers are in each other")
    ((kind, inside),) = tree.items()
    if kind in _LEAVES:
        return _leaf(kind, find(inside))
    if kind in _SEQUENCES:
        return _SEQUENCES[kind](_values(inside, find, depth))
    if kind in ("dict", "ordered dict", "counter"):
        maker: Any = {"dict": dict, "ordered dict": OrderedDict, "counter": Counter}[kind]
        return maker(dict(_pairs(inside, find, depth)))
    if kind == "state dict":
        found: Any = OrderedDict(_pairs(inside["items"], find, depth))
        found._metadata = _value(inside["metadata"], find, depth + 1)
        return found
    if kind == "default dict":
        factory = None if inside["factory"] is None else _FACTORIES[inside["factory"]]
        return defaultdict(factory, _pairs(inside["items"], find, depth))
    if kind == "deque":
        return deque(_values(inside["items"], find, depth), inside["maxlen"])
    return _PLAIN[kind](inside)


def _values(trees: Tree, find: Find, depth: int) -> list[Any]:
    if not isinstance(trees, list):
        raise ValueError(f"{str(trees)[:60]} is no list")
    return [_value(one, find, depth + 1) for one in trees]


def _pairs(trees: Tree, find: Find, depth: int) -> list[tuple[Any, Any]]:
    if not isinstance(trees, list):
        raise ValueError(f"{str(trees)[:60]} is no list of pairs")
    return [(_value(key, find, depth + 1), _value(value, find, depth + 1)) for key, value in trees]


def _leaf(kind: str, tensor: torch.Tensor) -> Any:
    if kind == "array":
        return tensor.cpu().numpy()
    if kind == "scalar":
        return tensor.cpu().numpy()[()]
    if kind.startswith("parameter"):
        return torch.nn.Parameter(tensor, requires_grad=kind == "parameter")
    return tensor.requires_grad_() if kind == "tensor, requires grad" else tensor


def _named(kind: type) -> Callable[[str], Any]:
    """`torch.float32` of `float32`, and no other attribute of torch."""

    def find(name: str) -> Any:
        found = getattr(torch, name)
        if type(found) is not kind:
            raise ValueError(f"torch.{name} is no {kind.__name__}")
        return found

    return find


def _decoded(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _special(text: str) -> float:
    if text not in ("nan", "inf", "-inf"):
        raise ValueError(f"{text!r} is no special float")
    return float(text)


def _number(tree: Tree) -> float:
    return _special(tree["float"]) if isinstance(tree, dict) else float(tree)


def _integers(parts: Tree, none: bool = False) -> list[Any]:
    if not isinstance(parts, list) or not all(type(part) is int or none and part is None for part in parts):
        raise ValueError(f"{str(parts)[:60]} are no integers")
    return parts


_PLAIN: Mapping[str, Callable[[Any], Any]] = {
    "float": _special,
    "complex": lambda parts: complex(*map(_number, parts)),
    "bytes": _decoded,
    "bytearray": lambda text: bytearray(_decoded(text)),
    "size": lambda sizes: torch.Size(_integers(sizes)),
    "dtype": _named(torch.dtype),
    "layout": _named(torch.layout),
    "device": torch.device,
    "range": lambda parts: range(*_integers(parts)),
    "slice": lambda parts: slice(*_integers(parts, none=True)),
    "path": Path,
}
