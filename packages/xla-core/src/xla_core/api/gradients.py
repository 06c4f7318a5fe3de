"""Data-parallel training: reduce gradients, step an optimizer, make parameters equal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from xla_core.api.buckets import all_reduce_bucketized_gradients
from xla_core.api.collective_arguments import check_groups
from xla_core.api.collectives import all_reduce, collective_broadcast, is_alone
from xla_core.api.job import world_size
from xla_core.api.replica_groups import ReplicaGroups
from xla_core.api.step import sync
from xla_core.api.user_modules import xm
from xla_core.base import config
from xla_core.base.budgets import budget


def fetch_gradients(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    """The gradients' data in the order of the parameter groups, but for those of shards (FSDP), which are reduced already."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return [parameter.grad.data for parameter in parameters if parameter.grad is not None and not getattr(parameter, "_is_sharded", False)]


@budget(compiles=None)
def reduce_gradients(optimizer: torch.optim.Optimizer, groups: ReplicaGroups = None, pin_layout: bool = True) -> None:
    """The mean of each gradient over all replicas, in place; in buckets if ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB is set."""
    if is_alone():
        check_groups(groups, 1)
        return
    gradients = fetch_gradients(optimizer)
    scale = 1.0 / world_size()
    cap = config.ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB.get()
    if cap:
        xm(all_reduce_bucketized_gradients)(reversed(gradients), scale, groups, pin_layout, bucket_cap_mb=cap)
    else:
        xm(all_reduce)("sum", gradients, scale=scale, groups=groups, pin_layout=pin_layout)


@budget(compiles=None, reads=None)
def optimizer_step(
    optimizer: torch.optim.Optimizer,
    barrier: bool = False,
    optimizer_args: Mapping[str, Any] | None = None,
    groups: ReplicaGroups = None,
    pin_layout: bool = True,
) -> Any:
    """Reduce the gradients, `optimizer.step(**optimizer_args)`, then a step sync if `barrier`; what the optimizer returned."""
    xm(reduce_gradients)(optimizer, groups=groups, pin_layout=pin_layout)
    result = optimizer.step(**(optimizer_args or {}))
    if barrier:
        sync()
    return result


@budget(compiles=None, reads=None)
def broadcast_master_param(model: torch.nn.Module) -> None:
    """Parameters and buffers take the values of replica 0; then a step sync."""
    if not is_alone():
        xm(collective_broadcast)([*model.parameters(), *model.buffers()])
    sync()
