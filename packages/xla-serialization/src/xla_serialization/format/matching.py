"""Compare two nestings: pair the tensors at the same places, and tell where the nestings differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Set

from xla_serialization.errors import MismatchError
from xla_serialization.format.manifest import Tree
from xla_serialization.format.per_process import HOLDER
from xla_serialization.format.tree import LEAVES, where

_SEQUENCES = frozenset({"list", "tuple", "deque"})
_MAPPINGS = frozenset({"dict", "ordered dict", "counter", "state dict", "default dict"})
_UNORDERED = frozenset({"set", "frozenset"})


def matched(mine: Tree, theirs: Tree) -> Iterator[tuple[str, str]]:
    """Yield the names of tensors at the same places of two trees: of the nesting that is loaded into, and of the checkpoint.

    Kinds of mappings count as equal, and kinds of sequences; plain values may differ. Raises MismatchError for any other difference.
    """
    yield from _matched(mine, theirs, ())


def _matched(mine: Tree, theirs: Tree, keys: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    (my_kind, my_inside), (their_kind, their_inside) = _kind_and_contents(mine), _kind_and_contents(theirs)
    if my_kind != their_kind:
        raise MismatchError(f"{where(keys)}: {their_kind} in the checkpoint, {my_kind} in what it is loaded into")
    if my_kind == "a tensor":
        yield my_inside, their_inside
    elif my_kind == "a mapping":
        own, saved = ({json.dumps(key): value for key, value in pairs} for pairs in (my_inside, their_inside))
        if own.keys() != saved.keys():
            differences = [f"only in {side}: {', '.join(sorted(missing))}" for side, missing in _sides(own.keys(), saved.keys()) if missing]
            raise MismatchError(f"{where(keys)}: other keys; {'; '.join(differences)}")
        for key, value in own.items():
            yield from _matched(value, saved[key], (*keys, key.strip('"')))
    elif my_kind == "a sequence":
        if len(my_inside) != len(their_inside):
            raise MismatchError(f"{where(keys)}: {len(their_inside)} items in the checkpoint, {len(my_inside)} in what it is loaded into")
        for index, pair in enumerate(zip(my_inside, their_inside, strict=True)):
            yield from _matched(*pair, (*keys, str(index)))


def own_part(mine: Tree, theirs: Tree, process: int, count: int) -> Tree:
    """Copy a checkpoint's tree, with only this process's value (of `count`) wherever `mine` has a `PerProcess`.

    Raises MismatchError where the checkpoint has no such values, or the values of another number of processes.
    """
    return _own_part(mine, theirs, process, count, ())


def _own_part(mine: Tree, theirs: Tree, process: int, count: int, keys: tuple[str, ...]) -> Tree:
    if isinstance(mine, dict) and HOLDER in mine:
        values = theirs.get("list") if isinstance(theirs, dict) else None
        if values is None:
            raise MismatchError(f"{where(keys)}: a PerProcess, and the checkpoint has one value for all processes there")
        if len(values) != count:
            raise MismatchError(
                f"{where(keys)}: the checkpoint has the values of {len(values)} processes, and {count} load: load it with "
                "xla_serialization.load, which gives a list of all"
            )
        return values[process]
    (my_kind, my_inside), (their_kind, their_inside) = _kind_and_contents(mine), _kind_and_contents(theirs)
    # Where the trees differ, `matched` says how.
    if my_kind == their_kind == "a mapping":
        my_items = {json.dumps(key): value for key, value in my_inside}
        texts = [json.dumps(key) for key, _ in their_inside]
        return _refilled(
            theirs,
            [
                [key, _own_part(my_items[text], value, process, count, (*keys, text.strip('"'))) if text in my_items else value]
                for text, (key, value) in zip(texts, their_inside, strict=True)
            ],
        )
    if my_kind == their_kind == "a sequence" and len(my_inside) == len(their_inside):
        pairs = enumerate(zip(my_inside, their_inside, strict=True))
        return _refilled(theirs, [_own_part(*pair, process, count, (*keys, str(index))) for index, pair in pairs])
    return theirs


def _refilled(tree: Tree, inside: Tree) -> Tree:
    """Copy the container at the root of a tree, with other contents."""
    ((kind, before),) = tree.items()
    return {kind: {**before, "items": inside} if isinstance(before, dict) else inside}


def first_difference(tree: Tree, other: Tree) -> str:
    """Describe the place of the first value, in order, in which two trees differ."""
    return where(_differing(tree, other, ()))


def _differing(tree: Tree, other: Tree, keys: tuple[str, ...]) -> tuple[str, ...]:
    (kind, inside), (other_kind, other_inside) = _kind_and_contents(tree), _kind_and_contents(other)
    if kind == other_kind and kind in ("a mapping", "a sequence") and len(inside) == len(other_inside):
        for index, (first, second) in enumerate(zip(inside, other_inside, strict=True)):
            if first != second:
                if kind == "a sequence":
                    return _differing(first, second, (*keys, str(index)))
                if first[0] == second[0]:
                    return _differing(first[1], second[1], (*keys, json.dumps(first[0]).strip('"')))
                break
    return keys


def _kind_and_contents(tree: Tree) -> tuple[str, Tree]:
    """Name the kind of a tree for messages, and give its contents."""
    kind, inside = next(iter(tree.items())) if isinstance(tree, dict) else ("", tree)
    if kind in LEAVES:
        return "a tensor", inside
    if kind in _MAPPINGS:
        return "a mapping", inside["items"] if isinstance(inside, dict) else inside
    if kind in _SEQUENCES:
        return "a sequence", inside["items"] if isinstance(inside, dict) else inside
    return "a set" if kind in _UNORDERED else "a plain value", inside


def _sides(own: Set[str], saved: Set[str]) -> list[tuple[str, Set[str]]]:
    return [("the checkpoint", saved - own), ("what it is loaded into", own - saved)]
