"""Train the network of `digits.py` data-parallel: one process for each device, each with its part of every batch.

On one host: `python examples/digits_distributed.py --replicas 4`. On several, or under any launcher that sets torchrun's variables:
`torchrun --nproc-per-node=4 examples/digits_distributed.py`. The global batch is the same whatever the number of replicas, and so are
the results but for rounding.
"""

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import click
import torch
from digits import BATCH, ConvNet, Digits, read_digits
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from torch import Tensor, nn

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.parallel_loader as pl
import torch_xla.runtime as xr


@dataclass(frozen=True, slots=True)
class Options:
    """What the command line says. weights: where the master writes the trained parameters."""

    epochs: int
    seed: int
    weights: Path | None


class Shares:
    """The part of one replica of each shuffled global batch; a new order at each pass, the same one on all replicas."""

    def __init__(self, data: Digits, rank: int, count: int, seed: int) -> None:
        self.data = data
        self.rank = rank
        self.size = BATCH // count
        self.generator = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return len(self.data.train_labels) // BATCH

    def __iter__(self):  # type: ignore[no-untyped-def]
        order = torch.randperm(len(self.data.train_labels), generator=self.generator)
        for number in range(len(self)):
            start = number * BATCH + self.rank * self.size
            chosen = order[start : start + self.size]
            yield self.data.train_images[chosen], self.data.train_labels[chosen]


def network(seed: int) -> nn.Module:
    """The network of the demo without its dropout, whose numbers would depend on how a batch is cut."""
    torch.manual_seed(seed)
    model = ConvNet()
    model.head[2] = nn.Identity()
    return model


def correct(model: nn.Module, data: Digits, device: torch.device, rank: int, count: int) -> int:
    """Right answers among this replica's share of the test digits."""
    images, labels = data.test_images.tensor_split(count)[rank], data.test_labels.tensor_split(count)[rank]
    with torch.no_grad():
        predicted: Tensor = model(images.to(device)).argmax(1)
    return int((predicted.cpu() == labels).sum())


def own_output() -> TextIO:
    """This process's stdout, from now on for this program alone: what Gloo says there when processes meet is dropped."""
    mine = open(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return mine


def replica(index: int, options: Options) -> None:
    """What each process does."""
    start = time.perf_counter()
    console = Console(file=own_output(), highlight=False, quiet=not xm.is_master_ordinal(local=False))
    device, rank, count = torch.device("xla"), xr.global_ordinal(), xr.world_size()
    data = read_digits(options.seed)
    model = network(options.seed).to(device)
    xm.broadcast_master_param(model)
    shares = Shares(data, rank, count, options.seed)
    loader = pl.MpDeviceLoader(shares, device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss_of = nn.CrossEntropyLoss()
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("training", total=options.epochs * len(shares))
        for epoch in range(options.epochs):
            for images, labels in loader:
                optimizer.zero_grad(set_to_none=True)
                loss = loss_of(model(images), labels)
                loss.backward()
                xm.optimizer_step(optimizer)
                progress.advance(task)
            right = xm.mesh_reduce("accuracy", correct(model, data, device, rank, count), sum)
            mean = xm.mesh_reduce("loss", loss.item(), lambda losses: sum(losses) / len(losses))
            progress.update(task, description=f"epoch {epoch + 1}/{options.epochs}: loss {mean:.4f}")
    if options.weights is not None and xm.is_master_ordinal(local=False):
        torch.save({name: value.cpu() for name, value in model.state_dict().items()}, options.weights)
    share = 100 * right / len(data.test_labels)
    console.print(f"test accuracy {share:.2f} %, {count} replicas of {BATCH // count} digits a step, {time.perf_counter() - start:.1f} s")


@click.command(help=__doc__)
@click.option("--replicas", type=click.Choice(["1", "2", "4", "8"]), help="Default: one for each device.")
@click.option("--epochs", type=click.IntRange(1, 1000), default=4, show_default=True)
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True)
@click.option("--weights", type=click.Path(dir_okay=False, path_type=Path), help="Write the trained parameters here.")
def demo(replicas: str | None, epochs: int, seed: int, weights: Path | None) -> None:
    if replicas is not None and xr.device_type() == "CPU":
        os.environ["CPU_NUM_DEVICES"] = replicas
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"  # of what jaxlib itself logs, errors only, in the processes that start now
    torch_xla.launch(replica, (Options(epochs, seed, weights),))


if __name__ == "__main__":
    sys.exit(demo())
