"""Training steps compiled ahead by all replicas: how many programs each compiled or loaded, in the block and behind it, and the losses.

way: what one replica does otherwise.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor, nn

import harness
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from xla_core.abi.metrics import snapshot

FLAG = "--xla_cpu_enable_fast_math=false"


def trained(model: nn.Module, optimizer: torch.optim.Optimizer, rows: int, otherwise: bool) -> Tensor:
    optimizer.zero_grad()
    loss = model(torch.ones(rows, 5).to("xla")).square().sum()
    if otherwise:
        loss = loss.sinh()
    loss.backward()
    xm.optimizer_step(optimizer)
    torch_xla.sync()
    return loss.detach()


def counts() -> list[int]:
    counters = snapshot().counters
    return [counters.get(name, 0) for name in ("UncachedCompile", "PersistentCacheHit")]


def work(rank: int, folder: str, cache: str, way: str) -> dict[str, Any]:
    if cache:
        xr.initialize_cache(cache)
    if rank and way == "flag":
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {FLAG}"
    torch.manual_seed(0)
    model = nn.Linear(5, 3).to("xla")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    try:
        with torch_xla.compile_only() as warm:
            for rows in {"fewer": (2, 4), "nothing": ()}.get(way, (2, 4, 6)) if not rank else (2, 4, 6):
                trained(model, optimizer, rows, otherwise=bool(rank) and way == "operation" and rows == 4)
            if rank == 1:  # nobody else needs it, nor has to
                alone = torch.ones(11, device="xla").sinh()
                torch_xla.sync()
                del alone
    except RuntimeError as error:
        return {"error": str(error)}
    ahead = counts()
    losses = [trained(model, optimizer, rows, otherwise=False).item() for rows in (2, 4, 6)]
    return {"programs": warm.programs, "ahead": ahead, "all": counts(), "losses": losses}


if __name__ == "__main__":
    harness.main(work)
