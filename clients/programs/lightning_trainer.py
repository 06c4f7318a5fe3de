"""Lightning's Trainer on xla devices of the CPU; reports weights, metrics and gathered values.

Arguments: the file of the report, how many devices (0: the CPU itself), and Lightning's name of a precision.
"""

from __future__ import annotations

import torchvision_operators  # noqa: F401

# isort: split
import json
import sys
from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.accelerators import XLAAccelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import torch_xla.runtime as xr

SAMPLES = 128


class XLADevices(XLAAccelerator):
    """Lightning's accelerator for XLA, which counts TPUs only; this one counts whatever xla devices there are."""

    @staticmethod
    def parse_devices(devices: Any) -> int:
        return int(devices)

    @staticmethod
    def get_parallel_devices(devices: Any) -> list[torch.device]:
        return [torch.device("xla", index) for index in range(devices)]

    @staticmethod
    def auto_device_count() -> int:
        return xr.global_runtime_device_count()

    @staticmethod
    def is_available() -> bool:
        return True


class Digits(lightning.LightningModule):
    """A small network for handwritten digits."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder
        self.layers = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
        self.gathered: list[torch.Tensor] = []
        self.gathered_labels: list[int] = []

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        images, labels = batch
        loss = functional.cross_entropy(self.layers(images), labels)
        self.log("loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        images, labels = batch
        right = (self.layers(images).argmax(-1) == labels).float()
        self.log("accuracy", right.mean(), sync_dist=True)
        self.gathered.append(self.all_gather(labels).flatten())

    def on_validation_epoch_end(self) -> None:
        self.gathered_labels = torch.cat(self.gathered).sort().values.tolist()
        self.gathered.clear()

    def on_train_end(self) -> None:
        (Path(self.folder) / f"{self.global_rank}.json").write_text(json.dumps(self.gradient_of_gathered()), encoding="utf-8")

    def gradient_of_gathered(self) -> dict[str, Any]:
        """What `all_gather(sync_grads=True)` gives back: each replica's loss weighs what was gathered by its own number."""
        mine = torch.tensor([1.0 + self.global_rank], device=self.device, requires_grad=True)
        everyone = self.all_gather(mine, sync_grads=True)
        ((1.0 + self.global_rank) * everyone.flatten() ** 2).sum().backward()
        on_cpu = torch.tensor(1.0, requires_grad=True)
        self.all_gather(on_cpu, sync_grads=True).sum().backward()
        assert mine.grad is not None and on_cpu.grad is not None
        return {
            "gathered": everyone.flatten().tolist(),
            "gradient": mine.grad.item(),
            "gradient_on_cpu": on_cpu.grad.item(),
            "gradient_unless_synced": self.all_gather(mine).requires_grad,
            "device": self.device.type,
            "size": self.trainer.world_size,
            "labels": self.gathered_labels,
        }

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def loader(batch_size: int) -> DataLoader[Any]:
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(images[:SAMPLES], dtype=torch.float32) / 16, torch.tensor(labels[:SAMPLES]))
    return DataLoader(data, batch_size=batch_size, shuffle=False)


def main() -> None:
    report, devices, precision = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] if len(sys.argv) > 3 else "32-true"
    torch.manual_seed(0)
    model = Digits(str(report.parent))
    trainer = lightning.Trainer(
        accelerator=XLADevices() if devices else "cpu", devices=devices or 1, precision=precision, max_epochs=4,
        default_root_dir=report.parent, logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    )  # fmt: skip
    share = SAMPLES // trainer.num_devices  # all samples in a step: Lightning's sampler for several devices shuffles
    trainer.fit(model, loader(share), loader(share))
    found = {
        "strategy": type(trainer.strategy).__name__,
        "weights": {name: value.tolist() for name, value in model.state_dict().items()},
        "metrics": {name: value.item() for name, value in trainer.callback_metrics.items()},
        "replicas": [json.loads((report.parent / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(devices or 1)],
    }
    report.write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
