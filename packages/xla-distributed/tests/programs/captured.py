"""Replicas that train by captured calls, and by recorded ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F

import harness
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_backend
import torch_xla.runtime as xr
from xla_core.abi.events import Cause, SyncEvent, subscribe

STEPS = 24
Batch = tuple[torch.Tensor, torch.Tensor]


def model(rank: int) -> torch.nn.Module:
    torch.manual_seed(rank)
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(6, 3)).to("xla")


def batches(rank: int, rows: Callable[[int], int]) -> list[Batch]:
    generator = torch.Generator().manual_seed(10 + rank)
    return [
        (torch.randn(rows(step), 4, generator=generator).to("xla"), torch.randint(3, (rows(step),), generator=generator).to("xla"))
        for step in range(STEPS)
    ]


def run(step: Callable[..., Any], net: torch.nn.Module, data: list[Batch], after: Callable[[], None], capture: bool) -> dict[str, Any]:
    """What a training step returns, and leaves behind; captured: which of the calls were. Only replica 1 verifies calls."""
    torch_xla.manual_seed(21)
    called = torch_xla.compile(step, capture=capture, verify_every=5 if xr.global_ordinal() else None)
    losses, captured = [], []
    seen: list[SyncEvent] = []
    end = subscribe(lambda event: seen.append(event) if event.cause is Cause.CAPTURED else None, SyncEvent)
    for number, (x, y) in enumerate(data):
        before = len(seen)
        losses.append(called(x, y))
        captured += [number] * (len(seen) - before)
        after()
    end()
    return {
        "losses": [[part.tolist() for part in loss] for loss in losses],
        "parameters": [parameter.tolist() for parameter in net.parameters()],
        "captured": captured,
    }


def nothing() -> None:
    """Between two steps."""


def replicated(rank: int, capture: bool, rows: Callable[[int], int] = lambda step: 5) -> dict[str, Any]:
    """Training with `xm.optimizer_step`, a schedule, and the mean of the loss over all replicas."""
    net = model(rank)
    xm.broadcast_master_param(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.05)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 7)

    def step(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        xm.optimizer_step(optimizer)
        return loss.detach(), xm.all_reduce("sum", loss.detach(), scale=1 / 2)

    return run(step, net, batches(rank, rows), schedule.step, capture)


def parallel(rank: int, capture: bool, views: bool) -> dict[str, Any]:
    """Training with DistributedDataParallel."""
    net = torch.nn.parallel.DistributedDataParallel(model(rank), gradient_as_bucket_view=views)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def step(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor]:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return (loss.detach(),)

    return run(step, net, batches(rank, lambda number: 5), nothing, capture)


def in_place(rank: int, capture: bool) -> dict[str, Any]:
    """A metric that is reduced in place, kept on the device, and gathered."""
    net = model(rank)
    total = torch.zeros(3, device="xla")

    def step(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.no_grad():
            metric = net(x).sum(0)
            xm.all_reduce("max", [metric])
            total.add_(metric)
            return total.clone(), xm.all_gather(metric)

    return run(step, net, batches(rank, lambda number: 5), nothing, capture)


def work(rank: int, folder: str) -> dict[str, Any]:
    dist.init_process_group("xla", init_method="xla://")
    kinds: dict[str, Callable[[bool], dict[str, Any]]] = {
        "optimizer_step": lambda capture: replicated(rank, capture),
        "two shapes": lambda capture: replicated(rank, capture, lambda step: 5 if step < 10 else 3),
        "DistributedDataParallel": lambda capture: parallel(rank, capture, views=False),
        "DistributedDataParallel with views": lambda capture: parallel(rank, capture, views=True),
        "a metric in place": lambda capture: in_place(rank, capture),
    }
    found: dict[str, Any] = {}
    for name, train in kinds.items():
        found[name] = {}
        for way in ("recorded", "captured"):
            try:
                found[name][way] = train(way == "captured")
            except Exception as error:
                found[name][way] = {"error": f"{type(error).__name__}: {error}"}
    dist.destroy_process_group()
    return found


if __name__ == "__main__":
    harness.main(work)
