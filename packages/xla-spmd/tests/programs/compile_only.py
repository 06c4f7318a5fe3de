"""Training steps over eight devices, compiled ahead: how many programs were compiled and loaded, then and later. usage: FILE CACHE"""

from __future__ import annotations

import json
import sys

import torch

import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from xla_core.abi.metrics import snapshot


def counts() -> list[int]:
    counters = snapshot().counters
    return [counters.get(name, 0) for name in ("UncachedCompile", "PersistentCacheHit")]


def main() -> None:
    xr.initialize_cache(sys.argv[2])
    xr.use_spmd()
    mesh = xs.Mesh(range(xr.global_runtime_device_count()), (4, 2), ("x", "y"))
    torch.manual_seed(1)
    net = torch.nn.Linear(16, 8).to("xla")
    xs.mark_sharding(net.weight, mesh, ("x", "y"))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.1)

    def losses(rows: int) -> list[float]:
        said = []
        for _ in range(2):
            optimizer.zero_grad()
            batch = xs.mark_sharding(torch.ones(rows, 16).to("xla"), mesh, ("x", None))
            loss = net(getattr(batch, "global_tensor", batch)).square().mean()
            loss.backward()
            optimizer.step()
            torch_xla.sync()
            said.append(loss.item())
        return said

    with torch_xla.compile_only():
        for rows in (8, 16):
            losses(rows)
    ahead = counts()
    report = {"losses": [*losses(8), *losses(16)], "ahead": ahead, "all": counts()}
    with open(f"{sys.argv[1]}.{xr.process_index()}", "w", encoding="utf-8") as file:
        json.dump(report, file)


if __name__ == "__main__":
    main()
