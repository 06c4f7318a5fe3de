"""`xla-debug report`: accounts from files, shown."""

from __future__ import annotations

import click
from rich.console import Console

from xla_debug.account import files
from xla_debug.account.merging import merge
from xla_debug.commands import outputs
from xla_debug.page import page
from xla_debug.render import report


@click.command("report")
@click.argument("paths", metavar="FILE...", nargs=-1, required=True)
@click.option("--html", type=outputs.FILE, help="Write one page that needs no network.")
@click.option("--json", type=outputs.FILE, help="Write the account as JSON.")
def command(paths: tuple[str, ...], html: str | None, json: str | None) -> None:
    """Show the account of a run: FILE is what `xla-debug run --json FILE` wrote; several FILEs are the processes of one run."""
    found = outputs.accounts(paths)
    account = found[0] if len(found) == 1 else merge(found)
    if html:
        outputs.write(page(account).encode(), html)
    if json:
        outputs.write(files.dumped(account), json)
    if not html and not json:
        Console().print(report(account))
