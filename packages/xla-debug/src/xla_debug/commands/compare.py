"""`xla-debug compare`: show several runs in one table."""

from __future__ import annotations

import click
from rich.console import Console

from xla_debug.commands import file_io
from xla_debug.rendering.run_comparison_tables import runs_table
from xla_debug.run_report.run_comparison import runs_json, summarize


@click.command("compare")
@click.argument("paths", metavar="FILE...", nargs=-1, required=True)
@click.option("--json", type=file_io.FILE, help="Write the table as JSON instead; - is stdout.")
def command(paths: tuple[str, ...], json: str | None) -> None:
    """Show the runs in FILEs in one table, beside the first one."""
    rows = [summarize(path, report) for path, report in zip(paths, file_io.read_reports(paths), strict=True)]
    if json:
        file_io.write(runs_json(rows), json)
    else:
        Console().print(runs_table(rows))
