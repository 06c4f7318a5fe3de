"""Train a small convolutional network on scikit-learn's handwritten digits, on an XLA device or on plain torch.

The loop is the one to copy: fixed shapes, one `sync` per step, losses read some steps later so that nothing waits for them.
"""

import os
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import click
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from sklearn.datasets import load_digits
from torch import Tensor, nn

BATCH = 64
TEST_SIZE = 360
READ_LAG = 4
"""Steps between recording a loss and reading it: by then it has been computed, so the read does not hold up the device."""
SETTLED_AFTER = 3
"""Training steps after which nothing may be compiled any more."""
RED = "#c8102e"
BLUE = "#1f4e9c"


@dataclass(frozen=True, slots=True)
class Digits:
    """Images f32[n, 1, 8, 8] scaled to mean 0 and deviation 1, and labels i64[n], cut into a training and a test part."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


@dataclass(frozen=True, slots=True)
class Usage:
    """What the runtime has counted since the start of the process."""

    compiled: int = 0
    hits: int = 0
    persistent_hits: int = 0
    compile_s: float = 0.0
    fallbacks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Target:
    """The device to train on, what closes a step there, and what it has counted (`None`: it counts nothing)."""

    device: torch.device
    name: str
    end_step: Callable[[], None]
    usage: Callable[[], Usage] | None


@dataclass(slots=True)
class History:
    """Losses and seconds per step, accuracies per epoch, and the graphs compiled by settled training steps."""

    losses: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)
    accuracies: list[float] = field(default_factory=list)
    late_compiles: int = 0


class ConvNet(nn.Module):
    """8×8 digits → 10 logits."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 64, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
        )
        self.head = nn.Sequential(nn.Linear(64 * 4 * 4, 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, 10))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(images))
        return logits


def read_digits(seed: int) -> Digits:
    """The bundled data set, shuffled by `seed`, the last `TEST_SIZE` digits kept for the test."""
    raw = load_digits()
    images = torch.from_numpy(raw.images.astype(np.float32)).unsqueeze(1)
    labels = torch.from_numpy(raw.target.astype(np.int64))
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    images, labels = images[order], labels[order]
    mean, deviation = images[:-TEST_SIZE].mean(), images[:-TEST_SIZE].std()
    images = (images - mean) / deviation
    return Digits(images[:-TEST_SIZE], labels[:-TEST_SIZE], images[-TEST_SIZE:], labels[-TEST_SIZE:])


