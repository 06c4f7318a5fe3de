"""A mark in a nesting: of what is inside, each process that saves has its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from xla_serialization.format.manifest import Tree

HOLDER = "per process"
"""The kind of what stands for a mark in the tree of one process: with its number, counted from 0. No file has it."""


@dataclass
class PerProcess:
    """A value of which each process that saves together has its own: random states, shards of a model that is divided among replicas.

    A checkpoint holds all of them, as a list by process. `restore` and `load_into` give each process its own, in `value`.
    """

    value: Any


def with_holders_filled(tree: Tree, filled: Callable[[int], Tree]) -> Tree:
    """A copy of a tree with `filled(number)` in the place of each mark."""
    if isinstance(tree, list):
        return [with_holders_filled(one, filled) for one in tree]
    if not isinstance(tree, dict):
        return tree
    if HOLDER in tree:
        return filled(tree[HOLDER])
    return {kind: with_holders_filled(inside, filled) for kind, inside in tree.items()}


def of_all(tree: Tree, own: Sequence[Sequence[Tree]]) -> Tree:
    """The tree that a checkpoint holds. own: for each process, the trees of its values, by mark."""
    if not any(own):
        return tree
    return with_holders_filled(tree, lambda number: {"list": [trees[number] for trees in own]})
