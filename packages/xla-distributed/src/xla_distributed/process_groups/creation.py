"""Make process groups of backend `xla`: for torch, of all replicas or of some."""

from __future__ import annotations

from datetime import timedelta
from itertools import count
from typing import Any

import torch
import torch.distributed as dist

from xla_core.abi.collectives import groups_of
from xla_core.abi.job import ordinal, world_size
from xla_core.abi.targets import planned_devices
from xla_distributed.job import bootstrap, connection
from xla_distributed.process_groups import meshes
from xla_distributed.process_groups.planned_group import PlannedProcessGroup
from xla_distributed.process_groups.process_group import ProcessGroupXla

_DEFAULT_TIMEOUT = timedelta(seconds=1800)


class _Generations:
    """How many default groups this process has made: the same on all, and part of the names of what their members exchange."""

    made = count(1)
    current = 0


def create(options: Any, group_options: Any = None) -> ProcessGroupXla:
    """The process group for torch: over all replicas, or some of them.

    group_options: `ProcessGroupXla.Options(mesh=[[0, 1], [2, 3]])` for one of several groups that all issue their collectives together,
    in one program; without a mesh it is inferred. As in 2.9, too: `{"xla_pg_options": {"mesh": [[0, 1], [2, 3]]}}` and
    `{"xla_pg_options": {"spmd": True}}`. Without any only the members issue them.
    Raises RuntimeError for a default group whose ranks are not those of the job.
    """
    ranks = list(options.global_ranks_in_group)
    if not ranks and options.group_size > 1 and (bootstrap.lacks_rank() or world_size() == 1):
        connection.join_by_store(options.store, options.group_rank, options.group_size)
    world, mine = world_size(), ordinal()
    if not ranks:
        if (options.group_rank, options.group_size) != (mine, world):
            raise RuntimeError(
                f"init_process_group(rank={options.group_rank}, world_size={options.group_size}) in a process that is replica {mine} "
                f'of {world}: leave both to init_method="xla://", or start the processes with torch_xla.launch, xmp.spawn or torchrun'
            )
        ranks = list(range(world))
        _Generations.current = next(_Generations.made)
    groups = meshes.groups_for(ranks, world, group_options)
    if groups is not None:
        groups_of(groups)
    torch.get_device_module("xla").init()  # else device meshes choose a device by LOCAL_RANK, where each process has but one
    kind = PlannedProcessGroup if planned_devices() else ProcessGroupXla
    group = kind(options.store, options.group_rank, options.group_size, options.timeout, groups=groups, generation=_Generations.current)
    if kind is ProcessGroupXla:
        # With backend `cpu:gloo,xla:xla`, torch has made a group of Gloo before, and drops it as soon as one member has this one: the
        # others may still be connecting to it.
        group.mailbox.exchange("meeting", None)
    return group


def new_xla_process_group(
    ranks: list[int] | None = None, timeout: timedelta = _DEFAULT_TIMEOUT, backend: Any = None, pg_options: Any = None
) -> Any:
    """`torch.distributed.new_group`, which needs no other form any more: a group of any ranks, of all for None.

    pg_options: as of `create`. All ranks must call it; for those that are not in it the result is `GroupMember.NON_GROUP_MEMBER`.
    """
    return dist.new_group(ranks, timeout=timeout, backend=backend, pg_options=pg_options)
