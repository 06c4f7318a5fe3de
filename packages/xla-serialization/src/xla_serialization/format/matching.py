"""Which tensors of two nestings stand in the same places."""

from __future__ import annotations

import json
from collections.abc import Iterator, Set

from xla_serialization.errors import MismatchError
from xla_serialization.format.manifest import Tree
from xla_serialization.format.tree import LEAVES, where

_SEQUENCES = frozenset({"list", "tuple", "deque"})
_MAPPINGS = frozenset({"dict", "ordered dict", "counter", "state dict", "default dict"})
_UNORDERED = frozenset({"set", "frozenset"})


def matched(mine: Tree, theirs: Tree) -> Iterator[tuple[str, str]]:
    """Names of tensors in the same places of two trees: of what is loaded into, and of the checkpoint.

    All mappings are alike, and all sequences; plain values may differ. Raises MismatchError where the trees differ otherwise.
    """
    yield from _matched(mine, theirs, ())


def _matched(mine: Tree, theirs: Tree, keys: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    (my_kind, my_inside), (their_kind, their_inside) = _opened(mine), _opened(theirs)
    if my_kind != their_kind:
        raise MismatchError(f"{where(keys)}: {their_kind} in the checkpoint, {my_kind} in what it is loaded into")
    if my_kind == "a tensor":
        yield my_inside, their_inside
    elif my_kind == "a mapping":
        here, there = ({json.dumps(key): value for key, value in pairs} for pairs in (my_inside, their_inside))
        if here.keys() != there.keys():
            only = [f"only in {side}: {', '.join(sorted(found))}" for side, found in _sides(here.keys(), there.keys()) if found]
            raise MismatchError(f"{where(keys)}: other keys; {'; '.join(only)}")
        for key, value in here.items():
            yield from _matched(value, there[key], (*keys, key.strip('"')))
    elif my_kind == "a sequence":
        if len(my_inside) != len(their_inside):
            raise MismatchError(f"{where(keys)}: {len(their_inside)} items in the checkpoint, {len(my_inside)} in what it is loaded into")
        for number, pair in enumerate(zip(my_inside, their_inside, strict=True)):
            yield from _matched(*pair, (*keys, str(number)))


def _opened(tree: Tree) -> tuple[str, Tree]:
    """Describe a tree, and list what is in it."""
    kind, inside = next(iter(tree.items())) if isinstance(tree, dict) else ("", tree)
    if kind in LEAVES:
        return "a tensor", inside
    if kind in _MAPPINGS:
        return "a mapping", inside["items"] if isinstance(inside, dict) else inside
    if kind in _SEQUENCES:
        return "a sequence", inside["items"] if isinstance(inside, dict) else inside
    return "a set" if kind in _UNORDERED else "a plain value", inside


def _sides(here: Set[str], there: Set[str]) -> list[tuple[str, Set[str]]]:
    return [("the checkpoint", there - here), ("what it is loaded into", here - there)]
