"""`run_multiprocess` from a process that has used its device: new processes, whose process groups are not left behind."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
import torch.distributed as dist

import harness
from torch_xla._internal import pjrt


def work(first: int, second: int) -> Any:
    dist.init_process_group("xla", init_method="xla://")
    total = torch.tensor([float(first + dist.get_rank())], device="xla")
    dist.all_reduce(total)
    return os.getpid(), dist.get_world_size(), total.item(), second


def fail() -> None:
    raise ValueError("as told")


if __name__ == "__main__":
    assert torch.ones(2, device="xla").sum().item() == 2
    results = pjrt.run_multiprocess(work, 5, second=7)
    try:
        pjrt.run_multiprocess(fail)
    except Exception as error:
        told = "as told" in str(error)
    found = {
        "ranks": list(results),
        "apart": os.getpid() not in [pid for pid, *_ in results.values()],
        "results": [rest for _, *rest in results.values()],
        "initialized": dist.is_initialized(),
        "still": torch.ones(3, device="xla").sum().item(),
        "error": told,
    }
    harness.report(sys.argv[1], 0, found)
