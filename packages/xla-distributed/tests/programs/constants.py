"""Collectives over constants that differ by replica, and results read one by one."""

from __future__ import annotations

from typing import Any

import torch

import harness
import torch_xla.core.xla_model as xm
from xla_core.abi.metrics import counter


def work(rank: int, folder: str) -> dict[str, Any]:
    constant = torch.full((2,), float(rank), device="xla")
    sums = [xm.all_reduce(kind, torch.full((3,), rank + 1, device="xla")).tolist() for kind in ("sum", "mul", "min", "max")]
    gathered = xm.all_gather(constant)
    first, second = gathered[:2].clone(), gathered[2:].clone()
    other = xm.all_reduce("sum", constant)
    del gathered
    before = counter("ExecuteComputation")
    read = [first.tolist()]
    if rank == 0:  # reads that only one replica makes run no collective again
        read += [second.tolist(), second.tolist()]
    later = other.tolist()
    return {
        "sums": sums,
        "read": read,
        "later": later,
        "runs": counter("ExecuteComputation") - before,
    }


if __name__ == "__main__":
    harness.main(work)
