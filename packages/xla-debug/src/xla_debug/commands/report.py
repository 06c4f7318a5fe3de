"""`xla-debug report`: show saved run reports."""

from __future__ import annotations

import click
from rich.console import Console

from xla_debug.commands import file_io
from xla_debug.rendering.html_page import html_page
from xla_debug.rendering.terminal import full_view
from xla_debug.run_report import files
from xla_debug.run_report.merging import merge
from xla_debug.run_report.schema import RunReport


@click.command("report")
@click.argument("paths", metavar="FILE...", nargs=-1, required=True)
@click.option("--html", type=file_io.FILE, help="Write one page that needs no network.")
@click.option("--json", type=file_io.FILE, help="Write the run report as JSON.")
def command(paths: tuple[str, ...], html: str | None, json: str | None) -> None:
    """Show a run report: FILE is what `xla-debug run --json FILE` wrote; several FILEs are the processes of one run."""
    reports = file_io.read_reports(paths)
    report = reports[0] if len(reports) == 1 else _one_run(reports)
    if html:
        file_io.write(html_page(report).encode(), html)
    if json:
        file_io.write(files.to_json(report), json)
    if not html and not json:
        Console().print(full_view(report))


def _one_run(processes: list[RunReport]) -> RunReport:
    """Merge the run reports of all processes, which must be different replicas."""
    ordinals = [replica.ordinal for report in processes for replica in report.replicas]
    repeated = next((ordinal for ordinal in ordinals if ordinals.count(ordinal) > 1), None)
    if repeated is not None:
        raise file_io.CommandError(
            f"two of the files hold replica {repeated}, so they are of different runs; use `xla-debug diff` or `compare`"
        )
    return merge(processes)
