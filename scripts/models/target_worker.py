"""Compiles the steps of one entry for the target in XLA_TARGET and writes its row as JSON: `target_worker.py NAME FILE`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

import entries  # isort: skip  # before what imports torchvision
import large_models
import measuring
import torch_xla
from case import Case
from xla_core.abi.events import CompileEvent, subscribe

STEPS = 3


def train(case: Case) -> None:
    """Some steps: forward, backward, AdamW."""
    model = case.model.train().to("xla")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    for step in range(STEPS):
        optimizer.zero_grad()
        case.loss(model(**measuring.moved(case.batch(step), "xla"))).backward()
        optimizer.step()
        torch_xla.sync()


def main() -> None:
    name, path = sys.argv[1:]
    (entry,) = (each for each in (*entries.ENTRIES, *large_models.LARGE) if each.name == name)
    seconds: list[float] = []
    stop = subscribe(lambda event: seconds.append(event.duration_ns / 1e9), CompileEvent)
    if entry.run is not None:
        entry.run("xla")
    elif entry.make is not None:
        train(entry.make())
    stop()
    row: dict[str, Any] = {
        "programs": len(seconds),
        "compile_s": sum(seconds),
        "longest_s": max(seconds),
        "fallbacks": measuring.fallbacks(),
    }
    Path(path).write_text(json.dumps(row), encoding="utf-8")


if __name__ == "__main__":
    main()
