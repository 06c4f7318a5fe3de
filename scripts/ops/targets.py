"""Compile torch's database of operators for devices that are not there: each with its gradient, in four dtypes, in processes of their own.

Needs the compilers: `hatch run targets:ops`. Exit status 1 if less than 99.5 % compile, or if something ends a process.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import pool
from compiling import Found
from entries import Suite, Task, tasks

GOAL = 0.995


@click.command(help=__doc__)
@click.option("--target", default="v5e", show_default=True)
@click.option("--only", help="Comma-separated parts of entry names; =name for a whole one.")
@click.option("--every", type=click.IntRange(1), default=1, show_default=True, help="One of so many entries.")
@click.option("--samples", type=click.IntRange(1), default=2, show_default=True, help="Samples of an entry and dtype.")
@click.option("--workers", type=click.IntRange(1), default=os.cpu_count() or 1, show_default=True)
@click.option("--limit", type=click.FloatRange(1), default=120.0, show_default=True, help="Seconds that one entry may take.")
@click.option("--json", "path", type=click.Path(dir_okay=False, path_type=Path), help="Write all outcomes here.")
def main(target: str, only: str | None, every: int, samples: int, workers: int, limit: float, path: Path | None) -> None:
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    chosen = tasks([Suite.OPS], only)[::every]
    console, counts = Console(), Counter[str]()
    details = Table("operator", "dtype", "what", "detail", title=f"Not compiled for {target}")
    rows: list[dict[str, Any]] = []
    with Progress(console=Console(stderr=True)) as progress:
        bar = progress.add_task("operators", total=len(chosen))

        def done(task: Task, answer: dict[str, Any]) -> None:
            progress.advance(bar)
            found = answer["found"]
            if isinstance(found, dict):  # the process ended
                lost = found["any"]["forward"]
                what = Found.TIMEOUT if "no result" in lost["detail"] else Found.CRASH
                found = [{"dtype": "all", "found": what.value, "detail": lost["detail"]}]
            for row in found:
                counts[row["found"]] += 1
                rows.append({"name": task.name, **row})
                if row["found"] != Found.COMPILES.value:
                    details.add_row(task.name, row["dtype"], row["found"], row["detail"])
            if path is not None:
                path.write_text(json.dumps({"target": target, "rows": rows}, indent=1), encoding="utf-8")

        pool.run(chosen, [target, str(samples)], workers, limit, done, Path(__file__).with_name("compiling.py"))
    total = counts.total()
    summary = Table("operators and dtypes", *[found.value for found in Found], title=target)
    summary.add_row(f"{total:,}", *[f"{counts[found.value]:,}" for found in Found])
    console.print(details)
    console.print(summary)
    if counts[Found.FAILS.value] + counts[Found.TIMEOUT.value] > (1 - GOAL) * total or counts[Found.CRASH.value]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
