"""The groups behind a process group: those of a mesh, in which every replica is in exactly one, or a group on its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from xla_distributed.collectives.groups import Members


def inferred_mesh(ranks: Sequence[int], count: int) -> list[list[int]]:
    """All groups of `count` replicas that look like `ranks`: as many members, as far from each other.

    Raises ValueError if that is no partition of the replicas.
    """
    size = len(ranks)
    stride = ranks[1] - ranks[0] if size > 1 else 1
    block = stride * size
    if stride < 1 or list(ranks) != [ranks[0] + stride * place for place in range(size)] or count % block:
        raise ValueError(f"no rectangular mesh of {count} replicas has the group {list(ranks)}: give xla_pg_options its mesh")
    mesh = [[start + offset + stride * place for place in range(size)] for start in range(0, count, block) for offset in range(stride)]
    if list(ranks) not in mesh:
        raise ValueError(f"the group {list(ranks)} is not one of the mesh {mesh}")
    return mesh


def groups_for(ranks: Sequence[int], count: int, options: Mapping[str, Any]) -> Sequence[Sequence[int]] | None:
    """The groups for a process group over `ranks` of `count` replicas; None for all of them in order.

    options: with a mesh, its groups all issue their collectives together, in one program. Raises ValueError for one without such a group.
    """
    if options.get("spmd"):
        return inferred_mesh(ranks, count)
    mesh = options.get("mesh")
    if mesh is not None:
        found = [list(group) for group in mesh]
        if list(ranks) not in found:
            raise ValueError(f"the group {list(ranks)} is not one of the mesh {found}")
        return found
    return None if list(ranks) == list(range(count)) else Members([tuple(ranks)])
