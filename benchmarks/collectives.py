"""Collectives among replicas on this machine: `xla` beside `torch.distributed` Gloo on CPU tensors and a plain `psum` in JAX.

In each round every number of replicas gets fresh processes, in which the contenders take turns. A turn takes as long as its slowest
replica. The digits network is trained too, with one global batch cut among the replicas and with one batch for each.
"""

import os
import statistics
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from collectives_replica import Case, Milliseconds, Training, replica
from harness import STEADY, Row, rerun_with, wide_console, write_results
from torch_xla._internal.pjrt import run_multiprocess

LARGEST = "64 MB"
LARGEST_GOAL, LIST_GOAL = 1.5, 2.0
Times = dict[str, dict[str, Milliseconds]]


@dataclass(frozen=True, slots=True)
class Sizes:
    """sizes: bytes of an array; listed: arrays of 4 KiB in a list; batch: of a step; replicas: 1 for steps alone."""

    sizes: tuple[int, ...]
    listed: int
    batch: int
    replicas: tuple[int, ...]
    turns: int
    rounds: int


FULL = Sizes(tuple(1 << power for power in range(10, 27, 2)), 100, 128, (1, 2, 4), 9, 3)
QUICK = Sizes((1 << 10, 1 << 14), 3, 8, (2,), 2, 1)


def size_name(size: int) -> str:
    """Bytes for people."""
    return f"{size >> 10} KB" if size < 1 << 20 else f"{size >> 20} MB"


