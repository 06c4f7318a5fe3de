"""One of three processes that nothing but a store of torch's connects: groups made again, split, and one process that is killed.

usage: store_groups.py FOLDER RANK ADDRESS
"""

from __future__ import annotations

import os
import signal
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import harness
import torch_xla  # noqa: F401


def total(rank: int, group: Any = None) -> list[float]:
    x = torch.full((2,), 1.0 + rank, device="xla")
    dist.all_reduce(x, group=group)
    return list(x.tolist())


def started_twice(rank: int, folder: str, address: str) -> dict[str, Any]:
    """What each life of the default group finds. The messages of the first are not taken for those of the second."""
    found: dict[str, Any] = {}
    for life, url in enumerate((f"tcp://{address}", f"file://{folder}/store")):
        dist.init_process_group("xla", init_method=url, rank=rank, world_size=3, device_id=torch.device("xla:0"))
        group = dist.new_group([0, 2])
        if rank == 0:
            dist.send(torch.tensor([life], device="xla"), 2)
        if rank == 2 and life == 1:
            x = torch.zeros(1, dtype=torch.int64, device="xla")
            dist.recv(x, 0)
            found["received"] = x.tolist()
        split = dist.split_group(split_ranks=[[0, 2], [1]])
        sums = [total(rank), total(rank, split), *([total(rank, group)] if rank != 1 else [])]
        found[str(life)] = [dist.get_rank(split), dist.get_world_size(split), sums]
        if life == 0:
            dist.destroy_process_group()
    return found


def late(rank: int) -> list[str]:
    """The error of a barrier that one process comes to when the others have given up."""
    group = dist.distributed_c10d._get_default_group()
    if rank == 1:
        dist.barrier(dist.new_group([0, 1]))
        return []
    found = []
    try:
        group.monitored_barrier(timedelta(seconds=1))
    except RuntimeError as error:
        found = [type(error).__name__, str(error)]
    link = dist.new_group([0, 1])
    if rank == 0:
        dist.barrier(link)
    return found


def meets(rank: int, folder: str) -> bool:
    """Whether the other member of a new group had come when this one got it. The other one comes once it knows that this one waits."""
    waits, comes = Path(folder, "waits"), Path(folder, "comes")
    if rank == 0:
        waits.touch()
    if rank == 1:
        while not waits.exists():
            time.sleep(0.01)
        comes.touch()
    dist.new_group([0, 1])
    return comes.exists()


def work(rank: int, folder: str, address: str) -> None:
    found = started_twice(rank, folder, address)
    found["late"] = late(rank)
    found["meets"] = meets(rank, folder)
    harness.report(folder, rank, found)
    group = dist.new_group([0, 2])
    if rank == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    total(rank, group if rank == 0 else None)  # waits for the one that is killed


if __name__ == "__main__":
    work(int(sys.argv[2]), sys.argv[1], sys.argv[3])
