"""`xla-debug report`: accounts from files, shown."""

from __future__ import annotations

import click
from rich.console import Console

from xla_debug.account import files
from xla_debug.account.merging import merge
from xla_debug.account.schema import Account
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
    account = found[0] if len(found) == 1 else _one_run(found)
    if html:
        outputs.write(page(account).encode(), html)
    if json:
        outputs.write(files.dumped(account), json)
    if not html and not json:
        Console().print(report(account))


def _one_run(processes: list[Account]) -> Account:
    """The account of all processes, which must be different replicas."""
    ordinals = [replica.ordinal for account in processes for replica in account.replicas]
    twice = next((ordinal for ordinal in ordinals if ordinals.count(ordinal) > 1), None)
    if twice is not None:
        raise outputs.Wrong(f"two of the files hold replica {twice}, so they are of different runs; use `xla-debug diff` or `compare`")
    return merge(processes)
