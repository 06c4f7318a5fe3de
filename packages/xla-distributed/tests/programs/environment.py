"""One process of a job that only the environment describes (torchrun's variables), or that torchrun starts."""

from __future__ import annotations

import os
import sys

import torch

import harness
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
from torch_xla.experimental import pjrt


def work(index: int, folder: str) -> None:
    before = [xr.world_size(), xr.global_ordinal(), xr.process_count()]
    total = xm.all_reduce("sum", torch.tensor([1.0 + xr.global_ordinal()], device="xla"))
    report = {
        "before": before,
        "index": index,
        "sum": total.item(),
        "local": [xr.local_ordinal(), xr.local_process_count()],
        "host": xr.host_index(),
        "master": [xm.is_master_ordinal(), xm.is_master_ordinal(local=False)],
        "all": xm.mesh_reduce("ranks", xr.global_ordinal(), list),
    }
    harness.report(folder, xr.global_ordinal(), report)


if __name__ == "__main__":
    place = os.environ.get("PLACE")  # "1 of 2": of processes that nobody's launcher started
    if place is None:
        torch_xla.launch(work, (sys.argv[1],))
    else:
        rank, _, size = place.split()
        pjrt.initialize_multiprocess(int(rank), int(size))
        work(int(rank), sys.argv[1])
    sys.exit(int(os.environ.get("EXIT_CODE", "0")))
