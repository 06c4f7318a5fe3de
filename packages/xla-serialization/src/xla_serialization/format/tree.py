"""Turn a nesting of Python values into JSON and back, without running code from files (FORMAT.md §5). Tensors become names."""

from __future__ import annotations

import base64
import functools
import math
import re
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable, Container, Iterable, Mapping
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch

from xla_serialization.errors import CheckpointError, DamagedCheckpointError, UnsavableError
from xla_serialization.format.dtypes import DTYPES, in_numpy
from xla_serialization.format.limits import check_hashes, shown
from xla_serialization.format.manifest import TensorEntry, Tree
from xla_serialization.format.per_process import HOLDER, PerProcess

_DEEPEST = 100
"""Depth of nested containers, at most: JSON and this module make some calls for each, of the 1000 that Python allows."""
_PLAIN_BITS = 64
"""Bits of an integer that is a number in JSON, at most: Python limits the digits it reads and writes, and other programs take no more."""
_LONGEST_REASON = 500
# Python reads names of files that are not UTF-8 with these characters; no file in UTF-8 can hold them.
_SURROGATE = re.compile("[\ud800-\udfff]")
_LIKE_A_PIECE = re.compile(r".*@[\d,]+", re.DOTALL)
_FACTORIES: Mapping[str, Callable[[], Any]] = {made.__name__: made for made in (bool, dict, float, int, list, set, str, tuple)}
_SEQUENCES: Mapping[str, Callable[[Iterable[Any]], Any]] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
LEAVES = frozenset({"tensor", "tensor, requires grad", "parameter", "parameter, frozen", "array", "scalar"})

Name = Callable[[torch.Tensor, tuple[str, ...]], str]
"""Takes a tensor to be saved, and the keys that lead to it; gives the name under which it is saved."""
Marked = Callable[[Name, int], Tree]
"""Encodes the value of a `PerProcess`; takes the function that names tensors, and the process's index, which is part of their names."""
Find = Callable[[str], torch.Tensor]
Leaf = Callable[[str, str], Any]
"""Takes the kind and the name of a tensor in a tree; gives the value for that place."""


def encode(data: Any, name: Name) -> tuple[Tree, list[Marked]]:
    """Encode a nesting as a tree, with an index for each `PerProcess`; and give the functions that encode their values afterwards.

    Raises UnsavableError, which says where, for a value that a tree cannot hold.
    """
    encoder = _TreeEncoder(name)
    tree = encoder.tree(data, ())
    return tree, [functools.partial(_encode_own, value, keys) for value, keys in encoder.marked]


def _encode_own(value: Any, keys: tuple[str, ...], name: Name, process: int) -> Tree:
    return _TreeEncoder(name, inside=True).tree(value, (*keys, str(process)))


def where(keys: tuple[str, ...]) -> str:
    """Describe a place in a nesting for messages."""
    return " → ".join(keys) or "the value itself"


def free_name(keys: tuple[str, ...], taken: Container[str]) -> str:
    """Name a tensor by the keys that lead to it, with a suffix if that name is taken (FORMAT.md §3)."""
    base = _SURROGATE.sub("�", ".".join(keys)) or "tensor"
    free = base
    suffix = 1
    # safetensors uses `__metadata__` in its header, and pieces of sharded tensors have names like `name@0,8`.
    while free in taken or free == "__metadata__" or _LIKE_A_PIECE.fullmatch(free):
        suffix += 1
        free = f"{base}~{suffix}"
    return free


class _TreeEncoder:
    def __init__(self, name: Name, inside: bool = False) -> None:
        self._name, self._in_per_process = name, inside
        self.marked: list[tuple[Any, tuple[str, ...]]] = []
        # Ids of the containers around a value only: one container may stand at several places side by side.
        self._enclosing: set[int] = set()

    def tree(self, value: Any, keys: tuple[str, ...]) -> Tree:
        if value is None or type(value) is bool:
            return value
        # No subclasses: np.float64 is one, and is saved as a NumPy scalar.
        if type(value) is float:
            return value if math.isfinite(value) else {"float": str(value)}
        if isinstance(value, torch.Tensor):
            return {_kind_of(value): self._name(value, keys)}
        if isinstance(value, (np.ndarray, np.generic)):
            return {"array" if isinstance(value, np.ndarray) else "scalar": self._name(_from_numpy(value, keys), keys)}
        plain = _plain(value)
        if plain is not None:
            return plain
        if isinstance(value, PerProcess):
            return self._holder(value, keys)
        if id(value) in self._enclosing:
            raise UnsavableError(f"{where(keys)}: a container that contains itself cannot be saved")
        if len(keys) >= _DEEPEST:
            raise UnsavableError(f"more than {_DEEPEST} containers in each other: save a flatter nesting")
        self._enclosing.add(id(value))
        try:
            return self._container(value, keys)
        finally:
            self._enclosing.discard(id(value))

    def _holder(self, value: PerProcess, keys: tuple[str, ...]) -> Tree:
        if self._in_per_process:
            raise UnsavableError(f"{where(keys)}: a PerProcess in a PerProcess: leave out the inner one")
        self.marked.append((value.value, keys))
        return {HOLDER: len(self.marked) - 1}

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
        return [self.tree(value, (*keys, str(index))) for index, value in enumerate(values)]

    def _pairs(self, values: Mapping[Any, Any], keys: tuple[str, ...]) -> list[Tree]:
        return [[self.tree(key, (*keys, "a key")), self.tree(value, (*keys, _label(key)))] for key, value in values.items()]