def batches(data: Digits, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Shuffled batches of exactly `BATCH`: the incomplete last one is dropped, as another shape would be another graph."""
    order = torch.randperm(len(data.train_labels), generator=generator)
    for start in range(0, len(order) - BATCH + 1, BATCH):
        chosen = order[start : start + BATCH]
        yield data.train_images[chosen], data.train_labels[chosen]


def open_target(kind: str, cache: Path | None) -> Target:
    """The device behind `--device`; raises `click.UsageError` where it cannot be had."""
    if kind == "cpu":
        if cache is not None:
            raise click.UsageError("--cache keeps compiled graphs, and --device cpu compiles none; use --device xla")
        return Target(torch.device("cpu"), "cpu (plain torch)", lambda: None, None)
    if kind == "cuda":
        os.environ["PJRT_DEVICE"] = "CUDA"  # read when the runtime is first used, below
    import torch_xla
    import torch_xla.runtime as xr

    try:
        if cache is not None:
            xr.initialize_cache(str(cache))
        first = torch.ones(1).to("xla")
        first.cpu()  # the first use of the runtime: what is wrong with the device shows here
    except (RuntimeError, OSError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise click.UsageError(f"--device {kind}: {reason}") from error
    return Target(first.device, f"{first.device} ({xr.device_type()})", torch_xla.sync, read_usage)


def read_usage() -> Usage:
    """The core's counters, in the words of the demo. A scalar read counts under `aten::` too, but is no fallback."""
    from xla_core.abi.metrics import snapshot

    seen = snapshot()
    counters = seen.counters
    compile_time = seen.metrics.get("CompileTime")
    fallbacks = tuple(
        sorted(name for name, count in counters.items() if name.startswith("aten::") and count and name != "aten::_local_scalar_dense")
    )
    return Usage(
        compiled=counters.get("UncachedCompile", 0),
        hits=counters.get("CachedCompile", 0),
        persistent_hits=counters.get("PersistentCacheHit", 0),
        compile_s=compile_time.accumulator / 1e9 if compile_time is not None else 0.0,
        fallbacks=fallbacks,
    )


class Trainer:
    """Model, optimizer and schedule on one target."""

    def __init__(self, target: Target, data: Digits, epochs: int, seed: int) -> None:
        torch.manual_seed(seed)
        self.target = target
        self.data = data
        self.model = ConvNet().to(target.device)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.steps_per_epoch = len(data.train_labels) // BATCH
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, max_lr=4e-3, total_steps=epochs * self.steps_per_epoch, cycle_momentum=False
        )
        self.loss = nn.CrossEntropyLoss()
        self.generator = torch.Generator().manual_seed(seed)
        self.test_images = data.test_images.to(target.device)
        self.history = History()
        self._unread: deque[Tensor] = deque()

    def step(self, images: Tensor, labels: Tensor) -> None:
        """One optimizer step; the loss is queued, not read."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.loss(self.model(images.to(self.target.device)), labels.to(self.target.device))
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        self._unread.append(loss.detach())
        self.target.end_step()

    def epoch(self, advance: Callable[[float, float], None]) -> None:
        """One pass over the training digits; `advance(loss, images per second)` is called after each step."""
        self.model.train()
        settled = self._compiled() if self.history.step_s else None
        for images, labels in batches(self.data, self.generator):
            start = time.perf_counter()
            self.step(images, labels)
            self._read_losses(keep=READ_LAG)
            self.history.step_s.append(time.perf_counter() - start)
            if len(self.history.step_s) == SETTLED_AFTER:
                settled = self._compiled()
            recent = self.history.losses[-1] if self.history.losses else float("nan")
            advance(recent, BATCH / statistics.median(self.history.step_s[-20:]))
        self._read_losses(keep=0)
        self.history.late_compiles += self._compiled() - settled if settled is not None else 0

    def predict(self) -> Tensor:
        """Labels i64[TEST_SIZE] for the test digits, on the CPU. The whole test part is one batch, so one shape and one graph."""
        self.model.eval()
        with torch.no_grad():
            predicted: Tensor = self.model(self.test_images).argmax(1)
        return predicted.cpu()

    def _read_losses(self, keep: int) -> None:
        while len(self._unread) > keep:
            self.history.losses.append(self._unread.popleft().item())

    def _compiled(self) -> int:
        return self.target.usage().compiled if self.target.usage is not None else 0


def train(trainer: Trainer, epochs: int, console: Console) -> Tensor:
    """All epochs under a progress bar; returns the last predictions."""
    columns = (
        TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TextColumn("loss {task.fields[loss]:.4f}"),
        TextColumn("{task.fields[rate]:,.0f} images/s"), TimeElapsedColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("training", total=epochs * trainer.steps_per_epoch, loss=float("nan"), rate=0.0)

        def advance(loss: float, rate: float) -> None:
            progress.update(task, advance=1, loss=loss, rate=rate)

        for epoch in range(epochs):
            progress.update(task, description=f"epoch {epoch + 1}/{epochs}")
            trainer.epoch(advance)
            predicted = trainer.predict()
            trainer.history.accuracies.append(accuracy(predicted, trainer.data.test_labels))
    return predicted


def accuracy(predicted: Tensor, labels: Tensor) -> float:
    """The share of equal labels, in [0, 1]."""
    return (predicted == labels).float().mean().item()


def draw_digits(axes: Axes, images: Tensor, predicted: Tensor, labels: Tensor, columns: int = 30) -> None:
    """All digits as one mosaic, each with its predicted label; wrong ones framed, with `predicted≠true`."""
    height, width, strip, gap = 8, 8, 4, 2
    rows = -(-len(labels) // columns)
    cell_h, cell_w = height + strip + gap, width + gap
    canvas = np.full((rows * cell_h, columns * cell_w), np.nan, dtype=np.float32)
    pixels = images.squeeze(1).numpy()
    low, high = float(pixels.min()), float(pixels.max())
    for place, (image, guess, truth) in enumerate(zip(pixels, predicted.tolist(), labels.tolist(), strict=True)):
        top, left = place // columns * cell_h, place % columns * cell_w
        canvas[top : top + height, left : left + width] = (image - low) / (high - low)
        right = guess == truth
        text = str(guess) if right else f"{guess}≠{truth}"
        axes.text(
            left + width / 2 - 0.5, top + height + strip / 2 - 0.3, text, ha="center", va="center", fontsize=7.5,
            color="#555555" if right else RED, fontweight="normal" if right else "bold",
        )  # fmt: skip
        if not right:
            axes.add_patch(Rectangle((left - 1.0, top - 1.0), width + 1, height + strip + 0.6, fill=False, edgecolor=RED, linewidth=1.6))
    axes.imshow(canvas, cmap="gray_r", vmin=0, vmax=1, interpolation="nearest")
    axes.set_xlim(-2, columns * cell_w)
    axes.set_ylim(rows * cell_h, -2)
    axes.axis("off")


def draw_losses(axes: Axes, history: History, steps_per_epoch: int) -> None:
    """Training loss per step (log scale) with its running mean, and test accuracy per epoch on the right."""
    losses = np.asarray(history.losses)
    span = min(steps_per_epoch, len(losses))
    epochs = (np.arange(len(losses)) + 1) / steps_per_epoch
    axes.semilogy(epochs, losses, color=BLUE, alpha=0.3, linewidth=0.8, label="loss of a step")
    means = np.convolve(losses, np.full(span, 1 / span), mode="valid")
    axes.semilogy(epochs[span - 1 :], means, color=BLUE, linewidth=2, label="mean over an epoch")
    axes.set_xlim(0, epochs[-1] * 1.01)
    axes.set_xlabel("epoch")
    axes.set_ylabel("training loss", color=BLUE)
    axes.grid(True, alpha=0.25)
    right = axes.twinx()
    passes = np.arange(len(history.accuracies)) + 1
    right.plot(passes, 100 * np.asarray(history.accuracies), "o-", color="#2e8b57", markersize=4, label="test accuracy")
    right.set_ylabel("test accuracy, %", color="#2e8b57")
    right.set_ylim(min(90.0, 100 * min(history.accuracies) - 2), 100.5)
    lines = [*axes.get_lines(), *right.get_lines()]
    labels = [str(line.get_label()) for line in lines]
    axes.legend(lines, labels, loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(lines), frameon=False)


def draw(trainer: Trainer, predicted: Tensor, output: Path) -> None:
    """The picture: the test digits above, the curves below."""
    data, history = trainer.data, trainer.history
    wrong = int((predicted != data.test_labels).sum())
    figure = Figure(figsize=(14, 11.3), layout="constrained")
    FigureCanvasAgg(figure)
    top, bottom = figure.subplots(2, 1, height_ratios=(2.8, 1))
    top.set_title(
        f"{len(data.test_labels)} test digits and what the network reads: {100 * history.accuracies[-1]:.1f} % right, "
        f"{wrong} wrong (framed: read≠true)", fontsize=13,
    )  # fmt: skip
    draw_digits(top, data.test_images, predicted, data.test_labels)
    draw_losses(bottom, history, trainer.steps_per_epoch)
    figure.savefig(output, dpi=110)


def report(trainer: Trainer, output: Path, seconds: float, console: Console) -> Usage:
    """Prints the summary and returns what was counted."""
    history, target = trainer.history, trainer.target
    usage = target.usage() if target.usage is not None else Usage()
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row("test accuracy", f"{100 * history.accuracies[-1]:.2f} %")
    table.add_row("device", target.name)
    if target.usage is not None:
        table.add_row("graphs compiled", f"{usage.compiled} ({history.late_compiles} after training step {SETTLED_AFTER})")
        table.add_row("cache hits", f"{usage.hits} in memory, {usage.persistent_hits} on disk")
        table.add_row("compile seconds", f"{usage.compile_s:.2f}")
        table.add_row("CPU fallbacks", ", ".join(usage.fallbacks) or "none")
    table.add_row("median step", f"{1e3 * statistics.median(history.step_s):.2f} ms")
    table.add_row("total time", f"{seconds:.1f} s")
    table.add_row("picture", str(output))
    console.print(table)
    return usage


def check_output(context: click.Context, parameter: click.Parameter, value: Path) -> Path:
    """`--output` names a PNG in a folder that exists: found out before training, not after."""
    if value.suffix.lower() != ".png":
        raise click.BadParameter(f"{value} does not end in .png")
    if not value.parent.is_dir():
        raise click.BadParameter(f"there is no folder {value.parent}")
    return value


@click.command(help=__doc__)
@click.option("--device", type=click.Choice(["xla", "cpu", "cuda"]), default="xla", show_default=True, help="cpu is torch without XLA.")
@click.option("--epochs", type=click.IntRange(1, 1000), default=12, show_default=True)
@click.option("--cache", type=click.Path(file_okay=False, path_type=Path), help="Keep compiled graphs in this folder for later runs.")
@click.option("--seed", type=click.IntRange(0, 2**63 - 1), default=0, show_default=True)
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), default=Path("digits.png"), show_default=True, callback=check_output
)
def demo(device: str, epochs: int, cache: Path | None, seed: int, output: Path) -> None:
    start = time.perf_counter()
    console = Console(highlight=False)
    trainer = Trainer(open_target(device, cache), read_digits(seed), epochs, seed)
    predicted = train(trainer, epochs, console)
    draw(trainer, predicted, output)
    usage = report(trainer, output, time.perf_counter() - start, console)
    if usage.fallbacks:
        raise click.ClickException(f"ran on the CPU instead of the device: {', '.join(usage.fallbacks)}")


def main() -> int:
    """Exit code; a wrong option value is one line on stderr and exit code 2."""
    try:
        demo.main(standalone_mode=False)
    except click.ClickException as error:
        click.echo(f"Error: {error.format_message()}", err=True)
        return error.exit_code
    except click.Abort:
        click.echo("stopped", err=True)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
