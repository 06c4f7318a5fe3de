"""Training loops whose state is marked in part or not at all, after `marking_cases` has entered SPMD mode: programs, shardings, values."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import torch_xla
import torch_xla.distributed.spmd as xs
from harness import MESH, case, far, stored
from torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel as FSDPv2
from xla_core.abi.metrics import counter

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01, eps=1e-3),
}
WIDE = 96  # its weights are larger than what counts as small


def model() -> torch.nn.Sequential:
    torch.manual_seed(4)
    return torch.nn.Sequential(torch.nn.Linear(16, WIDE), torch.nn.BatchNorm1d(WIDE), torch.nn.ReLU(), torch.nn.Linear(WIDE, WIDE))


def of_tensors(net: torch.nn.Sequential) -> torch.nn.Module:
    xs.mark_sharding(net[0].weight, MESH, ("y", None))
    xs.mark_sharding(net[3].weight, MESH, (None, "y"))
    return net


def fully_sharded(net: torch.nn.Sequential) -> torch.nn.Module:
    return FSDPv2(net, mesh=xs.Mesh(range(8), (8, 1), ("fsdp", "model")))


LAYOUTS: dict[str, tuple[xs.Mesh, str, Callable[[torch.nn.Sequential], torch.nn.Module]]] = {
    "data": (MESH, "x", lambda net: net),
    "tensor": (MESH, "x", of_tensors),
    "fsdp": (xs.Mesh(range(8), (8, 1), ("fsdp", "model")), "fsdp", fully_sharded),
}


def step(net: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    optimizer.zero_grad()
    F.cross_entropy(net(x), y).backward()
    optimizer.step()


def trained(layout: str, optimizer: str) -> dict[str, Any]:
    mesh, axis, mark = LAYOUTS[layout]
    expected = model()
    net = mark(copy.deepcopy(expected).to("xla"))
    mine, theirs = OPTIMIZERS[optimizer](net.parameters()), OPTIMIZERS[optimizer](expected.parameters())
    compiled = []
    for number in range(4):
        generator = torch.Generator().manual_seed(number)
        x, y = torch.randn(16, 16, generator=generator), torch.randint(WIDE, (16,), generator=generator)
        step(expected, theirs, x, y)
        before = counter("UncachedCompile")
        there = xs.mark_sharding(x.to("xla"), mesh, (axis, None)), xs.mark_sharding(y.to("xla"), mesh, (axis,))
        step(net, mine, *there)
        torch_xla.sync()
        compiled.append(counter("UncachedCompile") - before)
    state = [[one for one in mine.state[p].values() if isinstance(one, torch.Tensor) and one.dim()] for p in net.parameters()]
    return {
        "compiled": compiled,
        "held": [stored(p) for p in net.parameters()],
        "state": [[stored(one) for one in of_one] for of_one in state],
        "buffers": [stored(buffer) for buffer in net.buffers() if buffer.dim()],
        "error": max(far(a, b) for a, b in zip(net.parameters(), expected.parameters(), strict=True)),
    }


@case
def loops() -> dict[str, Any]:
    return {layout: {name: trained(layout, name) for name in OPTIMIZERS} for layout in LAYOUTS}


@case
def of_two_shardings() -> dict[str, Any]:
    """Dead inputs of one shape that are sharded otherwise: a batch, and a weight that was not marked."""
    weight = torch.ones(64, 128, device="xla")
    torch_xla.sync()
    compiled = []
    for _ in range(3):
        before = counter("UncachedCompile")
        batch = torch.full((64, 128), 2.0).to("xla")
        xs.mark_sharding(batch, MESH, ("x", "y"))
        weight.add_(batch)
        del batch
        torch_xla.sync()
        compiled.append(counter("UncachedCompile") - before)
    return {"compiled": compiled, "held": stored(weight), "error": far(weight, torch.full((64, 128), 7.0))}
