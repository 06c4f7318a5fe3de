"""The guide's script for several processes; each replica reports its parameters. usage: guide.py FOLDER"""

import json
import sys
from pathlib import Path

import torch
import torch.nn as nn

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(42)
        self.layers = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


def _mp_fn(index: int) -> None:
    device = torch_xla.device()
    generator = torch.Generator().manual_seed(7)
    train_loader = [(torch.randn(8, 6, generator=generator), torch.randint(3, (8,), generator=generator)) for _ in range(5)]
    mp_device_loader = pl.MpDeviceLoader(train_loader, device)

    model = Net().train().to(device)
    loss_fn = nn.CrossEntropyLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    for data, target in mp_device_loader:
        optimizer.zero_grad()
        output = model(data)
        loss = loss_fn(output, target)
        loss.backward()
        xm.optimizer_step(optimizer)

    report = {"size": xr.world_size(), "parameters": [parameter.tolist() for parameter in model.parameters()]}
    (Path(sys.argv[1]) / f"{xr.global_ordinal()}.json").write_text(json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
    xmp.spawn(_mp_fn, args=())
