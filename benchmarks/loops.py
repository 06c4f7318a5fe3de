"""Loops that never sync beside the same with a sync in each turn: time, memory and programs, each in a process of its own."""

import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import click
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import torch_xla
from harness import STEADY, Row, rerun_with, wide_console, write_results
from steps import names_of
from xla_core.abi.metrics import counter

GOAL = 1.5
Turn = Callable[[int], object]


def adam() -> tuple[Turn, Callable[[], object]]:
    """Training steps of a small network, and a read of its parameters."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4)).to("xla")
    optimizer = torch.optim.Adam(model.parameters())
    inputs, targets = torch.randn(32, 16).to("xla"), torch.randn(32, 4).to("xla")

    def turn(place: int) -> None:
        optimizer.zero_grad()
        ((model(inputs) - targets) ** 2).mean().backward()
        optimizer.step()

    return turn, lambda: [parameter.detach().cpu() for parameter in model.parameters()]


def adam_read() -> tuple[Turn, Callable[[], object]]:
    """The same, read in every tenth turn."""
    step, read = adam()

    def turn(place: int) -> None:
        step(place)
        if place % 10 == 9:
            read()

    return turn, read


def accumulate() -> tuple[Turn, Callable[[], object]]:
    """A running mean."""
    values = [torch.zeros(64, device="xla")]
    one = torch.ones(64, device="xla")

    def turn(place: int) -> None:
        values[0] = values[0] * 0.999 + one

    return turn, lambda: values[0].cpu()


def in_place() -> tuple[Turn, Callable[[], object]]:
    """Writes to one row after another."""
    table, row = torch.zeros(64, 8, device="xla"), torch.ones(8, device="xla")

    def turn(place: int) -> None:
        table[place % 64] += row

    return turn, table.cpu


def unused() -> tuple[Turn, Callable[[], object]]:
    """Work whose results nobody takes, but the last."""
    values = torch.randn(64).to("xla")
    last = [values]

    def turn(place: int) -> None:
        last[0] = (values * 2 + 1).sin()

    return turn, lambda: last[0].cpu()


LOOPS = {"adam": adam, "adam-read": adam_read, "accumulate": accumulate, "in-place": in_place, "unused": unused}


def work(name: str, sync: bool, turns: int) -> None:
    """A process under test: seconds, MB after a tenth of the turns and after all, and programs that were compiled."""
    warnings.filterwarnings("ignore", "a loop without")
    turn, read = LOOPS[name]()
    early, begin = 0.0, time.perf_counter()
    for place in range(turns):
        turn(place)
        if sync:
            torch_xla.sync()
        if place == turns // 10:
            early = resident_mb()
    read()
    print(time.perf_counter() - begin, early, resident_mb(), counter("UncachedCompile"))


def resident_mb() -> float:
    """Memory of this process, from Linux's /proc."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def measure(name: str, turns: int) -> Row:
    """Both processes, one after the other."""
    row: Row = {"loop": name, "turns": turns}
    for sync, key in ((False, ""), (True, "sync_")):
        command = [sys.executable, __file__, "--worker", name, "--turns", str(turns), *(["--sync"] if sync else [])]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        seconds, early, late, programs = map(float, done.stdout.split())
        row |= {f"{key}s": seconds, f"{key}early_mb": early, f"{key}mb": late, f"{key}programs": int(programs)}
    row["vs_sync"] = float(row["s"] or 0) / float(row["sync_s"] or 1)
    return row | {"goal": f"≤ {GOAL}", "met": row["vs_sync"] <= GOAL}


def show(rows: list[Row], console: Console) -> None:
    """The rich table."""
    table = Table(title="Loops that never sync")
    for heading in ("loop", "turns", "s", "MB, a tenth", "MB, end", "programs", "s, syncs", "MB, end", "programs", "×", f"≤ {GOAL}"):
        table.add_column(heading, justify="left" if heading == "loop" else "right")
    for row in rows:
        numbers = [f"{row[key]:,.0f}" for key in ("early_mb", "mb", "programs")]
        others = [f"{row[key]:,.0f}" for key in ("sync_mb", "sync_programs")]
        table.add_row(
            str(row["loop"]), f"{row['turns']:,}", f"{row['s']:.1f}", *numbers, f"{row['sync_s']:.1f}", *others, f"{row['vs_sync']:.2f}",
            "[green]met[/]" if row["met"] else "[red]missed[/]",
        )  # fmt: skip
    console.print(table)


@click.command(help=__doc__)
@click.option("--json", "target", type=click.Path(dir_okay=False, path_type=Path), help="Write the numbers to this file too.")
@click.option("--loops", help=f"Comma-separated: {', '.join(LOOPS)}.")
@click.option("--turns", type=click.IntRange(100), default=100_000, show_default=True)
@click.option("--quick", is_flag=True, help="A hundred turns: does it run at all?")
@click.option("--worker", "worked", hidden=True)
@click.option("--sync", is_flag=True, hidden=True)
def main(target: Path | None, loops: str | None, turns: int, quick: bool, worked: str | None, sync: bool) -> None:
    if worked is not None:
        work(worked, sync, turns)
        return
    chosen = names_of(tuple(LOOPS), loops, "--loops")
    rerun_with({**STEADY, "JAX_PLATFORMS": "cpu", "PJRT_DEVICE": "CPU"})
    rows = [measure(name, 100 if quick else turns) for name in chosen]
    show(rows, wide_console())
    if target is not None:
        write_results(target, "loops", rows, passive=os.environ["OMP_WAIT_POLICY"])


if __name__ == "__main__":
    main()
