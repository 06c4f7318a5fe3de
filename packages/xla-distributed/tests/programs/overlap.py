"""A training step that reduces its gradients in buckets, and one that reduces them together: its HLO text, and what it makes."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn

import harness
import torch_xla
import torch_xla._XLAC as _XLAC
import torch_xla.core.xla_model as xm

LAYERS, WIDTH, BATCH = 6, 360, 4  # two layers fill a bucket of 1 MiB


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*(layer for _ in range(LAYERS) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())))


def batch(rank: int) -> torch.Tensor:
    return torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(rank))


def step(model: nn.Module, inputs: torch.Tensor) -> torch.optim.Optimizer:
    """Everything of a training step but the optimizer's."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model(inputs).square().sum(1).mean().backward()
    return optimizer


def work(rank: int, folder: str) -> dict[str, Any]:
    report: dict[str, Any] = {}
    expected = network()
    step(expected, torch.cat([batch(0), batch(1)])).step()
    for cap in (1, 0):
        os.environ["ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB"] = str(cap)
        model = network().to("xla")
        xm.optimizer_step(step(model, batch(rank).to("xla")))
        hlo = _XLAC._get_xla_tensors_hlo([parameter.detach() for parameter in model.parameters()])
        torch_xla.sync()
        pairs = zip(model.parameters(), expected.parameters(), strict=True)
        off = max((mine.detach().cpu() - theirs.detach()).abs().max().item() for mine, theirs in pairs)
        report[str(cap)] = {"hlo": hlo, "off": off}
    return report


if __name__ == "__main__":
    harness.main(work)
