"""Check the arguments of collectives, for one replica and for several: tensors, dimensions, outputs, groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

Groups = Sequence[Sequence[int]] | None
"""Groups of replicas as users give them: lists of ordinals; None or an empty list is one group of all."""


def check_tensors(name: str, tensors: Iterable[Any], dim: int | None = None) -> None:
    """Raise TypeError for objects that are no tensors, and torch's own error for a dimension that a tensor does not have.

    name: of the collective, for errors; also below.
    """
    for tensor in tensors:
        if not isinstance(tensor, torch.Tensor):
            raise TypeError(f"{name} takes tensors, got {type(tensor).__name__}")
        if dim is not None:
            tensor.size(dim)


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


def check_groups(given: Groups, count: int) -> list[list[int]]:
    """The groups among `count` replicas, empty for one group of all. Raises ValueError unless each replica is in exactly one."""
    listed = [[int(ordinal) for ordinal in group] for group in given or ()]
    members = [ordinal for group in listed for ordinal in group]
    if len(set(members)) != len(members) or any(not 0 <= ordinal < count for ordinal in members):
        raise ValueError(f"groups are lists of ordinals from 0 to {count - 1}, each named at most once, got {listed}")
    absent = sorted(set(range(count)) - set(members))
    if listed and absent:
        raise ValueError(f"ordinals {absent} are in none of the groups {listed}: all replicas issue a collective, so each needs a group")
    return listed
