"""Meshes of two dimensions on four processes; a section of `torch_stack.py`."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from dtensors import described
from fully_sharded import Net
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch_stack import finish_step


def found(rank: int, device: str) -> dict[str, Any]:
    mesh = init_device_mesh(device, (2, 2), mesh_dim_names=("a", "b"))
    x = torch.arange(35.0).reshape(7, 5)
    found: dict[str, Any] = {"parts": [mesh.get_coordinate(), mesh["a"].mesh.tolist(), mesh["b"].mesh.tolist()]}
    for first, second in product((Shard(0), Shard(1), Replicate()), repeat=2):
        placed = distribute_tensor(x.to(device), mesh, [first, second])
        found[f"{first}, {second}"] = [described(placed), described(placed.redistribute(mesh, [second, first]))]
    net = Net().to(device)
    net.reset_parameters()
    fully_shard(net, mesh=mesh)  # sharded over b, replicated over a
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for number in range(2):
        optimizer.zero_grad()
        net(torch.randn(2, 7, generator=torch.Generator().manual_seed(4 * number + rank)).to(device)).square().mean().backward()
        optimizer.step()
        finish_step(device)
    found["hybrid"] = [described(parameter) for parameter in net.parameters()]
    return found
