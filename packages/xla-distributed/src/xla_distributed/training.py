"""Data-parallel training: reduce gradients, make parameters equal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

import torch_xla
import torch_xla.core.xla_model as xm
from xla_core.abi.collectives import fetch_gradients
from xla_core.abi.job import world_size
from xla_distributed import settings
from xla_distributed.collectives.groups import ReplicaGroups


def reduce_gradients(optimizer: torch.optim.Optimizer, groups: ReplicaGroups = None, pin_layout: bool = True) -> None:
    """The mean of each gradient over all replicas, in place; in buckets if ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB is set."""
    gradients = fetch_gradients(optimizer)
    scale = 1.0 / world_size()
    cap = settings.BUCKET_SIZE_MB.get()
    if cap:
        xm.all_reduce_bucketized_gradients(reversed(gradients), scale, groups, pin_layout, bucket_cap_mb=cap)
    else:
        xm.all_reduce("sum", gradients, scale=scale, groups=groups, pin_layout=pin_layout)


def broadcast_master_param(model: torch.nn.Module) -> None:
    """Parameters and buffers take the values of replica 0; then a step sync."""
    xm.collective_broadcast([*model.parameters(), *model.buffers()])
    torch_xla.sync()


OFFERED: dict[str, Callable[..., Any]] = {
    "torch_xla.core.xla_model.broadcast_master_param": broadcast_master_param,
    "torch_xla.core.xla_model.reduce_gradients": reduce_gradients,
}
