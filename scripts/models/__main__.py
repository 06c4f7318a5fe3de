"""Train real models of released libraries, with random weights, on xla beside the CPU: equal? fallbacks? late compilations? how fast?

Each entry runs in a process of its own, so that one failure is one row. NAMES: entries or libraries; all of them if none is given.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

import entries  # isort: skip  # adds the folder of the next two to the path
import children
import harness
import render
from case import Entry

HEADINGS = ("model", "library", "outputs", "gradients", "fallbacks", "late compiles", "xla, ms", "eager, ms", "inductor, ms", "× eager", "")
PAGE_HEADINGS = ("model", "library", "what", *HEADINGS[2:])
QUIET = {**harness.STEADY, "PJRT_DEVICE": "CPU", "JAX_PLATFORMS": "cpu", "HF_HUB_OFFLINE": "1"}


def verdict(entry: Entry, row: dict[str, Any]) -> tuple[str, str]:
    """What falls short of the promise, or nothing; and what else there is to say."""
    if "error" in row:
        return str(row["error"]), entry.note
    short, notes = [], [entry.note] if entry.note else []
    for key, limit in (("outputs", entry.outputs), ("gradients", entry.gradients), ("losses", entry.gradients)):
        same_sides = row.get(f"same_sides_{key}")
        if same_sides is not None and same_sides <= limit:
            notes.append(f"{key} with the CPU's sides of ReLUs: {same_sides:.0e}")
        elif row.get(key) is not None and row[key] > limit:
            short.append(f"{key} differ by {row[key]:.0e}, allowed {limit:.0e}")
    if row["fallbacks"]:
        short.append("on the CPU: " + ", ".join(f"{name} {count} ×" for name, count in row["fallbacks"].items()))
    if row["late_compiles"]:
        short.append(f"{row['late_compiles']} compiled after step 3")
    return "; ".join(short), "; ".join(notes)


def cells(entry: Entry, row: dict[str, Any]) -> list[str]:
    """A row as text, in the order of HEADINGS."""
    remark = "; ".join(filter(None, verdict(entry, row)))
    if "error" in row:
        return [entry.name, entry.library, *[""] * 8, remark]
    differences = ["" if row[key] is None else f"{row[key]:.0e}" for key in ("outputs", "gradients")]
    times = [render.number(row.get(f"{name}_ms")) for name in ("xla", "eager", "inductor")]
    ratio = f"{row['xla_ms'] / row['eager_ms']:.2f}" if "xla_ms" in row else ""
    counts = [str(sum(row["fallbacks"].values())), str(row["late_compiles"])]
    return [entry.name, entry.library, *differences, *counts, *times, ratio, remark]


def page(rows: list[tuple[Entry, dict[str, Any]]]) -> dict[str, str]:
    """The blocks of the documentation's page."""
    texts = [[name, library, entry.what, *rest] for entry, row in rows for name, library, *rest in [cells(entry, row)]]
    facts = {**harness.machine(), "command": f"hatch run models {' '.join(sys.argv[1:])}".split(" --into")[0].strip()}
    return {
        "models": render.table(list(PAGE_HEADINGS), texts, right_from=3),
        "machine": render.table(["", ""], [[key, str(value)] for key, value in facts.items()], right_from=99),
    }


@click.command(help=__doc__)
@click.argument("names", nargs=-1)
@click.option("--into", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Replace the marked blocks of this page.")
@click.option("--json", "target", type=click.Path(dir_okay=False, path_type=Path), help="Write the rows to this file too.")
@click.option("--inductor/--no-inductor", default=True, show_default=True, help="Time torch.compile, too.")
@click.option(
    "--budget",
    type=click.FloatRange(0.0),
    default=2.0,
    show_default=True,
    help="Seconds of a turn, of which each contender has 3; 0: no times.",
)
@click.option("--limit", type=click.FloatRange(1.0), default=600.0, show_default=True, help="Seconds that an entry may take.")
def main(names: tuple[str, ...], into: Path | None, target: Path | None, inductor: bool, budget: float, limit: float) -> None:
    console, rows = harness.wide_console(), []
    for entry in entries.chosen(names, entries.ENTRIES):
        console.print(f"{entry.name}: {entry.what}", style="dim")
        options = ["--inductor" if inductor else "--no-inductor", str(budget)]
        rows.append((entry, children.row_of("worker.py", entry.name, options, QUIET, limit)))
    show(rows, console)
    if target is not None:
        harness.write_results(target, "models", [{"model": entry.name, "short": verdict(entry, row)[0], **row} for entry, row in rows])
    if into is not None:
        into.write_text(render.insert(into.read_text(encoding="utf-8"), page(rows)), encoding="utf-8")
    if any(verdict(entry, row)[0] for entry, row in rows):
        raise SystemExit(1)


def show(rows: list[tuple[Entry, dict[str, Any]]], console: Console) -> None:
    """The rich table."""
    table = Table(title="Largest relative differences from the CPU; median milliseconds of a step: forward, backward, AdamW")
    for place, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="left" if place in (0, 1, len(HEADINGS) - 1) else "right")
    for entry, row in rows:
        table.add_row(*cells(entry, row))
    console.print(table)


if __name__ == "__main__":
    main()
