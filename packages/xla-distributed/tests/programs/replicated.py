"""DistributedDataParallel on two processes; a section of `torch_stack.py`."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel
from torch_stack import compiled, finish_step, refusal


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.last, self.norm = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 2), nn.BatchNorm1d(4)

    def forward(self, x: torch.Tensor, all_of_it: bool) -> torch.Tensor:
        x = self.norm(self.first(x).tanh())
        return self.last(self.middle(x) if all_of_it else x)


class Plain(nn.Linear):
    """One matrix, so that random numbers of compression mean the same on any device."""

    def __init__(self) -> None:
        super().__init__(4, 6, bias=False)

    def forward(self, x: torch.Tensor, _: bool) -> torch.Tensor:
        return super().forward(x)


def trained(
    rank: int,
    device: str,
    used: Callable[[int], bool] = lambda number: True,
    hook: Any = None,
    state: Any = None,
    kind: Callable[[], nn.Module] = Branches,
    parts: int = 1,
    **options: Any,
) -> dict[str, Any]:
    torch.manual_seed(rank)  # the first rank's values count
    net = kind().to(device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        model = DistributedDataParallel(net, **options)
    if hook is not None:
        model.register_comm_hook(state, hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    programs = []
    for number in range(5):
        x = torch.randn(4, 4, generator=torch.Generator().manual_seed(10 * number + rank)).to(device)
        optimizer.zero_grad()
        for _ in range(parts - 1):
            with model.no_sync():
                model(x * 2, used(number)).square().mean().backward()
        model(x, used(number)).square().mean().backward()
        optimizer.step()
        finish_step(device)
        programs.append(compiled(device))
    return {"end": [each.detach() for each in (*net.parameters(), *net.buffers())], "late": programs[-1] - programs[3]}


def averaged(_, bucket):  # type: ignore[no-untyped-def]  # torch looks at annotations, and wants no strings
    work = dist.all_reduce(bucket.buffer() / dist.get_world_size(), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])  # type: ignore[union-attr]


def power() -> Any:
    return powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2, min_compression_rate=0.5)


def joined(device: str) -> None:
    with DistributedDataParallel(nn.Linear(2, 2).to(device)).join():
        pass


def quick(rank: int, device: str) -> dict[str, Any]:
    return {
        "unused": trained(rank, device, lambda number: (number + rank) % 2 == 0, find_unused_parameters=True),
        "static": trained(rank, device, lambda number: False, static_graph=True),
        **({"join": refusal(lambda: joined(device))} if device == "xla" else {}),
    }


def found(rank: int, device: str) -> dict[str, Any]:
    results = {
        "default": trained(rank, device),
        "views": trained(rank, device, gradient_as_bucket_view=True, parts=2),
        "small buckets": trained(rank, device, bucket_cap_mb=1e-5, parts=2),
        "unused by all": trained(rank, device, lambda number: False, find_unused_parameters=True, gradient_as_bucket_view=True),
        "own buffers": trained(rank, device, broadcast_buffers=False),
        "float16": trained(rank, device, hook=default_hooks.fp16_compress_hook),
        "hook": trained(rank, device, hook=averaged),
        "power": trained(rank, device, hook=powerSGD_hook.powerSGD_hook, state=power(), kind=Plain),
    }
    if device == "xla":  # torch has none on the CPU
        results["bfloat16"] = trained(rank, device, hook=default_hooks.bf16_compress_hook)
    return results
