"""Checks of the arguments of collectives: tensors, dimensions, outputs, groups."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import torch

from xla_core.api.job import global_ordinal, is_spmd, world_size
from xla_core.api.replica_groups import Groups, Members, ReplicaGroups
from xla_core.engine.runtime import client


def check_tensors(name: str, tensors: Iterable[Any]) -> None:
    """Raise TypeError for what is no tensor. name: of the collective, for errors; so below."""
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} takes tensors, got {type(tensor).__name__}")


def dimension(tensor: torch.Tensor, dim: int) -> int:
    """The dimension, counted from the first. Raises what torch raises for one that is not there."""
    tensor.size(dim)
    return dim % tensor.dim()


def _is_tensor_list(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, torch.Tensor) for item in value)


def tensor_list(name: str, value: Any, pin_layout: bool) -> list[torch.Tensor]:
    """The tensors of an argument that is one tensor or a list. Raises TypeError for others, RuntimeError for a list with `pin_layout`."""
    if isinstance(value, torch.Tensor):
        return [value]
    if not _is_tensor_list(value):
        raise TypeError(f"{name} takes a tensor or a list of tensors, got {type(value).__name__}")
    if pin_layout:
        raise RuntimeError(f"{name} of a list needs pin_layout=False")
    return value  # type: ignore[no-any-return]


def check_output(name: str, value: Any, output: Any) -> None:
    """Check that `output` can take the result for `value`: a tensor for a tensor, as many for a list. Raises TypeError, ValueError."""
    if output is None:
        return
    if isinstance(value, torch.Tensor):
        if not isinstance(output, torch.Tensor):
            raise TypeError(f"{name}: output for a tensor must be a tensor, got {type(output).__name__}")
        return
    if not _is_tensor_list(output):
        raise TypeError(f"{name}: output for a list must be a list of tensors, got {type(output).__name__}")
    if len(output) != len(value):
        raise ValueError(f"{name}: output has {len(output)} tensors for {len(value)} inputs")


def groups_of(groups: ReplicaGroups) -> Groups:
    """Check what a user gave. In SPMD mode, numbers are those of devices, and `position` says nothing.

    Raises ValueError if an ordinal repeats or is out of range, or one is in no group: the same on all replicas.
    """
    if is_spmd():  # one program over all devices, of which none is this process's own
        count, mine = len(client.client().placements[0].devices), 0
    else:
        count, mine = world_size(), global_ordinal()
    if isinstance(groups, Members):
        members = groups[0]
        return Groups((), (), len(members), members.index(mine), members)
    if not groups:
        return _everyone(count, mine)
    listed = check_groups(groups, count)
    members = tuple(member for group in listed for member in group)
    own = next(group for group in listed if mine in group)
    if members == tuple(range(count)) and len(listed) == 1:
        return _everyone(count, mine)
    return Groups(members, tuple(len(group) for group in listed), len(own), own.index(mine))


@cache
def _everyone(count: int, position: int) -> Groups:
    return Groups((), (), count, position)


def even_groups_of(groups: ReplicaGroups, name: str) -> Groups:
    """As `groups_of`, of one size. Raises AssertionError if they are not. name: of the collective, for errors."""
    checked = groups_of(groups)
    if len(set(checked.sizes)) > 1:
        raise AssertionError(f"{name} needs groups of one size, got sizes {list(checked.sizes)}")
    return checked


def check_groups(groups: ReplicaGroups, count: int) -> list[list[int]]:
    """The groups among `count` replicas, empty for one group of all. Raises ValueError unless each replica is in exactly one."""
    listed = [[int(ordinal) for ordinal in group] for group in groups or ()]
    members = [ordinal for group in listed for ordinal in group]
    if len(set(members)) != len(members) or any(not 0 <= ordinal < count for ordinal in members):
        raise ValueError(f"groups are lists of ordinals from 0 to {count - 1}, each named at most once, got {listed}")
    absent = sorted(set(range(count)) - set(members))
    if listed and absent:
        raise ValueError(f"ordinals {absent} are in none of the groups {listed}: all replicas issue a collective, so each needs a group")
    return listed
