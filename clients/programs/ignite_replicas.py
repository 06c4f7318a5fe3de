"""Two replicas of ignite.distributed with its backend for XLA; each reports its place, collectives, and a metric over all samples."""

from __future__ import annotations

import torchvision_operators  # noqa: F401

# isort: split
import json
import sys
from pathlib import Path
from typing import Any

import ignite.distributed as idist
import torch
from ignite.engine import create_supervised_evaluator, create_supervised_trainer
from ignite.metrics import Accuracy, Loss
from torch import nn
from torch.utils.data import TensorDataset

import torch_xla.runtime as xr

SAMPLES = 24


def data() -> TensorDataset:
    rows = torch.linspace(-1, 1, SAMPLES).unsqueeze(1)
    return TensorDataset(rows, (rows.flatten() > 0.2).long())


def replica(index: int, folder: str) -> None:
    """What each replica runs."""
    torch.manual_seed(0)
    device = idist.device()
    model = idist.auto_model(nn.Linear(1, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # `auto_optim` of 0.5.5 fails in its own `super()`; the trainer reduces itself
    loader = idist.auto_dataloader(data(), batch_size=8, shuffle=False)
    loss = nn.functional.cross_entropy
    create_supervised_trainer(model, optimizer, loss, device=device).run(loader, max_epochs=2)
    metrics = {"accuracy": Accuracy(), "loss": Loss(loss)}  # ignite refuses to keep them on xla
    found: dict[str, Any] = {
        "place": [idist.backend(), idist.get_rank(), idist.get_local_rank(), idist.get_world_size(), device.type, idist.model_name()],
        "nodes": [idist.get_nproc_per_node(), idist.get_nnodes()],
        "sum": idist.all_reduce(float(idist.get_rank() + 1)),
        "gathered": idist.all_gather(torch.tensor([idist.get_rank()], device=device)).tolist(),
        "broadcast": idist.broadcast(torch.tensor([7.0 + idist.get_rank()], device=device), src=1).tolist(),
        "text": idist.broadcast("from the first" if idist.get_rank() == 0 else "", src=0),
        "metrics": create_supervised_evaluator(model, metrics, device=device).run(loader).metrics,
        "weights": [value.tolist() for value in model.state_dict().values()],
    }
    idist.barrier()
    (Path(folder) / f"{index}.json").write_text(json.dumps(found), encoding="utf-8")


def main() -> None:
    report = Path(sys.argv[1])
    with idist.Parallel(backend="xla-tpu", nproc_per_node=2, start_method=sys.argv[2]) as parallel:
        parallel.run(replica, str(report.parent))
    assert not xr.is_spmd()
    report.write_text(json.dumps([json.loads((report.parent / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(2)]))


if __name__ == "__main__":
    main()
