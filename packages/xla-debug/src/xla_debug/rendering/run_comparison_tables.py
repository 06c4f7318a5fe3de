"""Render comparisons of runs as tables in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from xla_debug.rendering.formatting import counted, duration, number, percent, size
from xla_debug.rendering.source_lines import SourceLines
from xla_debug.rendering.tables import Cell, heading, indented, plain, section, table
from xla_debug.run_report.run_comparison import MeasuredChange, MeasuredUnit, RunComparison, RunSummary
from xla_debug.run_report.schema import Finding

_NEGLIGIBLE = 0.01
"""A smaller change counts as none."""
_TEXTS = {MeasuredUnit.MS: duration, MeasuredUnit.BYTES: size, MeasuredUnit.COUNT: number, MeasuredUnit.SHARE: percent}
_MORE_IS_BETTER = ("steps", "device at work")
"""Measurements whose growth is not shown as a loss."""


def comparison_view(comparison: RunComparison, source_lines: SourceLines) -> Group:
    """Render two runs side by side: what got slower and by how much, and what else differs."""
    names = [">before", ">after", ">change", ""]
    parts: list[RenderableType] = [*_headline(comparison)]
    parts += section("Where the step goes", "ms per step", ["phase", *names], [_row(change) for change in comparison.phases])
    parts += section("Measurements", "", ["measurement", *names], [_row(change) for change in comparison.figures])
    parts += _findings("New findings", comparison.new, "bold red", source_lines)
    parts += _findings("Findings gone", comparison.gone, "bold green", source_lines)
    rows = [[name, old or "not set", new or "not set"] for name, (old, new) in comparison.environment.items()]
    return Group(*parts, *section("Different environment", "", ["", "before", "after"], rows))


def _headline(comparison: RunComparison) -> Iterator[RenderableType]:
    before, after = comparison.before, comparison.after
    yield plain(f"before: {before.name}, {', '.join(before.verdicts)}")
    yield plain(f"after:  {after.name}, {', '.join(after.verdicts)}")
    slower = comparison.slower
    if slower is None:
        yield Text("no steps to compare: one of the runs has none", "bold yellow")
        return
    change = f"{percent(abs(slower))} {'slower' if slower > 0 else 'faster'}" if abs(slower) >= _NEGLIGIBLE else "as fast as before"
    style = "bold red" if slower >= _NEGLIGIBLE else "bold green" if slower <= -_NEGLIGIBLE else "bold"
    largest = comparison.phases[0] if comparison.phases else None
    reason = f", most of it in {largest.name}" if largest and abs(slower) >= _NEGLIGIBLE and largest.delta * slower > 0 else ""
    yield Text(f"{change}: {duration(after.step_ms)} per step, before {duration(before.step_ms)}{reason}", style)


def _row(change: MeasuredChange) -> list[Cell]:
    text = _TEXTS[change.unit]
    return [change.name, text(change.before), text(change.after), *_change(change)]


def _change(change: MeasuredChange) -> tuple[Text, Text]:
    """Format a change in its own unit and in percent."""
    is_same = change.ratio is not None and abs(change.ratio) < _NEGLIGIBLE
    if not change.delta or is_same:
        return Text("same", "dim"), Text("")
    sign = "+" if change.delta > 0 else "-"
    style = "" if change.name in _MORE_IS_BETTER else "red" if change.delta > 0 else "green"
    percents = f"{sign}{percent(abs(change.ratio))}" if change.ratio is not None and change.unit is not MeasuredUnit.SHARE else ""
    return Text(f"{sign}{_TEXTS[change.unit](abs(change.delta))}", style), Text(percents, style)


def _findings(title: str, findings: Sequence[Finding], style: str, source_lines: SourceLines) -> list[RenderableType]:
    if not findings:
        return []
    parts: list[RenderableType] = [heading(title)]
    for finding in findings:
        location = f"  {source_lines.shorten(finding.line)}" if finding.line else ""
        parts += [plain(finding.problem.value, style).append_text(plain(location)), indented(plain(finding.text))]
    return parts


def runs_table(rows: Sequence[RunSummary]) -> Group:
    """Render several runs as one table, with the first one as the baseline."""
    first = rows[0].step_ms
    names = [plain(f"{rank}  {run.name}  ").append_text(plain(_about(run), "dim")) for rank, run in enumerate(rows, 1)]
    columns = [">#", ">steps", ">step", ">to first", ">device", ">compiles", ">reads", ">on CPU", ">peak"]
    cells = [
        [
            str(rank),
            number(run.steps),
            duration(run.step_ms) if run.step_ms else "",
            f"{run.step_ms / first:.2f} ×" if first and run.step_ms else "",
            percent(run.device),
            number(run.compiles),
            number(run.reads_per_step),
            number(run.fallbacks_per_step),
            size(run.peak) if run.peak else "",
        ]
        for rank, run in enumerate(rows, 1)
    ]
    return Group(*names, Text(), table(columns, cells), Text("step: the median; reads and calls on the CPU are per step", "dim"))


def _about(run: RunSummary) -> str:
    return ", ".join([*run.verdicts, counted(run.replicas, "replica"), counted(run.findings, "finding")])
