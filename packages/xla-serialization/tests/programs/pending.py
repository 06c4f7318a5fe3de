"""Saves step 0, then step 1 in the background with so many tensors of a megabyte, and ends.

usage: pending.py FOLDER COUNT [full]: no file of step 1 can be longer than a few bytes
"""

from __future__ import annotations

import resource
import sys

import torch

import torch_xla.experimental.distributed_checkpoint as xc

folder, count, *full = sys.argv[1:]
manager = xc.CheckpointManager(folder, save_interval=1)
manager.save(0, {"weight": torch.ones(1000, device="xla")})
if full:
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))
manager.save_async(1, {"large": [torch.full((250_000,), float(number)) for number in range(int(count))]})
