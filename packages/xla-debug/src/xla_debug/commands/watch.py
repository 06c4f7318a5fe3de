"""`xla-debug watch`: a running job in the terminal."""

from __future__ import annotations

import click
from rich.console import Console

from xla_debug import watch
from xla_debug.commands import outputs


@click.command("watch")
@click.argument("target", metavar="PID|DIR")
@click.option("--once", is_flag=True, help="Show it as it is now, and end.")
def command(target: str, once: bool) -> None:
    """Show a running job, about every second, until its processes have ended.

    DIR is the folder in which they keep their accounts, PID the number of a process on this machine that does.
    """
    with outputs.told():
        folder = watch.folder_of(target)
        try:
            (watch.once if once else watch.follow)(folder, Console())
        except KeyboardInterrupt:
            return  # how one stops watching
