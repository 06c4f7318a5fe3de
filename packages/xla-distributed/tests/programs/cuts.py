"""Replicas that issue the same collectives and read values at places of their own, as programs for eager devices do.

usage: cuts.py FOLDER
"""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.distributed as dist

import harness
import torch_xla
import torch_xla.core.xla_model as xm

ROUNDS = 12


def ends_its_program(rank: int, chance: random.Random, x: torch.Tensor) -> None:
    """Perhaps read a value, or end a step: where, differs among replicas."""
    choice = chance.randrange(5)
    if choice == 0:
        x.sum().item()
    if choice == 1:
        torch_xla.sync()
    if choice == 2 and rank == 0:
        x.tolist()


def collectives(rank: int, size: int, device: str, places: int | None) -> list[Any]:
    """The values of tensors that go through collectives. places: the seed of where this replica reads; None: nowhere."""
    which, chance = random.Random(0), random.Random(places)
    x, seen = torch.arange(6.0, device=device) + rank, []
    for turn in range(ROUNDS):
        kind = which.randrange(3)
        if kind == 0:
            dist.all_reduce(x)
            x /= size
        if kind == 1:
            dist.broadcast(x, turn % size)
            x = x * (1 + rank)
        if kind == 2:
            parts = [torch.empty_like(x) for _ in range(size)]
            dist.all_gather(parts, x)
            x = torch.stack(parts).mean(0) + rank
        seen.append(x.clone())
        if places is not None:
            ends_its_program(rank, chance, x)
    return [each.tolist() for each in seen]


def captured(rank: int) -> list[str]:
    """The error of replicas whose program cannot end before: a captured step is one program. Replica 0 reads within it."""
    x = torch.ones(2, device="xla")

    def twice() -> torch.Tensor:
        first = xm.all_reduce("sum", x)
        if rank == 0:
            first.tolist()
        return xm.all_reduce("sum", first)

    try:
        (twice if rank == 0 else torch_xla.compile(twice, capture=True))().tolist()
    except RuntimeError as error:
        return [type(error).__name__, str(error)]
    return []


def work(index: int, folder: str) -> dict[str, Any]:
    dist.init_process_group("xla", init_method="xla://")
    size = dist.get_world_size()
    plain = collectives(index, size, "xla", None)
    elsewhere = [collectives(index, size, "xla", 10 * seed + index) for seed in range(4)]
    return {"plain": plain, "elsewhere": elsewhere, "captured": captured(index)}


if __name__ == "__main__":
    harness.main(work)
