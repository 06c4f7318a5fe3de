"""A GPT trained five ways on four processes: alone, DDP, FSDP2, tensor parallel, both of them; a section of `torch_stack.py`."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch_stack import compiled, finish_step

from torch_xla.distributed.xla_backend import ProcessGroupXla

WORDS, WIDTH, LENGTH, HEAD = 12, 8, 5, 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        """Over the heads that this process has."""
        heads = [layer(x).unflatten(-1, (-1, HEAD)).transpose(1, 2) for layer in (self.query, self.key, self.value)]
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        return self.out(mixed.transpose(1, 2).flatten(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.before(x))
        return x + self.down(F.gelu(self.up(self.after(x))))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList([Block()])
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def tensor_parallel(net: GPT, mesh: DeviceMesh) -> None:
    for block in net.blocks:
        columns = dict.fromkeys(("query", "key", "value", "up"), ColwiseParallel())
        parallelize_module(block, mesh, {**columns, "out": RowwiseParallel(), "down": RowwiseParallel()})
    parallelize_module(
        net, mesh, {"words": RowwiseParallel(input_layouts=Replicate()), "head": ColwiseParallel(output_layouts=Replicate())}
    )


def shard_fully(net: GPT, mesh: DeviceMesh) -> None:
    for block in net.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(net, mesh=mesh)


def mesh_for(way: str, device: str) -> DeviceMesh:
    if not way.startswith("FSDP2 and TP"):
        return init_device_mesh(device, (4,))
    # On xla, groups of one axis are programs of their own, unless all groups issue theirs together.
    together = {axis: ("xla", ProcessGroupXla.Options()) for axis in ("data", "tensor") if device == "xla" and way.endswith("one program")}
    return init_device_mesh(device, (2, 2), mesh_dim_names=("data", "tensor"), backend_override=together or None)


def placed(way: str, net: GPT, device: str) -> tuple[nn.Module, int, int]:
    """The model of this process; into how many parts a batch is cut, and which is this process's."""
    mesh = mesh_for(way, device)
    rank = dist.get_rank()
    if way == "DDP":
        return DistributedDataParallel(net), 4, rank
    if way == "FSDP2":
        shard_fully(net, mesh)
        return net, 4, rank
    if way == "TP":
        tensor_parallel(net, mesh)
    elif way.startswith("FSDP2 and TP"):
        tensor_parallel(net, mesh["tensor"])
        shard_fully(net, mesh["data"])
        return net, 2, mesh.get_local_rank("data")
    return net, 1, 0


def trained(way: str, device: str) -> dict[str, Any]:
    torch.manual_seed(0)
    net = GPT().to(device)
    model, parts, mine = placed(way, net, device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, foreach=False)
    generator = torch.Generator().manual_seed(1)
    losses, programs = [], []
    for _ in range(4):
        tokens, wanted = (torch.randint(0, WORDS, (4, LENGTH), generator=generator).chunk(parts)[mine].to(device) for _ in range(2))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(tokens).flatten(0, 1), wanted.flatten())
        loss.backward()
        optimizer.step()
        seen = loss.detach().clone() / 4
        dist.all_reduce(seen)
        finish_step(device)
        losses.append(seen)
        programs.append(compiled(device))
    whole = [p.full_tensor() if isinstance(p, DTensor) else p for p in net.parameters()]
    return {"losses": losses, "sums": [p.detach().square().sum() for p in whole], "late": programs[-1] - programs[2]}


def found(rank: int, device: str) -> dict[str, Any]:
    return {way: trained(way, device) for way in ("plain", "DDP", "FSDP2", "TP", "FSDP2 and TP", "FSDP2 and TP, one program")}
