"""Render the sections of a run report as tables: compilations, syncs, copies, memory, and the lines that took host time.

Equal rows of several replicas become one row, with the mean over the replicas.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from rich.console import RenderableType
from rich.text import Text

from xla_debug.rendering.formatting import counted, duration, number, percent, ranges, size
from xla_debug.rendering.source_lines import SourceLines
from xla_debug.rendering.tables import Cell, plain, section
from xla_debug.run_report.aggregates import RowGroup, group_rows, share, step_ms
from xla_debug.run_report.schema import Background, Change, Compile, Fallback, Replica, Transfer

Replicas = Sequence[Replica]
T = TypeVar("T")
Copied = TypeVar("Copied", Fallback, Transfer)


def _section(
    title: str, replicas: Replicas, columns: list[str], groups: list[RowGroup[T]], row: Callable[[RowGroup[T]], list[Cell]]
) -> list[RenderableType]:
    """Render a table with a row for each group, and with a column of replicas if there are several."""
    if len(replicas) == 1:
        return section(title, "", columns, [row(group) for group in groups])
    return section(title, "per replica", [*columns, "replicas"], [[*row(group), _ordinals(group.ordinals, replicas)] for group in groups])


def _ordinals(ordinals: Sequence[int], replicas: Replicas) -> str:
    return "all" if len(ordinals) == len(replicas) else ranges(ordinals)


def _costliest(groups: list[RowGroup[T]], measure: Callable[[T], float]) -> list[RowGroup[T]]:
    return sorted(groups, key=lambda group: -group.mean(measure))


def _compiles(replicas: Replicas, source_lines: SourceLines) -> list[RenderableType]:
    groups = group_rows(replicas, lambda replica: replica.compiles, lambda row: (row.step, row.graph_hash, row.line))
    groups.sort(key=lambda group: (group.first.step, group.first.start_s))
    advised: set[str] = set()
    spent = sum(group.mean(lambda row: row.ms) * len(group.ordinals) for group in groups) / max(len(replicas), 1)

    def row(group: RowGroup[Compile]) -> list[Cell]:
        first = group.first
        donation = f"{first.donated} of {counted(first.inputs, 'input')} donated ({size(first.donated_bytes)})" if first.donated else None
        summary = ", ".join(filter(None, [first.name, counted(first.operations, "operation"), donation]))
        request = plain(source_lines.shorten(first.line)).append_text(plain(f"\n{summary}", "dim"))
        return [str(first.step), duration(group.mean(lambda row: row.ms)), request, _why(first, source_lines, advised)]

    return _section(f"Compiles: {len(groups)}, {duration(spent)}", replicas, [">step", ">took", "asked for by", "why"], groups, row)


def _why(row: Compile, source_lines: SourceLines, advised: set[str]) -> Text:
    """Explain a recompilation: how the program differs, where that comes from, and what to do, unless that was advised before."""
    difference = row.difference
    text = plain(difference.text or difference.change.value)
    if difference.line and difference.line != row.line:
        text.append_text(plain(f" ({source_lines.shorten(difference.line)})"))
    if difference.advice not in {"", *advised} and difference.change is not Change.FIRST:
        advised.add(difference.advice)
        text.append_text(plain(f"\n→ {difference.advice}", "green"))
    return text


def _background(replicas: Replicas, source_lines: SourceLines) -> list[RenderableType]:
    groups = group_rows(replicas, lambda replica: [replica.background] if replica.background != Background() else [], lambda row: ())
    return _section(
        "In the background",
        replicas,
        [">compiles", ">took", ">executions by operation"],
        groups,
        lambda group: [
            number(group.mean(lambda row: row.compiles)),
            duration(group.mean(lambda row: row.ms)),
            number(group.mean(lambda row: row.by_operation)),
        ],
    )


def _syncs(replicas: Replicas, source_lines: SourceLines) -> list[RenderableType]:
    groups = group_rows(replicas, lambda replica: replica.syncs, lambda row: (row.line, row.kind, row.cause))
    return _section(
        "Syncs",
        replicas,
        ["line", "kind", "cause", ">count", ">in steps", ">blocked"],
        _costliest(groups, lambda row: row.blocked_ms),
        lambda group: [
            source_lines.shorten(group.first.line),
            group.first.kind,
            group.first.cause or "",
            number(group.mean(lambda row: row.count)),
            number(group.mean(lambda row: row.steps)),
            duration(group.mean(lambda row: row.blocked_ms)),
        ],
    )


def _copies(
    title: str, replicas: Replicas, columns: list[str], groups: list[RowGroup[Copied]], names: Callable[[Copied], list[Cell]]
) -> list[RenderableType]:
    """Render a table of data movements: the columns that name them, then count, bytes and time."""
    return _section(
        title,
        replicas,
        [*columns, ">moved", ">took"],
        _costliest(groups, lambda row: row.ms),
        lambda group: [
            *names(group.first),
            number(group.mean(lambda row: row.count)),
            size(group.mean(lambda row: row.nbytes)),
            duration(group.mean(lambda row: row.ms)),
        ],
    )


def _fallbacks(replicas: Replicas, source_lines: SourceLines) -> list[RenderableType]:
    groups = group_rows(replicas, lambda replica: replica.fallbacks, lambda row: (row.operator, row.line))
    columns = ["operator", "line", ">calls"]
    return _copies("Operators on the CPU", replicas, columns, groups, lambda row: [row.operator, source_lines.shorten(row.line)])


def _transfers(replicas: Replicas, source_lines: SourceLines) -> list[RenderableType]:
    groups = group_rows(replicas, lambda replica: replica.transfers, lambda row: (row.direction, row.line))
    columns = ["direction", "line", ">count"]
    return _copies("Transfers", replicas, columns, groups, lambda row: [row.direction.replace("_", " "), source_lines.shorten(row.line)])


def _devices(replicas: Replicas, source_lines: SourceLines) -> list[RenderableType]:
    groups = group_rows(replicas, lambda replica: replica.memory.devices, lambda row: row.device)
    return _section(
        "Memory",
        replicas,
        ["device", ">in use", ">peak", ">of"],
        groups,
        lambda group: [
            group.first.device,
            size(group.mean(lambda row: row.in_use)),
            size(max(row.peak for row in group.rows)),
            size(group.first.limit) if group.first.limit else "unknown",
        ],
    )


def _live(replicas: Replicas, source_lines: SourceLines) -> list[RenderableType]:
    groups = group_rows(replicas, lambda replica: replica.memory.live, lambda row: (row.line, row.device, row.shape, row.holder))
    return _section(
        "Largest live buffers",
        replicas,
        ["made at", "held by", "shape", "device", ">count", ">size"],
        _costliest(groups, lambda row: row.nbytes),
        lambda group: [
            source_lines.shorten(group.first.line),
            group.first.holder or "",
            group.first.shape,
            group.first.device,
            number(group.mean(lambda row: row.count)),
            size(group.mean(lambda row: row.nbytes)),
        ],
    )


def _hot_lines(replicas: Replicas, source_lines: SourceLines) -> list[RenderableType]:
    groups = group_rows(replicas, lambda replica: replica.hot_lines, lambda row: (row.line, row.phase))
    steps = max((replica.measured_steps for replica in replicas), default=0)
    total_ms = max((step_ms(replica) * replica.measured_steps for replica in replicas), default=0.0)
    return _section(
        "Hot lines",
        replicas,
        ["line", "phase", ">ms/step" if steps else ">took", ">share"],
        _costliest(groups, lambda row: row.ms),
        lambda group: [
            source_lines.shorten(group.first.line),
            group.first.phase,
            duration(group.mean(lambda row: row.ms) / max(steps, 1)),
            percent(share(group.mean(lambda row: row.ms), total_ms)),
        ],
    )


SECTIONS = (_compiles, _background, _syncs, _fallbacks, _transfers, _devices, _live, _hot_lines)
"""The sections in the order in which they are shown."""
