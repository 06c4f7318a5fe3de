"""Replicas of a target: collectives, DistributedDataParallel and FSDP are compiled for all of its devices, and none of them runs."""

from __future__ import annotations

import re
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

import harness
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr
from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel
from xla_core.abi.graph import register_wrapper
from xla_core.testing import planned_cpu

seen: dict[str, Any] = {"called": [], "reduces": []}


def note(graph: object, executable: Any) -> Any:
    seen["reduces"] += re.findall(r"all-reduce[^\n]*replica_groups=(\{\{.*?\}\})", executable.compiled.as_text())
    return executable


def told_by_others() -> list[Any]:
    """What integers that came from the host are after each collective: by these the host goes on."""
    objects: list[Any] = [None] * 4
    dist.all_gather_object(objects, {"name": "replica"})
    [shared] = one = [{"step": 7}]
    dist.broadcast_object_list(one, 0)
    counted = torch.tensor([5, 2], device="xla")
    dist.all_reduce(counted)
    rows = torch.zeros(4, 2, dtype=torch.int32, device="xla")
    dist.all_gather_into_tensor(rows, torch.tensor([[1, 2]], dtype=torch.int32, device="xla"))
    part: list[Any] = [None]
    dist.scatter_object_list(part, ["mine", "a", "b", "c"])
    gathered: list[Any] = [None] * 4
    dist.gather_object("here", gathered)
    return [objects, one == [shared], counted.tolist(), rows.tolist(), part, gathered]


def train(index: int, message: str) -> None:
    seen["called"].append(index)
    seen["place"] = [xr.global_ordinal(), xr.world_size(), xr.local_ordinal()]
    device = torch_xla.device()
    seen["exchanged"] = len(xm.rendezvous(message))
    seen["gathered"] = list(xm.all_gather(torch.ones(2, 3, device=device)).shape)
    dist.init_process_group("xla", init_method="xla://")
    seen["group"] = [dist.get_world_size(), dist.get_rank()]
    model = nn.parallel.DistributedDataParallel(nn.Linear(3, 2).to(device), gradient_as_bucket_view=True)
    for _ in range(3):  # the second pass divides the gradients into other buckets
        model(torch.ones(4, 3, device=device)).sum().backward()
        xm.mark_step()
    seen["objects"] = told_by_others()
    apart = torch.ones(3, device=device)
    dist.all_reduce(apart, group=dist.new_group([0, 1]))
    seen["apart"] = list(apart.shape)
    sharded = XlaFullyShardedDataParallel(nn.Linear(64, 8).to(device))
    sharded(torch.ones(4, 64, device=device)).sum().backward()
    xm.mark_step()
    shard = next(parameter for parameter in sharded.parameters() if parameter.numel() > 8)
    seen["scattered"] = 64 * 8 // shard.numel()


with planned_cpu():
    remove = register_wrapper(note)
    xmp.spawn(train, args=("hello",))
    remove()
    seen["after"] = [xr.world_size(), xr.global_ordinal()]
    try:
        xmp.spawn(train, args=("hello",), nprocs=5)
    except ValueError as error:
        seen["too_many"] = str(error)
    dist.destroy_process_group()
    dist.init_process_group("xla", init_method="xla://")  # a script that torchrun starts
    seen["without_spawn"] = [dist.get_world_size(), dist.get_rank(), xr.world_size()]
seen["after_all"] = xr.world_size()
harness.report(sys.argv[1], 0, seen)
