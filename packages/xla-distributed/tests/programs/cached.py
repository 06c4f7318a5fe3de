"""Training steps with collectives, their programs kept on disk: what was loaded, what compiled, and the parameters in the end."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import nn

import harness
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from xla_core.abi.metrics import snapshot

STEPS = 3


def train(model: nn.Module, batch: torch.Tensor, step: Any) -> list[float]:
    """The parameters after some steps, in line."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        step(optimizer)
    values: list[float] = torch.cat([parameter.detach().cpu().flatten() for parameter in model.parameters()]).tolist()
    return values


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))


def step(optimizer: torch.optim.Optimizer) -> None:
    xm.optimizer_step(optimizer)
    torch_xla.sync()


def work(rank: int, folder: str, cache: str, mode: str) -> dict[str, Any]:
    xr.initialize_cache(cache, readonly=mode == "readonly")
    batch = torch.randn(6, 4, generator=torch.Generator().manual_seed(1))
    model = network()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(rank)  # the master's reach the others
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        xm.broadcast_master_param(model.to("xla"))
        values = train(model, batch[rank::2].to("xla"), step)
        total = xm.all_reduce("sum", torch.tensor([rank + 1.0], device="xla")).item()
    counters = snapshot().counters
    names = ("PersistentCacheHit", "PersistentCacheMiss", "UncachedCompile")
    return {
        "values": values,
        "expected": train(network(), batch, lambda optimizer: optimizer.step()),
        "total": total,
        "warnings": [str(warning.message) for warning in caught],
        **{name: counters.get(name, 0) for name in names},
    }


if __name__ == "__main__":
    harness.main(work)
