"""Render run reports in the terminal: problems first, then the numbers behind them. Empty sections are left out."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial

from rich.console import Group, RenderableType
from rich.text import Text

from xla_debug.rendering.formatting import counted, duration, milliseconds, percent, ranges, size
from xla_debug.rendering.sections import SECTIONS
from xla_debug.rendering.source_lines import SourceLines
from xla_debug.rendering.tables import Bar, Cell, indented, plain, section
from xla_debug.run_report.aggregates import (
    bottleneck_share,
    busy,
    device_step_ms,
    phase_ms,
    share,
    slowest,
    step_ms,
    typical_step_ms,
    work_ms,
)
from xla_debug.run_report.excerpts import line_of_excerpt
from xla_debug.run_report.schema import Bottleneck, Finding, Phase, Problem, Replica, RunReport

_NEWEST_STEPS = 50
"""Newest steps whose median is a running job's present pace."""
_MOST_COLUMNS = 8
"""Replicas side by side, at most: so many fit."""
_MARKED_SHARE = 0.1
"""Share of a replica's own work by which a phase must exceed the median of all replicas to be marked."""


def full_view(report: RunReport) -> Group:
    """Render all of a run report."""
    source_lines = SourceLines.of([report])
    parts = [*_head(report, source_lines), *_findings(report, source_lines), *_steps(report)]
    for part in SECTIONS:
        parts += part(report.replicas, source_lines)
    return Group(*parts, *_environment(report))


def overview(report: RunReport) -> Group:
    """Render the overview of a running job: how fast it is now, where the time goes, what is wrong."""
    source_lines = SourceLines.of([report])
    current_ms = [typical_step_ms(replica, newest=_NEWEST_STEPS) for replica in report.replicas if replica.timeline]
    in_use = sum(device.in_use for replica in report.replicas for device in replica.memory.devices)
    parts = [f"now {duration(max(current_ms))} per step"] if current_ms else []
    parts += [counted(max((len(replica.compiles) for replica in report.replicas), default=0), "compile")]
    parts += [f"{size(in_use)} on devices"] if in_use else []
    return Group(*_head(report, source_lines), Text(", ".join(parts)), *_steps(report), *_findings(report, source_lines))


def _head(report: RunReport, source_lines: SourceLines) -> Iterator[RenderableType]:
    """Render the bottlenecks, the command and its pace."""
    bottlenecks = {replica.verdict for replica in report.replicas}
    for bottleneck in sorted(bottlenecks, key=lambda item: item.value):
        replicas = [replica for replica in report.replicas if replica.verdict is bottleneck]
        suffix = f"  replica {ranges([replica.ordinal for replica in replicas])}" if len(bottlenecks) > 1 else ""
        yield Text.assemble((_bottleneck(replicas), "bold"), suffix)
    yield plain(" ".join(report.command))
    slow = slowest(report)
    if slow is not None:
        count = f", {counted(len(report.replicas), 'replica')}" if len(report.replicas) > 1 else ""
        state = {None: "still running", 0: "finished"}.get(report.exit_code, f"ended with exit code {report.exit_code}")
        pace = f"{duration(step_ms(slow))} per step (median {duration(typical_step_ms(slow))}), " if slow.steps else ""
        date = datetime.fromtimestamp(report.started_s).strftime("%Y-%m-%d %H:%M")
        yield plain(f"{pace}{counted(slow.steps, 'step')} in {duration(1000 * report.seconds)}{count} on {slow.hardware}, {state}, {date}")
    if source_lines.common_folder:
        yield plain(f"lines are below {source_lines.common_folder}", "dim")


def _bottleneck(replicas: Sequence[Replica]) -> str:
    """Describe the bottleneck of replicas that have the same one, with its share of the step."""
    bottleneck = replicas[0].verdict
    if bottleneck is Bottleneck.NOTHING:
        return Bottleneck.NOTHING.value
    part = percent(sum(map(bottleneck_share, replicas)) / len(replicas))
    return f"{bottleneck.value}: " + (f"the device works {part} of the time" if bottleneck is Bottleneck.DEVICE else f"{part} of the step")


