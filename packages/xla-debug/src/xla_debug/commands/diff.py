"""`xla-debug diff`: show two runs side by side."""

from __future__ import annotations

import click
from rich.console import Console

from xla_debug.commands import file_io
from xla_debug.rendering.run_comparison_tables import comparison_view
from xla_debug.rendering.source_lines import SourceLines
from xla_debug.run_report.run_comparison import compare_runs, comparison_json


@click.command("diff")
@click.argument("before")
@click.argument("after")
@click.option("--json", type=file_io.FILE, help="Write the difference as JSON instead; - is stdout.")
@click.option("--fail-above", type=click.FloatRange(min=0), metavar="PERCENT", help="Exit with 1 if the median step got slower by more.")
@click.pass_context
def command(context: click.Context, before: str, after: str, json: str | None, fail_above: float | None) -> None:
    """Show what got slower from the run in file BEFORE to the one in file AFTER, and by how much."""
    old, new = file_io.read_reports([before, after])
    comparison = compare_runs((before, old), (after, new))
    if json:
        file_io.write(comparison_json(comparison), json)
    else:
        Console().print(comparison_view(comparison, SourceLines.of([old, new])))
    if fail_above is None:
        return
    if comparison.slower is None:
        raise file_io.CommandError(
            f"{before if not comparison.before.step_ms else after}: a run without steps, so there is nothing to compare"
        )
    context.exit(1 if 100 * comparison.slower > fail_above else 0)
