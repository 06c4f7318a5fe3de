"""What `accelerate launch` runs on each host of a pod: each replica writes what it knows and the sum over all."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch
from accelerate import Accelerator


def main() -> None:
    """Run as one replica, in the process that accelerate has started."""
    accelerator = Accelerator()
    total = accelerator.reduce(torch.ones(1, device=accelerator.device), "sum")
    report = [accelerator.process_index, accelerator.num_processes, total.item(), os.environ["ACCELERATE_IN_TPU_POD"]]
    Path(sys.argv[1], f"{accelerator.process_index}.json").write_text(json.dumps(report))
