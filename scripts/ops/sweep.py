"""Calls that CPU torch refuses, on device `xla`: torch's error inputs and mutated samples of every operator.

Counts how often the device refuses them at the call with an error of the same type. Exit status 1 if that is less than 98 %, or if an
error came only at the sync or was of a type that is not meant for users.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import pool
from entries import Suite, Task, tasks
from refusals import Verdict

GOAL = 0.98
LIMIT_S = 120.0


@click.command(help=__doc__)
@click.option("--only", help="Comma-separated parts of entry names; =name for a whole one.")
@click.option("--every", type=click.IntRange(1), default=1, show_default=True, help="One of so many entries.")
@click.option("--samples", type=click.IntRange(1), default=2, show_default=True, help="Samples of an entry that are mutated.")
@click.option("--workers", type=click.IntRange(1), default=os.cpu_count() or 1, show_default=True)
def main(only: str | None, every: int, samples: int, workers: int) -> None:
    """Run the sweep."""
    chosen = tasks([Suite.OPS], only)[::every]
    console, counts = Console(), Counter[str]()
    details = Table("operator", "what", "on xla", "on the CPU", title="Not refused as on the CPU")
    with Progress(console=console) as progress:
        bar = progress.add_task("operators", total=len(chosen))

        def done(task: Task, answer: dict[str, Any]) -> None:
            progress.advance(bar)
            if isinstance(answer["found"], dict):
                counts["lost"] += 1
                details.add_row(task.name, "all", answer["found"]["any"]["forward"]["detail"], "")
                return
            for finding in answer["found"]:
                counts[finding["verdict"]] += 1
                if finding["verdict"] != Verdict.SAME.value:
                    details.add_row(finding["entry"], finding["what"], f"{finding['verdict']}: {finding['mine']}", finding["cpu"])

        pool.run(chosen, [str(samples)], workers, LIMIT_S, done, Path(__file__).with_name("refusals.py"))
    total = sum(counts[verdict.value] for verdict in Verdict)
    summary = Table("calls that the CPU refuses", *[verdict.value for verdict in Verdict], "operators lost")
    summary.add_row(f"{total:,}", *[f"{counts[verdict.value]:,}" for verdict in Verdict], str(counts["lost"]))
    console.print(details)
    console.print(summary)
    if counts[Verdict.SAME.value] < GOAL * total or counts[Verdict.LATE.value] or counts[Verdict.INTERNAL.value]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
