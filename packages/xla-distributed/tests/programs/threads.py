"""Threads of one process as replicas on two devices: DataParallel, spawn_threads, every collective, what goes wrong."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

import torch

import harness
import torch_xla.core.functions as xf
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch_xla._internal import pjrt
from torch_xla.distributed.data_parallel import Context, DataParallel
from xla_core.abi.metrics import snapshot

Batch = tuple[torch.Tensor, torch.Tensor]


def batches(count: int) -> list[Batch]:
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(3, 4, generator=generator), torch.randn(3, 2, generator=generator)) for _ in range(count)]


def network() -> torch.nn.Module:
    """Sees in forward and in backward what the other replica has."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 5), xf.SyncBatchNorm(5), torch.nn.Tanh(), torch.nn.Linear(5, 2))


def train(model: torch.nn.Module, loader: Any, device: torch.device, context: Context) -> Any:
    optimizer = context.getattr_or("optimizer", lambda: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9))
    seen = 0
    for x, y in loader:
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x), y).backward()
        xm.optimizer_step(optimizer)
        seen += int(x.device == device)
    return [seen, str(device), xr.world_size(), xr.global_ordinal(), xm.is_master_ordinal()]


def training() -> dict[str, Any]:
    """Two passes over five batches, of which each pass drops the last; then a pass in which nothing may compile."""
    parallel = DataParallel(network)
    results = [parallel(train, batches(5)) for _ in range(2)]
    ends = [[tensor.cpu().tolist() for tensor in model.state_dict().values()] for model in parallel.models]
    before = snapshot().counters["UncachedCompile"]
    parallel(train, batches(5))
    late = snapshot().counters["UncachedCompile"] - before
    return {"results": results, "ends": ends, "devices": parallel.devices, "late": late}


def collectives(ordinal: int) -> dict[str, Any]:
    """The results of replica `ordinal` of two, which gives `mine`."""
    mine = torch.tensor([[1.0, -2.0], [3.0, 5.0]], device="xla") * (1 - 3 * ordinal)
    whole = torch.tensor([6, 3, 7], device="xla") - 2 * ordinal
    found: dict[str, Any] = {f"float {name}": xm.all_reduce(name, mine, scale=0.5) for name in ("sum", "mul", "min", "max")}
    found |= {f"whole {name}": xm.all_reduce(name, whole) for name in ("sum", "and", "or")}
    flags = whole > 4
    found |= {f"flag {name}": xm.all_reduce(name, flags) for name in ("sum", "and", "max")}
    listed = [mine.clone(), whole.clone(), mine[0] + 1]
    found["same list"] = xm.all_reduce("sum", listed) is listed
    found["list"] = listed
    found["alone"] = xm.all_reduce("sum", mine, groups=[[1], [0]])
    found["gather"] = xm.all_gather(mine, dim=1)
    found["gather swapped"] = xm.all_gather(mine, groups=[[1, 0]])
    found["scatter"] = xm.reduce_scatter("sum", mine, 2.0, 1, 2)
    found["exchange"] = xm.all_to_all(mine, 0, 1, 2)
    found["permute"] = xm.collective_permute(mine, [[0, 1]])
    root = [mine.clone(), whole.clone()]
    xm.collective_broadcast(root, 1)
    found["broadcast"] = root
    weight = mine.clone().requires_grad_()
    xf.all_gather(weight).square().sum().backward()
    found["gradient"] = weight.grad
    shown = {name: [item.tolist() for item in value] if isinstance(value, list) else value for name, value in found.items()}
    shown = {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in shown.items()}
    shown["mean"] = xm.mesh_reduce("mean", ordinal + 0.5, lambda parts: sum(parts) / len(parts))
    shown["payloads"] = [part.decode() for part in xm.rendezvous("payloads", str(ordinal).encode())]
    shown["on one"] = xm.do_on_ordinals(lambda x: x.tolist(), (whole,), ordinals=1)
    return shown


def spawned() -> list[Any]:
    found: list[Any] = [None, None]

    def work(ordinal: int, text: str) -> None:
        found[ordinal] = [text, collectives(ordinal)]

    pjrt.spawn_threads(work, ("given",))
    return found


def failure(loop: Callable[..., Any], count: int = 60) -> dict[str, Any]:
    """The ends of `DataParallel` over both devices."""
    try:
        result = DataParallel(network)(loop, batches(count))
    except BaseException as error:
        frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        return {"error": type(error).__name__, "text": str(error), "frames": frames, "left": left()}
    return {"result": result, "left": left()}


def left() -> list[str]:
    """Threads that should have ended."""
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(("xla-replica", "xla-loader-upload"))]


def raises(model: torch.nn.Module, loader: Any, device: torch.device, context: Context) -> None:
    """One replica raises; the other only takes batches."""
    for place, _ in enumerate(loader):
        if place == 2 and device.index == 1:
            raise KeyError("mine")


def raises_while_others_wait(model: torch.nn.Module, loader: Any, device: torch.device, context: Context) -> None:
    if device.index == 1:
        raise KeyError("mine")
    xm.rendezvous("nobody comes")


def ends_early(model: torch.nn.Module, loader: Any, device: torch.device, context: Context) -> int:
    seen = 0
    for _ in loader:
        seen += 1
        if seen == 2 and device.index == 1:
            break
    return seen


def ends_without_the_other(model: torch.nn.Module, loader: Any, device: torch.device, context: Context) -> None:
    if device.index == 0:
        xm.all_reduce("sum", torch.ones(3, device=device))


def disagrees(model: torch.nn.Module, loader: Any, device: torch.device, context: Context) -> None:
    xm.all_reduce("sum", torch.ones(3 + device.index, device=device))


def comes_elsewhere(model: torch.nn.Module, loader: Any, device: torch.device, context: Context) -> None:
    xm.mesh_reduce("loss" if device.index else "score", 1.0, sum)


def elsewhere() -> dict[str, Any]:
    """No device, one device, devices that cannot be."""

    def look(model: torch.nn.Module, loader: Any, device: torch.device, context: Context) -> list[Any]:
        kinds = [str(x.device) for x, _ in loader]
        return [len(kinds), sorted(set(kinds)), str(device), str(context.device), xr.world_size(), str(next(model.parameters()).device)]

    module = network()
    on_cpu, on_one = DataParallel(module, []), DataParallel(module, [1], batches_per_execution=2)
    found: dict[str, Any] = {
        "cpu": on_cpu(look, batches(3)),
        "cpu is the network": on_cpu.models[0] is module and on_cpu.devices == [],
        "one": on_one(look, batches(3), 0, loader_prefetch_size=1),
        "copied": on_one.models[0] is not module and str(next(module.parameters()).device),
    }
    for name, devices in (("twice", ["xla:0", "xla:0"]), ("other", ["cpu"])):
        try:
            DataParallel(module, devices)
        except ValueError as error:
            found[name] = str(error)
    return found


def main(folder: str) -> None:
    pjrt.initialize_singleprocess(0, 1)
    failing = (raises, raises_while_others_wait, ends_early, ends_without_the_other, disagrees, comes_elsewhere)
    found = {
        "training": training(),
        "spawned": spawned(),
        "failures": {loop.__name__: failure(loop) for loop in failing},
        "elsewhere": elsewhere(),
    }
    harness.report(folder, 0, found)


if __name__ == "__main__":
    main(sys.argv[1])
