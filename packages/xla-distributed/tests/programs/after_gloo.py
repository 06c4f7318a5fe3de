"""A worker as Ray Train's torch backend starts it: torch's variables, and a group of Gloo's at their address before anything else."""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

import harness
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
dist.init_process_group("gloo", init_method="env://", rank=rank, world_size=size)
total = xm.all_reduce("sum", torch.tensor([1.0 + xr.global_ordinal()], device="xla"))
on_cpu = torch.tensor([2.0])
dist.all_reduce(on_cpu)
harness.report(sys.argv[1], rank, {"sum": total.item(), "gloo": on_cpu.item(), "place": [xr.process_index(), xr.local_ordinal()]})
dist.destroy_process_group()
