"""An account in the terminal: what is wrong first, then the figures behind it. Sections that would be empty are left out."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from functools import partial

from rich.console import Group, RenderableType
from rich.text import Text

from xla_debug.account.figures import busy, device_step_ms, own_ms, phase_ms, share, slowest, step_ms, typical_step_ms, verdict_share
from xla_debug.account.schema import Account, Finding, Phase, Replica, Verdict
from xla_debug.places import Places
from xla_debug.quantities import counted, duration, milliseconds, percent, ranges, size
from xla_debug.sections import SECTIONS
from xla_debug.tables import Cell, indented, plain, section

_BAR = 24
"""Characters of the bar of a whole step."""
_NEWEST = 50
"""Steps that are the present of a running job."""
_COLUMNS = 8
"""Replicas beside each other: as many as fit."""
_MARKED = 0.1
"""Of a replica's own work: a phase that takes so much longer than with the others is marked."""


def report(account: Account) -> Group:
    """All of an account."""
    places = Places.of([account])
    parts = [*_head(account, places), *_findings(account, places), *_steps(account)]
    for part in SECTIONS:
        parts += part(account.replicas, places)
    return Group(*parts, *_environment(account))


def overview(account: Account) -> Group:
    """Render the overview of a running job: how fast it is now, where the time goes, what is wrong."""
    places = Places.of([account])
    now = [typical_step_ms(replica, newest=_NEWEST) for replica in account.replicas if replica.timeline]
    held = sum(device.in_use for replica in account.replicas for device in replica.memory.devices)
    parts = [f"now {duration(max(now))} per step"] if now else []
    parts += [counted(max((len(replica.compiles) for replica in account.replicas), default=0), "compile")]
    parts += [f"{size(held)} on devices"] if held else []
    return Group(*_head(account, places), Text(", ".join(parts)), *_steps(account), *_findings(account, places))


def _head(account: Account, places: Places) -> Iterator[RenderableType]:
    """The verdict, and what was run."""
    verdicts = {replica.verdict for replica in account.replicas}
    for verdict in sorted(verdicts, key=lambda verdict: verdict.value):
        of = [replica for replica in account.replicas if replica.verdict is verdict]
        who = f"  replica {ranges([replica.ordinal for replica in of])}" if len(verdicts) > 1 else ""
        yield Text.assemble((_verdict(of), "bold"), who)
    yield plain(" ".join(account.command))
    slow = slowest(account)
    if slow is not None:
        many = f", {counted(len(account.replicas), 'replica')}" if len(account.replicas) > 1 else ""
        state = {None: "still running", 0: "finished"}.get(account.exit_code, f"ended with exit code {account.exit_code}")
        pace = f"{duration(step_ms(slow))} per step (median {duration(typical_step_ms(slow))}), " if slow.steps else ""
        when = datetime.fromtimestamp(account.started_s).strftime("%Y-%m-%d %H:%M")
        yield plain(f"{pace}{counted(slow.steps, 'step')} in {duration(1000 * account.seconds)}{many} on {slow.hardware}, {state}, {when}")
    if places.base:
        yield plain(f"lines are below {places.base}", "dim")


def _verdict(replicas: Sequence[Replica]) -> str:
    """The verdict that these replicas share, with what speaks for it."""
    verdict = replicas[0].verdict
    if verdict is Verdict.NOTHING:
        return Verdict.NOTHING.value
    part = percent(sum(map(verdict_share, replicas)) / len(replicas))
    return f"{verdict.value}: " + (f"the device works {part} of the time" if verdict is Verdict.DEVICE else f"{part} of the step")


def _findings(account: Account, places: Places) -> Iterator[RenderableType]:
    if not account.findings:
        yield Text("\nNo problem found.", "green")
        return
    yield Text(f"\n{counted(len(account.findings), 'finding')}", "bold")
    for place, finding in enumerate(account.findings, 1):
        yield _finding(place, finding, places)


def _finding(place: int, finding: Finding, places: Places) -> RenderableType:
    """A finding in three parts: where, what, and what to do."""
    where = Text.assemble((f"{place}. {finding.problem.value}", "bold red"))
    if finding.line:
        where.append_text(plain(f"  {places.shown(finding.line)}", "bold"))
    if finding.replica is not None:
        where.append(f"  replica {finding.replica}", "yellow")
    if finding.cost_ms:
        where.append(f"  cost {duration(finding.cost_ms)}", "dim")
    return Group(
        where,
        indented(plain(finding.text)),
        indented(plain(f"→ {finding.advice}", "green")),
    )


def _steps(account: Account) -> list[RenderableType]:
    """Render the phases of the step: below each other for one replica, side by side for several."""
    measured = [replica for replica in account.replicas if replica.measured_steps]
    phases = [phase for phase in Phase if any(phase_ms(replica, phase) for replica in measured)]
    if len(measured) > 1:
        return _side_by_side(measured, phases)
    rows: list[list[Cell]] = []
    for replica in measured:
        for phase in phases:
            part = share(phase_ms(replica, phase), step_ms(replica))
            rows.append([phase.value, milliseconds(phase_ms(replica, phase)), percent(part), _bar(part, "cyan")])
        rows.append([Text("step", "bold"), Text(milliseconds(step_ms(replica)), "bold"), "", ""])
        rows.append(
            [
                "device at work",
                milliseconds(device_step_ms(replica)),
                percent(busy(replica)),
                _bar(busy(replica), "green"),
            ]
        )
    return section("Where the step goes", "", ["phase", ">ms/step", ">share", ""], rows)


def _bar(part: float, style: str) -> Text:
    return Text("█" * round(_BAR * min(part, 1.0)), style)


def _side_by_side(replicas: list[Replica], phases: list[Phase]) -> list[RenderableType]:
    """A column for each replica, in milliseconds per step; work that takes far longer than with the others is marked."""
    slow = sorted(replicas, key=own_ms, reverse=True)[:_COLUMNS]
    shown = sorted(slow, key=lambda replica: replica.ordinal)
    cut = len(replicas) > _COLUMNS
    note = f"ms per step of the {_COLUMNS} slowest of {len(replicas)} replicas" if cut else "ms per step of each replica"

    def row(name: str, figure: Callable[[Replica], float], text: Callable[[float], str] = milliseconds, work: bool = False) -> list[Cell]:
        usual = statistics.median(map(figure, replicas))
        marks = [work and figure(replica) - usual > _MARKED * own_ms(replica) for replica in shown]
        cells = [Text(text(figure(replica)), "bold yellow" if mark else "") for replica, mark in zip(shown, marks, strict=True)]
        return [name, *cells, *([text(usual)] if cut else [])]

    rows = [row(phase.value, partial(phase_ms, phase=phase), work=phase is not Phase.WAITING) for phase in phases]
    rows += [row("step", step_ms), row("device at work", busy, percent)]
    columns = ["replica", *(f">{replica.ordinal}" for replica in shown), *([">median"] if cut else [])]
    return section("Where the step goes", note, columns, rows)


def _environment(account: Account) -> list[RenderableType]:
    """One paragraph of what a bug report needs."""
    environment = account.environment
    versions = [f"Python {environment.python}", *(f"{name} {version}" for name, version in environment.versions.items())]
    settings = [f"{name}={value}" for name, value in environment.settings.items()]
    return [plain("\n" + "; ".join(filter(None, [", ".join(versions), environment.platform, " ".join(settings)])), "dim")]
