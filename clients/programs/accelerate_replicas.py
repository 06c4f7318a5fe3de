"""Two replicas of accelerate, after the launching process has asked for the devices; each reports what it gathered and trained."""

from __future__ import annotations

import torchvision_operators  # noqa: F401

# isort: split
import json
import sys
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, notebook_launcher
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp

SAMPLES = 1001


def trained(accelerator: Accelerator) -> list[float]:
    """Weights after an epoch over the samples."""
    torch.manual_seed(0)  # accelerate leaves it to its users that all start alike
    rows = torch.linspace(0, 1, 24).unsqueeze(1)
    layer = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(layer, optimizer, DataLoader(TensorDataset(rows, 2 * rows), batch_size=4))
    for inputs, targets in loader:
        optimizer.zero_grad()
        accelerator.backward(nn.functional.mse_loss(model(inputs), targets))
        optimizer.step()
    return [parameter.item() for parameter in layer.parameters()]


def gathered(accelerator: Accelerator) -> tuple[list[float], list[bool]]:
    """The samples that metrics are made of, and at which batches the loader said that it ends."""
    loader = accelerator.prepare(DataLoader(TensorDataset(torch.arange(float(SAMPLES))), batch_size=32))
    parts, ends = [], []
    for (rows,) in loader:
        ends.append(accelerator.gradient_state.end_of_dataloader)
        parts.append(accelerator.gather_for_metrics(rows).cpu())
    return torch.cat(parts).tolist(), ends


def replica(*args: Any) -> None:
    """What each replica runs; `xmp.spawn` gives its number first, the notebook's launcher too."""
    folder = Path(args[-1])
    accelerator = Accelerator()
    samples, ends = gathered(accelerator)
    found = {
        "rank": accelerator.process_index,
        "size": accelerator.num_processes,
        "device": accelerator.device.type,
        "samples": samples,
        "ends": ends,
        "sum": accelerator.reduce(torch.tensor([accelerator.process_index + 1.0], device=accelerator.device), "sum").item(),
        "weights": trained(accelerator),
    }
    (folder / f"{accelerator.process_index}.json").write_text(json.dumps(found), encoding="utf-8")
    accelerator.wait_for_everyone()


def main() -> None:
    report, launcher = Path(sys.argv[1]), sys.argv[2]
    asked = {"devices": xm.get_xla_supported_devices(), "count": torch_xla.device_count()}
    if launcher == "notebook":
        notebook_launcher(replica, (str(report.parent),))
    else:
        xmp.spawn(replica, (str(report.parent),), start_method=launcher)
    replicas = [json.loads((report.parent / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(asked["count"])]
    report.write_text(json.dumps({**asked, "replicas": replicas}), encoding="utf-8")


if __name__ == "__main__":
    main()
