"""`parallelize_module` on two processes; a section of `torch_stack.py`."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleInputOutput,
    PrepareModuleOutput,
    RowwiseParallel,
    SequenceParallel,
    loss_parallel,
    parallelize_module,
)
from torch.nn import functional as F
from torch_stack import compiled, finish_step


class Feed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.gelu(self.up(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.norm, self.feed, self.head = nn.Embedding(12, 8), nn.LayerNorm(8), Feed(), nn.Linear(8, 12, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens)
        return self.head(x + self.feed(self.norm(x)))


PLANS: dict[str, dict[str, Any]] = {
    "tensors": {
        "tokens": RowwiseParallel(input_layouts=Replicate()),
        "feed.up": ColwiseParallel(),
        "feed.down": RowwiseParallel(),
        "head": ColwiseParallel(output_layouts=Replicate()),
    },
    "sequences": {
        "tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "feed": PrepareModuleInput(input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),)),
        "feed.up": ColwiseParallel(),
        "feed.down": RowwiseParallel(output_layouts=Shard(1)),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate()),
    },
    "losses": {
        "tokens": ColwiseParallel(output_layouts=Replicate()),
        "feed.up": ColwiseParallel(),
        "feed.down": RowwiseParallel(),
        "head": ColwiseParallel(output_layouts=Shard(-1), use_local_output=False),
    },
    "boundaries": {
        "norm": PrepareModuleOutput(output_layouts=(Replicate(),), desired_output_layouts=(Replicate(),)),
        "feed": PrepareModuleInputOutput(
            input_layouts=(Replicate(),),
            desired_input_layouts=(Shard(0),),
            use_local_input=True,
            output_layouts=(Shard(0),),
            desired_output_layouts=(Replicate(),),
        ),
    },
}


def trained(plan: str, device: str) -> dict[str, Any]:
    torch.manual_seed(0)
    net = Net().to(device)
    parallelize_module(net, init_device_mesh(device, (2,)), PLANS[plan])
    optimizer = torch.optim.SGD(net.parameters(), lr=0.5, foreach=False)
    generator = torch.Generator().manual_seed(1)
    losses, programs = [], []
    for _ in range(3):
        tokens, wanted = (torch.randint(0, 12, (4, 6), generator=generator).to(device) for _ in range(2))
        optimizer.zero_grad()
        with loss_parallel():
            loss = F.cross_entropy(net(tokens).flatten(0, 1), wanted.flatten())
            loss.backward()
        optimizer.step()
        finish_step(device)
        losses.append(loss.detach())
        programs.append(compiled(device))
    whole = [tensor.full_tensor() if isinstance(tensor, DTensor) else tensor for tensor in (*losses, *net.parameters())]
    placements = [str(p.placements) if isinstance(p, DTensor) else "" for p in net.parameters()]
    return {"values": [each.detach() for each in whole], "placements": placements, "late": programs[-1] - programs[1]}


def quick(rank: int, device: str) -> dict[str, Any]:
    return {"sequences": trained("sequences", device)}


def found(rank: int, device: str) -> dict[str, Any]:
    return {plan: trained(plan, device) for plan in PLANS if plan != "sequences"}