def cases(sizes: Sizes) -> list[Case]:
    """Single arrays, a list beside one array of the same bytes, a barrier."""
    single = [Case(size_name(size), 1, size // 4, max(1, min(10, (1 << 22) // size)), sizes.turns) for size in sizes.sizes]
    return [
        *single,
        Case(f"{sizes.listed} × 4 KB", sizes.listed, 1024, 3, sizes.turns),
        Case(f"{sizes.listed} × 4 KB as one", 1, 1024 * sizes.listed, 3, sizes.turns),
        Case("barrier", 0, 0, 10, sizes.turns),
    ]


def trainings(sizes: Sizes, count: int) -> list[Training]:
    """Steps with the global batch cut among `count` replicas, and with the same batch for each."""
    rows = [Training("one global batch", sizes.batch // count, 10, sizes.turns)]
    return [*rows, Training("a batch for each", sizes.batch, 10, sizes.turns)] if count > 1 else rows


def job(count: int, sizes: Sizes) -> Times:
    """What one job of fresh processes measures; of each turn, the time of its slowest replica."""
    os.environ["CPU_NUM_DEVICES"] = str(count)
    seen = run_multiprocess(replica, cases(sizes) if count > 1 else [], trainings(sizes, count))
    return {
        case: {name: [max(turn) for turn in zip(*(times[case][name] for times in seen.values()), strict=True)] for name in seen[0][case]}
        for case in seen[0]
    }


def measure(sizes: Sizes, rounds: int) -> dict[int, Times]:
    """Number of replicas → case → contender → milliseconds by turn, of all rounds."""
    found: dict[int, Times] = {}
    for _ in range(rounds):
        for count in sizes.replicas:
            with ProcessPoolExecutor(1, get_context("spawn")) as launcher:  # whoever has run one replica itself cannot launch others
                for case, times in launcher.submit(job, count, sizes).result().items():
                    for name, turns in times.items():
                        found.setdefault(count, {}).setdefault(case, {}).setdefault(name, []).extend(turns)
    return found


def ratio(left: Milliseconds, right: Milliseconds) -> float:
    """Median of the ratios of turns: what slows several of them down cancels out."""
    return statistics.median(a / b for a, b in zip(left, right, strict=True))


def collective_rows(found: dict[int, Times], sizes: Sizes) -> list[Row]:
    """A row for each number of replicas and case: medians, best times, ratios, goals."""
    rows: list[Row] = []
    for count in sizes.replicas:
        for case in cases(sizes) if count > 1 else []:
            times = found[count][case.name]
            row: Row = {"replicas": count, "case": case.name, "goal": None, "met": None}
            for name, turns in times.items():
                row |= {f"{name}_ms": statistics.median(turns), f"{name}_best_ms": min(turns)}
                if name != "xla":
                    row[f"vs_{name}"] = ratio(times["xla"], turns)
            if case.name == LARGEST:
                row |= {"goal": f"≤ {LARGEST_GOAL} × gloo", "met": float(row["vs_gloo"] or 0) <= LARGEST_GOAL}
            elif case.count > 1:
                beside = ratio(times["xla"], found[count][f"{case.name} as one"]["xla"])
                row |= {"vs_one": beside, "goal": f"≤ {LIST_GOAL} × one array", "met": beside <= LIST_GOAL}
            rows.append(row)
    return rows


def scaling_rows(found: dict[int, Times], sizes: Sizes) -> list[Row]:
    """A row for each number of replicas and kind of batch: milliseconds of a step, digits in a second, and that beside one replica."""
    rows: list[Row] = []
    for count in sizes.replicas:
        for work in trainings(sizes, count):
            step_ms = statistics.median(found[count][work.name]["xla"])
            row: Row = {"replicas": count, "batch": work.name, "own_batch": work.batch, "step_ms": step_ms}
            row["digits_per_s"] = 1e3 * count * work.batch / step_ms
            rows.append(row)
    for row in rows:
        row["throughput"] = float(row["digits_per_s"] or 0) / float(rows[0]["digits_per_s"] or 1)
    return rows


def table(title: str, columns: dict[str, str], rows: list[Row]) -> Table:
    """A rich table: heading → key of a row."""
    shown = Table(title=title)
    for heading in columns:
        shown.add_column(heading, justify="left" if heading in ("case", "batch", "goal") else "right")
    for row in rows:
        cells: list[Any] = [row.get(key) for key in columns.values()]
        shown.add_row(*("" if cell is None else f"{cell:,.2f}" if isinstance(cell, float) else str(cell) for cell in cells))
    return shown


def show(rows: list[Row], scaling: list[Row], console: Console) -> None:
    """The rich tables."""
    names = ("xla", "gloo", "jax")
    columns = {"replicas": "replicas", "case": "case", **{f"{name} ms": f"{name}_ms" for name in names}}
    columns |= {f"{name} best": f"{name}_best_ms" for name in names}
    columns |= {"× gloo": "vs_gloo", "× jax": "vs_jax", "× one": "vs_one", "goal": "goal", "met": "met"}
    console.print(table("Sums of float32 in place, and a barrier: medians of all turns", columns, rows))
    columns = {"replicas": "replicas", "batch": "batch", "of each": "own_batch", "ms": "step_ms", "digits/s": "digits_per_s"}
    console.print(table("A training step of the digits network", columns | {"× one replica": "throughput"}, scaling))


@click.command(help=__doc__)
@click.option("--json", "target", type=click.Path(dir_okay=False, path_type=Path), help="Write the numbers to this file too.")
@click.option("--rounds", type=click.IntRange(1), help="Jobs of fresh processes for each number of replicas.")
@click.option("--quick", is_flag=True, help="Tiny sizes: does it run at all?")
def main(target: Path | None, rounds: int | None, quick: bool) -> None:
    rerun_with({"PJRT_DEVICE": "CPU", **STEADY})
    sizes = QUICK if quick else FULL
    found = measure(sizes, rounds or sizes.rounds)
    rows, scaling = collective_rows(found, sizes), scaling_rows(found, sizes)
    show(rows, scaling, wide_console())
    if target is not None:
        write_results(target, "collectives", rows, scaling=scaling, rounds=rounds or sizes.rounds, turns=sizes.turns)


if __name__ == "__main__":
    main()
