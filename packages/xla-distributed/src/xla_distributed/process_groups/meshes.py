"""The groups behind a process group: those of a mesh, in which every replica is in exactly one, or a group on its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from xla_core.abi.collectives import Members


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a group that is one of several, whose collectives all replicas issue together: they are part of the step's program.

    mesh: the ordinals of all these groups; None: inferred from the ranks, as rows or columns of a grid. timeout: as of `new_group`.
    """

    mesh: Sequence[Sequence[int]] | None = None
    timeout: timedelta = dist.default_pg_timeout

    @property
    def _timeout(self) -> timedelta:  # what torch's device meshes ask for
        return self.timeout


def inferred_mesh(ranks: Sequence[int], count: int) -> list[list[int]]:
    """All groups of `count` replicas that look like `ranks`: as many members, as far from each other.

    Raises ValueError if that is no partition of the replicas.
    """
    size = len(ranks)
    stride = ranks[1] - ranks[0] if size > 1 else 1
    block = stride * size
    if stride < 1 or list(ranks) != [ranks[0] + stride * index for index in range(size)] or count % block:
        raise ValueError(f"no rectangular mesh of {count} replicas has the group {list(ranks)}: give xla_pg_options its mesh")
    mesh = [[start + offset + stride * index for index in range(size)] for start in range(0, count, block) for offset in range(stride)]
    if list(ranks) not in mesh:
        raise ValueError(f"the group {list(ranks)} is not one of the mesh {mesh}")
    return mesh


def groups_for(ranks: Sequence[int], count: int, options: Any = None) -> Sequence[Sequence[int]] | None:
    """The groups for a process group over `ranks` of `count` replicas; None for all of them in order.

    options: as of `creation.create`. Raises ValueError for a mesh without such a group.
    """
    parsed = _of_dictionary(options) if isinstance(options, Mapping) else options
    if isinstance(parsed, Options) and parsed.mesh is None:
        return inferred_mesh(ranks, count)
    if isinstance(parsed, Options) and parsed.mesh is not None:
        mesh = [list(group) for group in parsed.mesh]
        if list(ranks) not in mesh:
            raise ValueError(f"the group {list(ranks)} is not one of the mesh {mesh}")
        return mesh
    return None if list(ranks) == list(range(count)) else Members([tuple(ranks)])


def _of_dictionary(options: Mapping[str, Any]) -> Options | None:
    """The options that programs for PyTorch/XLA 2.9 give as a dictionary."""
    xla_options = options.get("xla_pg_options", {})
    if xla_options.get("spmd"):
        return Options()
    return Options(xla_options["mesh"]) if xla_options.get("mesh") is not None else None
