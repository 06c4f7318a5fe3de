"""Replicas that are spawned by a process which has used its devices: a fresh start on the CPU, refused where they would be forked."""

from __future__ import annotations

from typing import Any

import torch

import harness
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp


def work(rank: int, folder: str) -> Any:
    return xm.all_reduce(xm.REDUCE_SUM, torch.tensor([1.0 + rank], device="xla")).item()


if __name__ == "__main__":
    assert torch.ones(2, device="xla").sum().item() == 2
    try:
        xmp.spawn(work, ("",), start_method="fork")
    except RuntimeError as error:
        assert "already used its xla devices" in str(error)
    else:
        raise SystemExit("forked replicas share a client")
    harness.main(work, start_method="spawn")
    assert torch.ones(3, device="xla").sum().item() == 3
