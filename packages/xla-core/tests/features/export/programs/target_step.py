"""Exports a training step for a target, or loads it: `export FOLDER TARGET`, `read FOLDER DEVICES`; `DEVICES` are indices, as in `0,3`."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable

import torch

import torch_xla
from xla_core.abi.metrics import snapshot

BEFORE, AFTER = range(4), range(4, 8)
"""Numbers of the batches before the export, and after it."""


def trainer(device: str) -> Callable[[torch.Tensor], torch.Tensor]:
    """A step of Adam over a small net with batch norm."""
    torch.manual_seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU(), torch.nn.Linear(8, 1)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)

    def train(x: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(x) - 1).square().mean()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return train


def batch(number: int) -> torch.Tensor:
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(number))


def export(path: str, target: str | None) -> None:
    train = torch_xla.compile(trainer("xla"), capture=True)
    for number in BEFORE:
        train(batch(number).to("xla"))
    torch_xla.export_step(train, path, target=target)


def read(folder: str, devices: list[int]) -> None:
    """Load both steps on each device; prints all losses, how many programs were compiled, and the warnings."""
    losses, before = [], snapshot().counters.get("UncachedCompile", 0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for device in devices:
            torch.accelerator.set_device_index(device)
            step = torch_xla.load_step(f"{folder}/values")
            state = step.state_dict()
            losses.append([step(batch(number)).item() for number in AFTER])
            step = torch_xla.load_step(f"{folder}/planned")
            step.load_state_dict(state)
            losses.append([step(batch(number)).item() for number in AFTER])
    compiled = snapshot().counters.get("UncachedCompile", 0) - before
    print(json.dumps([losses, compiled, [str(each.message) for each in caught]]))


if __name__ == "__main__":
    command, folder, argument = sys.argv[1:]
    if command == "export":
        export(f"{folder}/values", argument)
        with torch_xla.target(argument):
            export(f"{folder}/planned", None)
    else:
        read(folder, [int(index) for index in argument.split(",")])
