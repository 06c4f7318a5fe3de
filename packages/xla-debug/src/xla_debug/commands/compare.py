"""`xla-debug compare`: several runs in one table."""

from __future__ import annotations

import click
from rich.console import Console

from xla_debug.commands import outputs
from xla_debug.comparison import runs_json, summary
from xla_debug.comparison_tables import runs


@click.command("compare")
@click.argument("paths", metavar="FILE...", nargs=-1, required=True)
@click.option("--json", type=outputs.FILE, help="Write the table as JSON instead; - is stdout.")
def command(paths: tuple[str, ...], json: str | None) -> None:
    """Show the runs in FILEs in one table, beside the first one."""
    rows = [summary(path, account) for path, account in zip(paths, outputs.accounts(paths), strict=True)]
    if json:
        outputs.write(runs_json(rows), json)
    else:
        Console().print(runs(rows))
