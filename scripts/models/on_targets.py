"""Compile the training steps of real models for devices that are not there, each in a process of its own. Nothing runs.

NAMES: entries of docs/models.md, larger ones for targets only, or libraries; all of them if none is given. Exit status 1 if one does not
compile, or takes longer than it may.
"""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
from rich.table import Table

import entries  # isort: skip  # adds the folder of the next two to the path
import children
import harness
import large_models
import render
from case import Entry

COMPILERS = ("libtpu", "jax-cuda13-plugin")
GOAL_S = 120.0
"""Seconds that one program may take to compile."""
NEEDS_DATA = {"detr": "needs data: matches boxes by their values on the host"}
"""What cannot be compiled without a device's values, by the entry's name."""
Row = dict[str, Any]


def cells(row: Row) -> list[str]:
    """Programs, seconds of all of them, seconds of the longest, and what falls short of the promise or is worth a word."""
    if "error" in row or "needs" in row:
        return ["", "", "", str(row.get("error") or row["needs"])]
    remarks = [f"on the host: {name} {count} ×" for name, count in row["fallbacks"].items()]
    remarks += [f"longer than {GOAL_S:.0f} s"] if row["longest_s"] > GOAL_S else []
    return [str(row["programs"]), f"{row['compile_s']:.1f}", f"{row['longest_s']:.1f}", "; ".join(remarks)]


def block(rows: list[tuple[Entry, str, Row]]) -> str:
    """The table for the documentation, and where it was made."""
    headings = ["model", "library", "what", "target", "programs", "compiled in, s", "the longest, s", ""]
    table = render.table(headings, [[entry.name, entry.library, entry.what, name, *cells(row)] for entry, name, row in rows], right_from=4)
    versions = ", ".join(f"{compiler} {version(compiler)}" for compiler in COMPILERS)
    machine = ", ".join(f"{key} {value}" for key, value in harness.machine().items())
    return f"{table}\n\n{machine}, {versions}"


@click.command(help=__doc__)
@click.argument("names", nargs=-1)
@click.option("--target", "targets", multiple=True, default=("v5e", "h100"), show_default=True, help="May be given several times.")
@click.option("--into", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Replace the marked block of this page.")
@click.option("--json", "path", type=click.Path(dir_okay=False, path_type=Path), help="Write the rows to this file too.")
@click.option("--limit", type=click.FloatRange(1.0), default=900.0, show_default=True, help="Seconds that an entry may take.")
def main(names: tuple[str, ...], targets: tuple[str, ...], into: Path | None, path: Path | None, limit: float) -> None:
    console, rows = harness.wide_console(), []
    for entry in entries.chosen(names, (*entries.ENTRIES, *large_models.LARGE)):
        for name in targets:
            environment = {**harness.STEADY, "JAX_PLATFORMS": "cpu", "XLA_TARGET": name, "HF_HUB_OFFLINE": "1"}
            row = {"needs": NEEDS_DATA[entry.name]} if entry.name in NEEDS_DATA else None
            rows.append((entry, name, row or children.row_of("target_worker.py", entry.name, [], environment, limit)))
            console.print(f"{entry.name} for {name}: {' · '.join(cells(rows[-1][2]))}", style="dim")
    table = Table("model", "target", "programs", "compiled in, s", "longest, s", "")
    for entry, name, row in rows:
        table.add_row(entry.name, name, *cells(row))
    console.print(table)
    if path is not None:
        harness.write_results(path, "models-on-targets", [{"model": entry.name, "target": name, **row} for entry, name, row in rows])
    if into is not None:
        into.write_text(render.insert(into.read_text(encoding="utf-8"), {"targets": block(rows)}), encoding="utf-8")
    if any("error" in row or row.get("longest_s", 0.0) > GOAL_S for _, _, row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
