"""One host of a TPU slice whose chips are devices of the CPU: it starts a replica for each, by `spawn` on host 0, by `launch` on others."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

import harness
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr
from xla_distributed.job import cluster


def work(index: int, folder: str) -> None:
    dist.init_process_group("xla", init_method="pjrt://")
    total = torch.tensor([1.0 + xr.global_ordinal()], device="xla")
    dist.all_reduce(total)
    report = {
        "index": index,
        "sum": total.item(),
        "world": [dist.get_rank(), dist.get_world_size(), xr.world_size()],
        "local": [xr.local_ordinal(), xr.local_process_count(), xr.host_index()],
        "all": xm.mesh_reduce("ranks", xr.global_ordinal(), list),
    }
    harness.report(folder, xr.global_ordinal(), report)


if __name__ == "__main__":
    cluster._is_there = lambda name: name == "Cloud TPU on GKE"
    if os.environ["TPU_WORKER_ID"] == "0":
        xmp.spawn(work, (sys.argv[1],))
    else:
        torch_xla.launch(work, (sys.argv[1],))