def _label(key: Any) -> str:
    """Write a key as text for names and messages."""
    if isinstance(key, torch.Tensor):
        return "tensor"
    try:
        return str(key)
    except ValueError:  # an integer of more digits than Python prints
        return type(key).__name__


def _kind_of(value: torch.Tensor) -> str:
    if isinstance(value, torch.nn.Parameter):
        return "parameter" if value.requires_grad else "parameter, frozen"
    return "tensor, requires grad" if value.requires_grad else "tensor"


def _from_numpy(value: np.ndarray[Any, Any] | np.generic, keys: tuple[str, ...]) -> torch.Tensor:
    if isinstance(value, np.ndarray) and type(value) not in (np.ndarray, np.memmap):
        raise UnsavableError(f"{where(keys)}: a {type(value).__qualname__} cannot be saved; save its fields, plain arrays, in a dict")
    try:
        # A copy: torch takes no foreign byte order and no negative strides, and warns of read-only arrays.
        return torch.from_numpy(np.array(value, value.dtype.newbyteorder("="), order="C"))
    except TypeError as error:
        raise UnsavableError(f"{where(keys)}: a NumPy array of {value.dtype} cannot be saved; save numbers") from error


def _plain(value: Any) -> Tree | None:
    """Encode a plain value that contains no other values; None for any other."""
    kind = type(value)
    if kind is str:
        return {"surrogates": base64.b64encode(value.encode("utf-8", "surrogatepass")).decode()} if _SURROGATE.search(value) else value
    if kind is int:
        return value if value.bit_length() <= _PLAIN_BITS else {"integer": hex(value)}
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
        return {"range": [_plain(part) for part in (value.start, value.stop, value.step)]}
    if kind is slice and all(part is None or type(part) is int for part in (value.start, value.stop, value.step)):
        return {"slice": [None if part is None else _plain(part) for part in (value.start, value.stop, value.step)]}
    if isinstance(value, PurePath):
        return {"path": _plain(value.as_posix())}
    return None


def decode(tree: Tree, find: Find, path: str) -> Any:
    """Build the nesting that a tree describes; a tensor with several places is one object. path: of the index, for messages.

    Raises DamagedCheckpointError for a tree that does not follow the format.
    """
    leaves: dict[tuple[str, str], Any] = {}

    def leaf(kind: str, name: str) -> Any:
        # The key has the kind, too: one tensor may be a parameter at one place and plain data at another.
        if (kind, name) not in leaves:
            leaves[kind, name] = _leaf(kind, find(name))
        return leaves[kind, name]

    return _decoded_by(leaf, tree, path)


def check(tree: Tree, tensors: Mapping[str, TensorEntry], path: str) -> None:
    """Raise DamagedCheckpointError for a tree that `decode` could not read, before a tensor is read."""

    def leaf(kind: str, name: str) -> object:
        dtype = DTYPES[tensors[name].dtype]
        if kind in ("parameter", "tensor, requires grad") and not (dtype.is_floating_point or dtype.is_complex):
            raise ValueError(f"{shown(name)} is of {dtype}, which has no gradient")
        if kind in ("array", "scalar") and not in_numpy(dtype):
            raise ValueError(f"{shown(name)} is of {dtype}, which NumPy does not have")
        if kind == "scalar" and tensors[name].shape:
            raise ValueError(f"{shown(name)} has a shape, and is no scalar")
        return [] if kind == "array" else object()  # unhashable: an array cannot be a key or in a set

    _decoded_by(leaf, tree, path)


def _decoded_by(leaf: Leaf, tree: Tree, path: str) -> Any:
    try:
        return _value(tree, leaf, 0)
    except CheckpointError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
        raise DamagedCheckpointError(f"{path}: the tree does not follow the format: {str(error)[:_LONGEST_REASON]}") from None


