"""Compiling: how many programs a training loop compiles before it is steady, and how long one of many equal layers takes, beside JAX."""

import itertools
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import click
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import models_jax
import models_torch
from harness import STEADY, Row, rerun_with, wide_console, write_results
from steps import Workload, build, sentences

GOAL = 1.3
STEPS = 6
LAYERS = 24

Optimizers = dict[str, Callable[..., torch.optim.Optimizer]]
OPTIMIZERS: Optimizers = {
    "SGD": torch.optim.SGD,
    "SGD, momentum": partial(torch.optim.SGD, momentum=0.9),
    "SGD, nesterov": partial(torch.optim.SGD, momentum=0.9, nesterov=True),
    "SGD, dampening": partial(torch.optim.SGD, momentum=0.9, dampening=0.1),
    "Adam": torch.optim.Adam,
    "Adam, amsgrad": partial(torch.optim.Adam, amsgrad=True),
    "AdamW": torch.optim.AdamW,
    "RMSprop": torch.optim.RMSprop,
    "RMSprop, momentum": partial(torch.optim.RMSprop, momentum=0.9),
    "RMSprop, centered": partial(torch.optim.RMSprop, momentum=0.9, centered=True),
    "Adagrad": torch.optim.Adagrad,
    "Adadelta": torch.optim.Adadelta,
    "Adamax": torch.optim.Adamax,
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
}


def programs() -> int:
    """Programs compiled so far."""
    from xla_core.abi.metrics import counter

    return counter("UncachedCompile")


def small_model(width: int) -> nn.Module:
    """A convolution, a batch norm and two linear layers, with shapes of that width."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.Flatten(), nn.Linear(9 * width, width), nn.Linear(width, 3)
    )


_widths = itertools.count(3)  # no two loops share a program


def trained(make: Callable[..., torch.optim.Optimizer], foreach: bool, to_none: bool, steps: int = STEPS) -> int:
    """The programs of a training loop."""
    import torch_xla

    model = small_model(next(_widths)).to("xla")
    optimizer = make(model.parameters(), lr=0.01, foreach=foreach)
    images, labels = torch.randn(4, 1, 5, 5).to("xla"), torch.randint(3, (4,)).to("xla")
    torch_xla.sync()
    before = programs()
    for _ in range(steps):
        optimizer.zero_grad(set_to_none=to_none)
        nn.functional.cross_entropy(model(images), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        torch_xla.sync()
    return programs() - before


def loops() -> Iterator[Row]:
    """The programs of every kind of loop."""
    for name, make in OPTIMIZERS.items():
        row: Row = {"optimizer": name}
        for foreach in (True, False):
            for to_none in (True, False):
                row[f"{'foreach' if foreach else 'each'}, {'None' if to_none else 'zeros'}"] = trained(make, foreach, to_none)
        yield row


def layers_work(quick: bool) -> Workload:
    """The training step of a GPT of many equal layers, small enough that running it takes no time."""
    size = models_torch.GptSize(3 if quick else LAYERS, 64, 32, 512)
    return Workload(
        "gpt", partial(models_torch.Gpt, size), partial(sentences, 2, size), models_jax.gpt(size), (), (),
        partial(torch.optim.AdamW, lr=3e-4, weight_decay=0.01), models_jax.adam(3e-4, 0.01),
    )  # fmt: skip


def worker(name: str, quick: bool) -> None:
    """A process under test: prints how many seconds the first step takes."""
    # What is loaded and started at the first program of a process is not asked for.
    for work in (
        Workload("", partial(models_torch.Mlp, 5), small_batch, models_jax.mlp, (), (), SGD, models_jax.sgd(0.1)),
        layers_work(quick),
    ):
        contender = build(name, work, "cpu")
        contender.finish()
        start = time.perf_counter()
        contender.step()
        contender.finish()
        seconds = time.perf_counter() - start
    print(seconds)


def small_batch() -> tuple[Tensor, Tensor]:
    """For the program that comes first."""
    return torch.randn(2, 64), torch.randint(10, (2,))


SGD = partial(torch.optim.SGD, lr=0.1)


def layers(rounds: int, quick: bool) -> Row:
    """Fresh processes in turns."""
    seconds: dict[str, list[float]] = {"xla": [], "jax": []}
    for place in range(rounds):
        for name in sorted(seconds, reverse=bool(place % 2)):
            command = [sys.executable, __file__, "--worker", name, *(["--quick"] if quick else [])]
            seconds[name].append(float(subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.split()[-1]))
    reached = statistics.median(ours / theirs for ours, theirs in zip(seconds["xla"], seconds["jax"], strict=True))
    return {
        "layers": 3 if quick else LAYERS,
        "xla_s": statistics.median(seconds["xla"]),
        "jax_s": statistics.median(seconds["jax"]),
        "vs_jax": reached,
        "goal": f"≤ {GOAL:.2f}",
        "met": reached <= GOAL,
    }


def show(row: Row, loop_rows: list[Row], console: Console) -> None:
    """The rich tables."""
    table = Table(title="The first step of a GPT of equal layers, in a process that has compiled before")
    for heading in ("layers", "xla s", "jax s", "× jax", str(row["goal"])):
        table.add_column(heading, justify="right")
    table.add_row(str(row["layers"]), *[f"{row[key]:.2f}" for key in ("xla_s", "jax_s", "vs_jax")], "met" if row["met"] else "missed")
    console.print(table)
    table = Table(title=f"Programs compiled in {STEPS} steps: with list operations or one by one, gradients set to None or to zeros")
    for heading in loop_rows[0]:
        table.add_column(heading, justify="left" if heading == "optimizer" else "right")
    for each in loop_rows:
        table.add_row(*map(str, each.values()))
    console.print(table)


@click.command(help=__doc__)
@click.option("--json", "target", type=click.Path(dir_okay=False, path_type=Path), help="Write the numbers to this file too.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True)
@click.option("--quick", is_flag=True, help="Few layers and optimizers: does it run at all?")
@click.option("--worker", "worked", hidden=True)
def main(target: Path | None, rounds: int, quick: bool, worked: str | None) -> None:
    if worked is not None:
        worker(worked, quick)
        return
    rerun_with({**STEADY, "JAX_PLATFORMS": "cpu", "PJRT_DEVICE": "CPU"})
    row = layers(1 if quick else rounds, quick)
    loop_rows = list(itertools.islice(loops(), 2 if quick else None))
    show(row, loop_rows, wide_console())
    if target is not None:
        write_results(target, "compile", [row, *loop_rows], rounds=rounds)


if __name__ == "__main__":
    main()
