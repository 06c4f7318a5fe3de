"""Decides which values become arguments: numbers, tensors and nestings of them of which two recorded calls found others at one place."""

from __future__ import annotations

from typing import Any

import torch

from xla_core.base.private_torch import tree_leaves
from xla_core.engine.tensor.plain import tensor_behind
from xla_core.features.captured.objects import Objects
from xla_core.features.captured.passed import Passed, can_be_opened, is_number
from xla_core.features.captured.places import Contents, Item, same
from xla_core.features.captured.results import flatten_values


def promote(old: Objects | None, new: Objects | None, passed: Passed) -> list[str]:
    """Take those values for arguments that another recorded call found changed, if a program can. Returns the names of their places."""
    names: list[str] = []
    if old is None or new is None:
        return names
    passed.blind_to = passed.blind_to or new.escape or old.escape
    for key, read in new.reads.items():
        before = old.reads.get(key)
        if (
            before is None
            or not (before.read and read.read)
            or same(before.before, read.before)
            or read.fixed
            or isinstance(read.place, Contents)
        ):
            continue
        if _can_pass(before.before, read.before, passed) and passed.add(read.place, read.name):
            names.append(read.name)
    for dict_key, members in new.module_dicts.items():
        before_members = old.module_dicts.get(dict_key)
        for name, value in members.before.items() if before_members is not None else ():
            other = before_members.before.get(name)  # type: ignore[union-attr]
            if other is not value and _can_pass(other, value, passed) and not isinstance(value, torch.nn.Parameter):
                label = f"{members.name.rpartition('.')[0]}.{name}"
                if passed.add(Item(members.container, name), label):
                    names.append(label)
    return names


def _can_pass(old: Any, new: Any, passed: Passed) -> bool:
    """Whether programs can take one value as well as the other: equal nestings of tensors on the device, numbers and equal objects.

    Classes of objects in them that have to be opened for that are opened.
    """
    opened = {type(leaf) for leaf in tree_leaves((old, new)) if can_be_opened(leaf)} - passed.opened
    old_leaves, old_tree = flatten_values(old, passed.opened | opened)
    new_leaves, new_tree = flatten_values(new, passed.opened | opened)
    if old_tree != new_tree or not new_leaves:
        return False
    pairs = list(zip(old_leaves, new_leaves, strict=True))
    can = all(_alike(before, now, passed) for before, now in pairs) and any(
        is_number(now) or isinstance(now, torch.Tensor) for _, now in pairs
    )
    passed.opened |= opened if can else set()
    return can


def _alike(before: Any, now: Any, passed: Passed) -> bool:
    if is_number(before):
        return is_number(now) and (passed.follows(now) or same(now, before))
    if isinstance(before, torch.Tensor):
        free = not (before.is_leaf and before.requires_grad) and not isinstance(now, torch.nn.Parameter)
        return free and isinstance(now, torch.Tensor) and tensor_behind(before) is not None and tensor_behind(now) is not None
    return same(now, before)
