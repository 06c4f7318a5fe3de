"""A worker of torchrun: in its first life replica 1 is killed while the other waits for it; the second life finds the sum.

usage: restarted.py FOLDER
"""

from __future__ import annotations

import os
import signal
import sys

import torch
import torch.distributed as dist

import harness
import torch_xla  # noqa: F401


def work(folder: str) -> None:
    dist.init_process_group("xla", init_method="env://")
    rank, life = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    x = torch.tensor([1.0 + rank], device="xla")
    dist.all_reduce(x)
    x.tolist()
    if life == 0 and rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(x)
    harness.report(folder, rank, {"life": life, "size": dist.get_world_size(), "sum": x.tolist()})
    dist.destroy_process_group()


if __name__ == "__main__":
    work(sys.argv[1])
