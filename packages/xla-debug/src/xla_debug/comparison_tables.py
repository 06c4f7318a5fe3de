"""Comparisons of runs in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from xla_debug.account.schema import Finding
from xla_debug.comparison import Comparison, Figure, Run, Unit
from xla_debug.places import Places
from xla_debug.quantities import counted, duration, number, percent, size
from xla_debug.tables import Cell, heading, indented, plain, section, table

_SAME = 0.01
"""A change of less is none."""
_TEXTS = {Unit.MS: duration, Unit.BYTES: size, Unit.COUNT: number, Unit.SHARE: percent}
_BETTER = ("steps", "device at work")
"""Figures of which more is no loss."""


def difference(comparison: Comparison, places: Places) -> Group:
    """Two runs side by side: what got slower and by how much, and what else is different."""
    names = [">before", ">after", ">change", ""]
    parts: list[RenderableType] = [*_headline(comparison)]
    parts += section("Where the step goes", "ms per step", ["phase", *names], [_row(figure) for figure in comparison.phases])
    parts += section("Figures", "", ["figure", *names], [_row(figure) for figure in comparison.figures])
    parts += _findings("New findings", comparison.new, "bold red", places)
    parts += _findings("Findings gone", comparison.gone, "bold green", places)
    rows = [[name, old or "not set", new or "not set"] for name, (old, new) in comparison.environment.items()]
    return Group(*parts, *section("Different environment", "", ["", "before", "after"], rows))


def _headline(comparison: Comparison) -> Iterator[RenderableType]:
    before, after = comparison.before, comparison.after
    yield plain(f"before: {before.name}, {', '.join(before.verdicts)}")
    yield plain(f"after:  {after.name}, {', '.join(after.verdicts)}")
    slower = comparison.slower
    if slower is None:
        yield Text("no steps to compare: one of the runs has none", "bold yellow")
        return
    change = f"{percent(abs(slower))} {'slower' if slower > 0 else 'faster'}" if abs(slower) >= _SAME else "as fast as before"
    style = "bold red" if slower >= _SAME else "bold green" if slower <= -_SAME else "bold"
    most = comparison.phases[0] if comparison.phases else None
    reason = f", most of it in {most.name}" if most and abs(slower) >= _SAME and most.more * slower > 0 else ""
    yield Text(f"{change}: {duration(after.step_ms)} per step, before {duration(before.step_ms)}{reason}", style)


def _row(figure: Figure) -> list[Cell]:
    text = _TEXTS[figure.unit]
    return [figure.name, text(figure.before), text(figure.after), *_change(figure)]


def _change(figure: Figure) -> tuple[Text, Text]:
    """The change in the figure's unit and in percent."""
    same = figure.ratio is not None and abs(figure.ratio) < _SAME
    if not figure.more or same:
        return Text("same", "dim"), Text("")
    sign = "+" if figure.more > 0 else "-"
    style = "" if figure.name in _BETTER else "red" if figure.more > 0 else "green"
    percents = f"{sign}{percent(abs(figure.ratio))}" if figure.ratio is not None and figure.unit is not Unit.SHARE else ""
    return Text(f"{sign}{_TEXTS[figure.unit](abs(figure.more))}", style), Text(percents, style)


def _findings(title: str, findings: Sequence[Finding], style: str, places: Places) -> list[RenderableType]:
    if not findings:
        return []
    parts: list[RenderableType] = [heading(title)]
    for finding in findings:
        where = f"  {places.shown(finding.line)}" if finding.line else ""
        parts += [plain(finding.problem.value, style).append_text(plain(where)), indented(plain(finding.text))]
    return parts


def runs(rows: Sequence[Run]) -> Group:
    """Several runs in one table, the first one as the yardstick."""
    first = rows[0].step_ms
    names = [plain(f"{place}  {run.name}  ").append_text(plain(_about(run), "dim")) for place, run in enumerate(rows, 1)]
    columns = [">#", ">steps", ">step", ">to first", ">device", ">compiles", ">reads", ">on CPU", ">peak"]
    cells = [
        [
            str(place),
            number(run.steps),
            duration(run.step_ms) if run.step_ms else "",
            f"{run.step_ms / first:.2f} ×" if first and run.step_ms else "",
            percent(run.device),
            number(run.compiles),
            number(run.reads_per_step),
            number(run.fallbacks_per_step),
            size(run.peak) if run.peak else "",
        ]
        for place, run in enumerate(rows, 1)
    ]
    return Group(*names, Text(), table(columns, cells), Text("step: the median; reads and calls on the CPU are per step", "dim"))


def _about(run: Run) -> str:
    return ", ".join([*run.verdicts, counted(run.replicas, "replica"), counted(run.findings, "finding")])
