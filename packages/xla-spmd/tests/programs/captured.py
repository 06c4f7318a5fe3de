"""Trains over a mesh by recorded and by captured calls; prints as JSON what both come to."""

from __future__ import annotations

import json
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import torch_xla
import torch_xla.distributed.spmd as xs
import torch_xla.runtime as xr
from harness import text
from torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel as FSDPv2
from xla_core.abi.events import Cause, SyncEvent, subscribe

Found = dict[str, Any]
xr.use_spmd()
MESH = xs.Mesh(range(4), (2, 2), ("data", "model"))
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
}


def model() -> torch.nn.Sequential:
    torch.manual_seed(3)
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Dropout(0.1), torch.nn.Linear(16, 4)).to("xla")


def mark(net: torch.nn.Sequential) -> None:
    for place, spec in ((0, ("model", "data")), (3, (None, "model"))):
        xs.mark_sharding(net[place].weight, MESH, spec)


def batch(number: int, spec: tuple[str | None, ...] = ("data", None)) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(number)
    x, y = torch.randn(8, 8, generator=generator).to("xla"), torch.randint(4, (8,), generator=generator).to("xla")
    xs.mark_sharding(x, MESH, spec)
    xs.mark_sharding(y, MESH, spec[:1])
    return x, y


def states(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [item for state in optimizer.state.values() for item in state.values() if isinstance(item, torch.Tensor) and item.dim()]


def train(
    net: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    capture: bool,
    steps: int,
    between: Callable[[int], None] = lambda number: None,
    data: Callable[[int], tuple[torch.Tensor, torch.Tensor]] = batch,
) -> Found:
    """Losses and parameters; shardings after each step, where they change; which calls were captured."""

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    torch_xla.manual_seed(5)
    called = torch_xla.compile(step, capture=capture, verify_every=None)
    seen: list[SyncEvent] = []
    end = subscribe(lambda event: seen.append(event) if event.cause is Cause.CAPTURED else None, SyncEvent)
    losses, captured, shardings = [], [], []
    for number in range(steps):
        between(number)
        before = len(seen)
        losses.append(called(*data(number)))
        captured += [number] * (len(seen) - before)
        now = [text(tensor) for tensor in (*net.parameters(), *states(optimizer))]
        if not shardings or shardings[-1] != now:
            shardings.append(now)
    end()
    held = [*net.parameters(), *states(optimizer)]
    return {
        "losses": [loss.item() for loss in losses],
        "held": [tensor.tolist() for tensor in held],
        "captured": captured,
        "shardings": shardings,
    }


def trained(name: str) -> Callable[[bool], Found]:
    def run(capture: bool) -> Found:
        net = model()
        mark(net)
        return train(net, OPTIMIZERS[name](net.parameters()), capture, 50)

    return run


def marked_anew(capture: bool) -> Found:
    net = model()
    mark(net)

    def between(number: int) -> None:
        if number == 8:
            xs.clear_sharding(net[0].weight)
            xs.mark_sharding(net[0].weight, MESH, ("data", None))
        if number == 16:
            xs.clear_sharding(net[3].weight)

    return train(net, OPTIMIZERS["momentum"](net.parameters()), capture, 24, between)


def inputs_marked_otherwise(capture: bool) -> Found:
    net = model()
    mark(net)
    specs = (("data", None), (None, "model"))
    return train(net, OPTIMIZERS["AdamW"](net.parameters()), capture, 16, data=lambda number: batch(number, specs[number // 8]))


def fully_sharded(capture: bool) -> Found:
    xs.set_global_mesh(xs.Mesh(range(4), (4, 1), ("fsdp", "model")))
    net = FSDPv2(model())
    return train(net, OPTIMIZERS["AdamW"](net.parameters()), capture, 12)


CASES: dict[str, Callable[[bool], Found]] = {
    **{name: trained(name) for name in OPTIMIZERS},
    "marked anew": marked_anew,
    "inputs marked otherwise": inputs_marked_otherwise,
    "FSDPv2": fully_sharded,
}

found: Found = {}
for name, run in CASES.items():
    try:
        found[name] = {"recorded": run(False), "captured": run(True)}
    except Exception:
        found[name] = {"failed": traceback.format_exc()}
print(json.dumps(found))