def _findings(report: RunReport, source_lines: SourceLines) -> Iterator[RenderableType]:
    if not report.findings:
        yield Text("\nNo problem found.", "green")
        return
    yield Text(f"\n{counted(len(report.findings), 'finding')}", "bold")
    groups: dict[tuple[Problem, str], list[Finding]] = {}
    for finding in report.findings:
        groups.setdefault((finding.problem, finding.advice), []).append(finding)
    for rank, group in enumerate(groups.values(), 1):
        yield _group(rank, group, source_lines)


def _group(rank: int, group: list[Finding], source_lines: SourceLines) -> RenderableType:
    """Render findings with the same advice: the line and text of each, then the advice."""
    parts: list[RenderableType] = []
    for finding in group:
        title = Text.assemble((f"{rank}. {finding.problem.value}" if finding is group[0] else "   and", "bold red"))
        if finding.line:
            title.append_text(plain(f"  {source_lines.shorten(finding.line)}", "bold"))
        if finding.replica is not None:
            title.append(f"  replica {finding.replica}", "yellow")
        if finding.cost_ms:
            title.append(f"  cost {duration(finding.cost_ms)}", "dim")
        parts += [title, indented(plain(finding.text))]
        if source := line_of_excerpt(finding):
            parts.append(indented(plain(source, "cyan")))
    return Group(*parts, indented(plain(f"→ {group[0].advice}", "green")))


def _steps(report: RunReport) -> list[RenderableType]:
    """Render the phases of the step: below each other for one replica, side by side for several."""
    measured = [replica for replica in report.replicas if replica.measured_steps]
    phases = [phase for phase in Phase if any(phase_ms(replica, phase) for replica in measured)]
    if len(measured) > 1:
        return _side_by_side(measured, phases)
    rows: list[list[Cell]] = []
    for replica in measured:
        for phase in phases:
            part = share(phase_ms(replica, phase), step_ms(replica))
            rows.append([phase.value, milliseconds(phase_ms(replica, phase)), percent(part), Bar(part, "cyan")])
        rows.append([Text("step", "bold"), Text(milliseconds(step_ms(replica)), "bold"), "", ""])
        rows.append(
            [
                "device at work",
                milliseconds(device_step_ms(replica)),
                percent(busy(replica)),
                Bar(busy(replica), "green"),
            ]
        )
    return section("Where the step goes", "", ["phase", ">ms/step", ">share", ""], rows)


def _side_by_side(replicas: list[Replica], phases: list[Phase]) -> list[RenderableType]:
    """Render a column for each replica, in milliseconds per step; work that takes far longer than the median is marked."""
    slow = sorted(replicas, key=work_ms, reverse=True)[:_MOST_COLUMNS]
    shown = sorted(slow, key=lambda replica: replica.ordinal)
    cut = len(replicas) > _MOST_COLUMNS
    note = f"ms per step of the {_MOST_COLUMNS} slowest of {len(replicas)} replicas" if cut else "ms per step of each replica"

    def row(name: str, measure: Callable[[Replica], float], text: Callable[[float], str] = milliseconds, work: bool = False) -> list[Cell]:
        median = statistics.median(map(measure, replicas))
        marks = [work and measure(replica) - median > _MARKED_SHARE * work_ms(replica) for replica in shown]
        cells = [Text(text(measure(replica)), "bold yellow" if mark else "") for replica, mark in zip(shown, marks, strict=True)]
        return [name, *cells, *([text(median)] if cut else [])]

    rows = [row(phase.value, partial(phase_ms, phase=phase), work=phase is not Phase.WAITING) for phase in phases]
    rows += [row("step", step_ms), row("device at work", busy, percent)]
    columns = ["replica", *(f">{replica.ordinal}" for replica in shown), *([">median"] if cut else [])]
    return section("Where the step goes", note, columns, rows)


def _environment(report: RunReport) -> list[RenderableType]:
    """Render the environment for a bug report in one paragraph."""
    environment = report.environment
    versions = [f"Python {environment.python}", *(f"{name} {version}" for name, version in environment.versions.items())]
    settings = [f"{name}={value}" for name, value in environment.settings.items()]
    return [plain("\n" + "; ".join(filter(None, [", ".join(versions), environment.platform, " ".join(settings)])), "dim")]
