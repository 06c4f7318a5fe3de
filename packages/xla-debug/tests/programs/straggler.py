"""Three replicas of a training job; the batches of one come late."""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr


def batches(ordinal: int) -> Iterator[torch.Tensor]:
    for step in range(40):
        if ordinal == 1:
            time.sleep(0.06)  # MISTAKE straggler
        yield torch.full((16, 32), float(step))


def train(index: int) -> None:
    weight = torch.zeros(32, 4, device="xla", requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=0.001)
    for batch in batches(xr.global_ordinal()):
        optimizer.zero_grad()
        loss = ((batch.to("xla") @ weight - 1) ** 2).mean()
        loss.backward()
        xm.optimizer_step(optimizer)
        torch_xla.sync()


if __name__ == "__main__":
    xmp.spawn(train, nprocs=3)
