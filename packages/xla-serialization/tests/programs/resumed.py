"""Trains from the start, or from the checkpoint of step 10; reports the bits of all. usage: resumed.py manager|plain FOLDER FIRST STOP

After ten steps from the start it makes the checkpoint, and goes on.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import torch

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.experimental.distributed_checkpoint as xc
import xla_serialization

CHECKPOINT = 10


def bits(value: Any) -> Any:
    """A nesting with the bits of its tensors and floats."""
    if isinstance(value, torch.Tensor):
        return [str(value.dtype), hashlib.sha256(value.detach().cpu().contiguous().numpy().tobytes()).hexdigest()]
    if isinstance(value, dict):
        return {str(key): bits(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [bits(item) for item in value]
    return value.hex() if isinstance(value, float) else value


def main() -> None:
    how, folder, first, stop = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    torch.manual_seed(7 if first == 0 else 99)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 1)).to("xla")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=40)
    data = torch.Generator().manual_seed(3 if first == 0 else 4)

    def state(step: int) -> dict[str, Any]:
        return {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "random": {"cpu": torch.get_rng_state(), "xla": xm.get_rng_state(), "data": data.get_state()},
            "step": step,
        }

    manager = xc.CheckpointManager(folder, save_interval=1)
    if first:
        if how == "manager":
            xc.prime_optimizer(optimizer)
            found = state(-1)
            manager.restore(first, found)
        else:
            found = xla_serialization.load(Path(folder) / "plain", device="cpu")
            model.load_state_dict(found["model"])
        optimizer.load_state_dict(found["optimizer"])
        scheduler.load_state_dict(found["scheduler"])
        torch.set_rng_state(found["random"]["cpu"])
        xm.set_rng_state(found["random"]["xla"])
        data.set_state(found["random"]["data"])
        assert found["step"] == first
    model.train()
    losses = []
    for step in range(first, stop):
        inputs = torch.randn(12, 8, generator=data) + torch.rand(1)
        optimizer.zero_grad()
        loss = (model(inputs.to("xla")) - inputs.sum(1, keepdim=True).to("xla")).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
        torch_xla.sync()
        losses.append(loss.item().hex())
        if step + 1 == CHECKPOINT and how == "manager":
            manager.save_async(CHECKPOINT, state(CHECKPOINT))
        elif step + 1 == CHECKPOINT:
            xla_serialization.save(state(CHECKPOINT), Path(folder) / "plain")
    manager.join()
    print(json.dumps({"losses": losses, "state": bits(state(stop))}))


if __name__ == "__main__":
    main()
