"""List the leaves of a tree, tensors and plain values, with the keys that lead to each."""

from __future__ import annotations

import binascii
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from xla_serialization.errors import DamagedCheckpointError
from xla_serialization.format.limits import LARGEST_TEXT
from xla_serialization.format.manifest import Tree
from xla_serialization.format.tree import LEAVES, decode

_CONTAINERS = frozenset({"list", "tuple", "set", "frozenset", "deque"})
_MAPPINGS = frozenset({"dict", "ordered dict", "counter", "state dict", "default dict"})


@dataclass(frozen=True)
class TreeLeaf:
    """A leaf of a tree: the name of a tensor, or the text of a plain value, and the keys that lead to it."""

    keys: tuple[str, ...]
    tensor: str | None = None
    text: str = ""


def leaves(tree: Tree, path: str) -> list[TreeLeaf]:
    """List a tree's leaves in order, a tensor as often as it occurs. path: for messages. Raises DamagedCheckpointError."""
    collected = []
    length = 0
    try:
        for leaf in _leaves(tree, (), path):
            length += sum(map(len, leaf.keys))
            if length > LARGEST_TEXT:  # a million leaves may repeat one long key
                raise ValueError(f"the keys on the way to all its values make more than {LARGEST_TEXT} characters")
            collected.append(leaf)
        return collected
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, binascii.Error) as error:
        raise DamagedCheckpointError(f"{path}: the tree does not follow the format: {error}") from error


def _leaves(tree: Tree, keys: tuple[str, ...], path: str) -> Iterator[TreeLeaf]:
    kind, inside = next(iter(tree.items())) if isinstance(tree, dict) else ("", tree)
    if kind in LEAVES:
        yield TreeLeaf(keys, tensor=inside)
    elif kind in _CONTAINERS:
        for index, value in enumerate(inside["items"] if kind == "deque" else inside):
            yield from _leaves(value, (*keys, str(index)), path)
    elif kind in _MAPPINGS:
        for key, value in inside["items"] if isinstance(inside, dict) else inside:
            yield from _leaves(value, (*keys, str(decode(key, _no_tensor, path))), path)
    else:
        yield TreeLeaf(keys, text=repr(decode(tree, _no_tensor, path)))


def _no_tensor(name: str) -> torch.Tensor:
    raise ValueError(f"tensor {name!r} is part of a key")
