"""Compile torch's database of operators for devices that are not there: each with its gradient, dtype by dtype, in processes of their own.

Needs the compilers: `hatch run targets:ops`. Exit status 1 if an operator does not compile that nothing refuses when it is recorded, or if
one ends its process.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

import pool
import targets_page
from compiling import DTYPES, Found
from entries import Suite, Task, tasks
from xla_core.abi.files import atomic_write_bytes

WORKER = Path(__file__).with_name("compiling.py")
LOST = (Found.CRASH.value, Found.TIMEOUT.value)
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """How each target is swept. samples: of an entry and dtype. limit_s: seconds that one entry may take."""

    samples: int
    workers: int
    limit_s: float
    dtypes: tuple[str, ...]

    def run(self, chosen: list[Task], target: str, dtypes: Sequence[str], done: Callable[[Task, dict[str, Any]], None]) -> None:
        """Compile entries for a target in some dtypes."""
        arguments = [target, str(self.samples), ",".join(dtypes)]
        pool.run(chosen, arguments, self.workers, self.limit_s, done, WORKER)


def lost(answer: dict[str, Any]) -> Row | None:
    """What became of a task whose process ended or was stopped; None if it answered."""
    if isinstance(answer["found"], list):
        return None
    result = answer["found"]["any"]["forward"]
    return {"found": Found(result["outcome"]).value, "detail": result["detail"], "samples": 1, "programs": 0, "seconds": 0.0}


def compile_all(chosen: list[Task], target: str, plan: Plan, rows: list[Row], done: Callable[[], None]) -> None:
    """Add the rows of all tasks. Those that end their process are tried again by dtype, so that one costs no other."""
    again: list[Task] = []

    def keep(task: Task, answer: dict[str, Any]) -> None:
        if lost(answer) is not None:
            again.append(task)
        else:
            rows.extend({"name": task.name, **row} for row in answer["found"])
        done()

    plan.run(chosen, target, plan.dtypes, keep)
    for dtype in plan.dtypes if again else ():

        def keep_one(task: Task, answer: dict[str, Any], dtype: str = dtype) -> None:
            row = lost(answer)
            rows.extend({"name": task.name, "dtype": dtype, **each} for each in ([row] if row else answer["found"]))

        plan.run(again, target, [dtype], keep_one)
    rows.sort(key=lambda row: (row["name"], plan.dtypes.index(row["dtype"])))


def write(path: Path, content: dict[str, Any]) -> None:
    """The outcomes as JSON, whole or not at all."""
    atomic_write_bytes(path, json.dumps(content, indent=1).encode())


def show(console: Console, target: str, rows: Sequence[Row]) -> None:
    """What is not compiled, then the counts."""
    details = Table("operator", "dtype", "what", "detail", title=f"Not compiled for {target}")
    for row in rows:
        if row["found"] != Found.COMPILES.value:
            details.add_row(row["name"], row["dtype"], row["found"], row["detail"])
    summary = Table("operators and dtypes", *[found.value for found in Found], title=target)
    counts = Counter(row["found"] for row in rows)
    summary.add_row(f"{len(rows):,}", *[f"{counts[found.value]:,}" for found in Found])
    console.print(details)
    console.print(summary)


@click.command(help=__doc__)
@click.option("--target", "names", multiple=True, default=("v5e", "h100"), show_default=True, help="May be given several times.")
@click.option("--only", help="Comma-separated parts of entry names; =name for a whole one.")
@click.option("--every", type=click.IntRange(1), default=1, show_default=True, help="One of so many entries.")
@click.option("--samples", type=click.IntRange(1), default=2, show_default=True, help="Samples of an entry and dtype.")
@click.option("--dtypes", default=",".join(DTYPES), show_default=True)
@click.option("--workers", type=click.IntRange(1), default=os.cpu_count() or 1, show_default=True)
@click.option("--limit", type=click.FloatRange(1), default=120.0, show_default=True, help="Seconds that one entry may take.")
@click.option("--json", "path", type=click.Path(dir_okay=False, path_type=Path), help="Write all outcomes here.")
@click.option("--docs", type=click.Path(dir_okay=False, path_type=Path), help="Write the page of operators on targets here.")
@click.option("--read", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Compile nothing: take what --json wrote.")
def main(
    names: tuple[str, ...],
    only: str | None,
    every: int,
    samples: int,
    dtypes: str,
    workers: int,
    limit: float,
    path: Path | None,
    docs: Path | None,
    read: Path | None,
) -> None:
    """Run the sweep."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    console = Console()
    plan = Plan(samples, workers, limit, tuple(dtypes.split(",")))
    content: dict[str, Any] = {**targets_page.versions(), "samples": samples, "dtypes": plan.dtypes, "targets": {}}
    if read is not None:
        content = json.loads(read.read_text(encoding="utf-8"))
    chosen = tasks([Suite.OPS], only)[::every]
    for name in () if read is not None else names:
        rows = content["targets"][name] = []
        with Progress(console=Console(stderr=True)) as progress:
            bar = progress.add_task(name, total=len(chosen))

            def done(progress: Progress = progress, bar: TaskID = bar) -> None:
                progress.advance(bar)
                if path is not None:  # a run takes long: what is known survives its end
                    write(path, content)

            compile_all(chosen, name, plan, rows, done)
        if path is not None:
            write(path, content)
    for name, rows in content["targets"].items():
        show(console, name, rows)
    if docs is not None:
        docs.write_text(targets_page.markdown(content), encoding="utf-8")
    if any(row["found"] in (*LOST, Found.FAILS.value) for rows in content["targets"].values() for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