def _value(tree: Tree, leaf: Leaf, depth: int) -> Any:
    if tree is None or isinstance(tree, (bool, int, float, str)):
        return tree
    if not isinstance(tree, dict) or len(tree) != 1:
        raise ValueError(f"{shown(tree)} is nothing that a tree holds")
    if depth > _DEEPEST + 1:
        raise ValueError(f"more than {_DEEPEST} containers are in each other")
    ((kind, inside),) = tree.items()
    if kind in LEAVES:
        return leaf(kind, inside)
    if kind in _SEQUENCES:
        items = _values(inside, leaf, depth)
        if kind in ("set", "frozenset"):
            check_hashes(items)
        return _SEQUENCES[kind](items)
    if kind in ("dict", "ordered dict", "counter"):
        container: Any = {"dict": dict, "ordered dict": OrderedDict, "counter": Counter}[kind]
        return container(dict(_pairs(inside, leaf, depth)))
    if kind == "state dict":
        state_dict: Any = OrderedDict(_pairs(inside["items"], leaf, depth))
        state_dict._metadata = _value(inside["metadata"], leaf, depth + 1)
        return state_dict
    if kind == "default dict":
        factory = None if inside["factory"] is None else _FACTORIES[inside["factory"]]
        return defaultdict(factory, _pairs(inside["items"], leaf, depth))
    if kind == "deque":
        return deque(_values(inside["items"], leaf, depth), inside["maxlen"])
    if kind not in _PLAIN:
        raise ValueError(f"{shown(kind)} is no kind of value")
    return _PLAIN[kind](inside)


def _values(trees: Tree, leaf: Leaf, depth: int) -> list[Any]:
    if not isinstance(trees, list):
        raise ValueError(f"{shown(trees)} is no list")
    return [_value(item, leaf, depth + 1) for item in trees]


def _pairs(trees: Tree, leaf: Leaf, depth: int) -> list[tuple[Any, Any]]:
    if not isinstance(trees, list):
        raise ValueError(f"{shown(trees)} is no list of pairs")
    pairs = [(_value(key, leaf, depth + 1), _value(value, leaf, depth + 1)) for key, value in trees]
    check_hashes([key for key, _ in pairs])
    return pairs


def _leaf(kind: str, tensor: torch.Tensor) -> Any:
    if kind == "array":
        return tensor.cpu().numpy()
    if kind == "scalar":
        return tensor.cpu().numpy()[()]
    if kind.startswith("parameter"):
        fits = isinstance(tensor, torch.nn.Parameter) and tensor.requires_grad == (kind == "parameter")
        return tensor if fits else torch.nn.Parameter(tensor, requires_grad=kind == "parameter")
    if kind == "tensor, requires grad" and not tensor.requires_grad:
        return tensor.detach().requires_grad_()  # the same tensor may stand elsewhere without grad
    return tensor


def _torch_attribute(kind: type) -> Callable[[str], Any]:
    """Make a function that gives `torch.float32` for `float32`, and refuses attributes of torch that are of another type."""

    def find(name: str) -> Any:
        value = vars(torch).get(name)  # getattr would import modules
        if type(value) is not kind:
            raise ValueError(f"torch.{shown(name)[1:-1]} is no {kind.__name__}")
        return value

    return find


def _decoded(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _text(tree: Tree) -> str:
    text = _decoded(tree["surrogates"]).decode("utf-8", "surrogatepass") if isinstance(tree, dict) else tree
    if not isinstance(text, str):
        raise ValueError(f"{shown(tree)} is no text")
    return text


def _device(text: str) -> torch.device:
    try:
        return torch.device(_text(text))
    except RuntimeError as error:
        raise ValueError(f"{shown(text)} is no device") from error


def _special(text: str) -> float:
    if text not in ("nan", "inf", "-inf"):
        raise ValueError(f"{shown(text)} is no special float")
    return float(text)


def _plain_float(tree: Tree) -> float:
    return _special(tree["float"]) if isinstance(tree, dict) else float(tree)


def _integer(tree: Tree) -> int:
    value = int(tree["integer"], 16) if isinstance(tree, dict) else tree
    if type(value) is not int:
        raise ValueError(f"{shown(tree)} is no integer")
    return value


def _integers(parts: Tree, none: bool = False) -> list[Any]:
    if not isinstance(parts, list):
        raise ValueError(f"{shown(parts)} are no integers")
    return [None if none and part is None else _integer(part) for part in parts]


def _exactly(count: int, parts: list[Any]) -> list[Any]:
    if len(parts) != count:
        raise ValueError(f"{shown(parts)} has {len(parts)} parts, not {count}")
    return parts


_PLAIN: Mapping[str, Callable[[Any], Any]] = {
    "surrogates": lambda text: _text({"surrogates": text}),
    "integer": lambda text: _integer({"integer": text}),
    "float": _special,
    "complex": lambda parts: complex(*_exactly(2, [_plain_float(part) for part in parts])),
    "bytes": _decoded,
    "bytearray": lambda text: bytearray(_decoded(text)),
    "size": lambda sizes: torch.Size(_integers(sizes)),
    "dtype": _torch_attribute(torch.dtype),
    "layout": _torch_attribute(torch.layout),
    "device": _device,
    "range": lambda parts: range(*_exactly(3, _integers(parts))),
    "slice": lambda parts: slice(*_exactly(3, _integers(parts, none=True))),
    "path": lambda text: Path(_text(text)),
}
