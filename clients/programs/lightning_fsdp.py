"""Lightning Fabric's XLAFSDPStrategy on replicas of the CPU beside plain training; reports how far the checkpoint that it makes is off."""

from __future__ import annotations

import torchvision_operators  # noqa: F401

# isort: split
import json
import sys
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from lightning.fabric.accelerators import XLAAccelerator
from lightning.fabric.strategies import XLAFSDPStrategy
from torch import nn

STEPS, MICRO = 4, 2


class XLADevices(XLAAccelerator):
    """Lightning's accelerator for XLA, which counts TPUs only; this one counts whatever xla devices there are."""

    @staticmethod
    def parse_devices(devices: Any) -> int:
        return int(devices)

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        return [torch.device("xla", index) for index in range(devices)]

    @staticmethod
    def is_available() -> bool:
        return True


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.Linear(8, 7), nn.Tanh()), nn.Linear(7, 2))


def part(step: int, micro: int, rank: int) -> torch.Tensor:
    return torch.full((2, 4), 1.0 + step + 0.5 * micro + 0.25 * rank)


def plain(size: int) -> nn.Module:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for step in range(STEPS):
        for micro in range(MICRO):
            model(torch.cat([part(step, micro, rank) for rank in range(size)])).square().mean().backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    return model


def train(fabric: Fabric, report: str) -> None:
    model = fabric.setup_module(network())
    optimizer = fabric.setup_optimizers(torch.optim.AdamW(model.parameters(), lr=0.01))
    for step in range(STEPS):
        for micro in range(MICRO):
            with fabric.no_backward_sync(model, enabled=micro < MICRO - 1):
                fabric.backward(model(part(step, micro, fabric.global_rank).to(fabric.device)).square().mean())
        fabric.clip_gradients(model, optimizer, max_norm=1.0)
        optimizer.step()
        optimizer.zero_grad()
    saved = Path(report).parent / "saved"
    fabric.save(str(saved), {"model": model, "optimizer": optimizer})
    if fabric.is_global_zero:
        found = torch.load(saved, weights_only=True)["model"]
        state = plain(fabric.world_size).state_dict()
        off = {name: (found[name] - value).abs().max().item() for name, value in state.items()}
        Path(report).write_text(json.dumps({"size": fabric.world_size, "off": off, "names": list(found) == list(state)}), encoding="utf-8")


def main() -> None:
    strategy = XLAFSDPStrategy(auto_wrap_policy={nn.Sequential}, activation_checkpointing_policy={nn.Sequential}, state_dict_type="full")
    Fabric(accelerator=XLADevices(), devices=2, strategy=strategy).launch(train, sys.argv[1])


if __name__ == "__main__":
    main()
