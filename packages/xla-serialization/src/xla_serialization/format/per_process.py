"""`PerProcess`: marks a value in a nesting of which each process that saves has its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from xla_serialization.format.manifest import Tree

HOLDER = "per process"
"""The key that stands for a mark in the tree of one process, with the mark's index as value. No file contains it."""


@dataclass
class PerProcess:
    """A value of which each process that saves together has its own: random states, shards of a model that is divided among replicas.

    A checkpoint holds all of them, as a list by process. `restore` and `load_into` give each process its own, in `value`.
    """

    value: Any


def with_holders_filled(tree: Tree, filled: Callable[[int], Tree]) -> Tree:
    """Copy a tree, with `filled(index)` in the place of each mark."""
    if isinstance(tree, list):
        return [with_holders_filled(item, filled) for item in tree]
    if not isinstance(tree, dict):
        return tree
    if HOLDER in tree:
        return filled(tree[HOLDER])
    return {kind: with_holders_filled(inside, filled) for kind, inside in tree.items()}


def of_all(tree: Tree, own: Sequence[Sequence[Tree]]) -> Tree:
    """Make the tree that a checkpoint holds, with a list of all processes' values at each mark. own: by process, then by mark."""
    if not any(own):
        return tree
    return with_holders_filled(tree, lambda index: {"list": [trees[index] for trees in own]})
