"""`xla-debug watch`: show a running job in the terminal."""

from __future__ import annotations

import click
from rich.console import Console

from xla_debug.commands import file_io
from xla_debug.rendering import running_job


@click.command("watch")
@click.argument("target", metavar="PID|FOLDER")
@click.option("--once", is_flag=True, help="Show it as it is now, and end.")
def command(target: str, once: bool) -> None:
    """Show a running job, about every second, until its processes have ended.

    FOLDER is where they keep their recordings (XLA_DEBUG_ACCOUNT_DIR), PID the number of a process on this machine that does.
    """
    with file_io.as_command_error():
        folder = running_job.folder_of(target)
        try:
            (running_job.show_once if once else running_job.follow)(folder, Console())
        except KeyboardInterrupt:
            return  # Ctrl-C stops watching
