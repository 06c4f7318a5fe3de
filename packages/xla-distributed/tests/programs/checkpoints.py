"""`torch.distributed.checkpoint` on one, two and four processes; sections of `torch_stack.py`.

Checkpoints are in the folder that the variable CHECKPOINTS names.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from fully_sharded import Net
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch_stack import finish_step

KINDS = ("FSDP2", "TP")


def made(kind: str, device: str, reset: bool = False) -> tuple[nn.Module, torch.optim.Optimizer]:
    net = Net().to(device)
    if reset:
        net.reset_parameters()
    mesh = init_device_mesh(device, (dist.get_world_size(),))
    if kind == "FSDP2":
        fully_shard(net, mesh=mesh)
    elif kind == "TP":
        parallelize_module(net, mesh, {"layers.0": ColwiseParallel(), "head": RowwiseParallel()})
    return net, torch.optim.AdamW(net.parameters(), lr=0.1, foreach=False)


def state_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    return dict(zip(("model", "optimizer"), get_state_dict(model, optimizer), strict=True))


def values(model: nn.Module, optimizer: torch.optim.Optimizer) -> list[Any]:
    tensors = [*model.parameters(), *(entry[name] for entry in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq", "step"))]
    return [(each.full_tensor() if isinstance(each, DTensor) else each).detach().clone() for each in tensors]


def save(rank: int, device: str) -> dict[str, Any]:
    """Each kind after a step; beside that, the one saved by a thread."""
    folder, found = Path(os.environ["CHECKPOINTS"]), {}
    for kind in KINDS:
        model, optimizer = made(kind, device, reset=True)
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        optimizer.step()
        finish_step(device)
        dcp.save(state_of(model, optimizer), checkpoint_id=folder / kind)
        found[kind] = values(model, optimizer)
        if kind == "FSDP2":
            threads = dist.new_group(backend="gloo")
            pending: Any = dcp.async_save(state_of(model, optimizer), checkpoint_id=folder / "beside", process_group=threads)
            optimizer.step()  # the one being saved is from before
            finish_step(device)
            pending.result()
    return found


def load(rank: int, device: str) -> dict[str, Any]:
    folder, found = Path(os.environ["CHECKPOINTS"]), {}
    for kind in KINDS:
        for source in (*KINDS, "beside"):
            model, optimizer = made(kind, device)
            state = state_of(model, optimizer)
            dcp.load(state, checkpoint_id=folder / source)
            set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
            found[f"{source} as {kind}"] = values(model, optimizer)
    return found
