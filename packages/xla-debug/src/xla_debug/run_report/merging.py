"""Merge the run reports of a job's processes, and find stragglers among them."""

from __future__ import annotations

import dataclasses
import re
import statistics
from collections.abc import Sequence

from xla_debug.run_report.aggregates import RowGroup, group_rows, phase_ms, work_ms
from xla_debug.run_report.schema import FORMAT, VERSION, Finding, Phase, Problem, Replica, RunReport

_TOO_MUCH = 1.2
"""Multiple of the others' work per step, above which a replica is a straggler."""
_STEPS = 20
"""Steps of a replica, at least, to look for stragglers: the first steps compile."""
_NUMBER = re.compile(r"\d+(\.\d+)?")

_ADVICE = {
    Phase.TRACING: "see that it records no more than the others, and that its host has as fast a processor that nothing else uses",
    Phase.LOOKUP: "see that its host has as fast a processor as the others', and that nothing else uses it",
    Phase.COMPILE: "give all replicas the same shapes, and share the cache of compiled programs between them",
    Phase.TRANSFER: "see that its batches are no larger than the others', and move its copies out of the step",
    Phase.FALLBACK: "see why operators run on the CPU there, and on the other replicas not as long",
    Phase.LOADER: "see that its share of the data is no larger and its disk no slower, or give its loader more workers",
    Phase.PYTHON: "move what only this replica does, such as logging and checkpoints, out of the step",
}


def merge(reports: Sequence[RunReport]) -> RunReport:
    """Merge the run reports of all processes into one: replicas by ordinal; findings that all share appear once.

    Of two processes with the same ordinal the later one counts, since it replaced the other. Raises ValueError for no reports.
    """
    if not reports:
        raise ValueError("there is nothing to merge: give at least one run report")
    newest: dict[int, Replica] = {}
    for replica in sorted((peer for report in reports for peer in report.replicas), key=lambda peer: (peer.ordinal, peer.started_s)):
        newest[replica.ordinal] = replica
    replicas = list(newest.values())
    first = min(reports, key=lambda report: min((replica.ordinal for replica in report.replicas), default=0))
    start = min(report.started_s for report in reports)
    codes = [report.exit_code for report in reports]
    return RunReport(
        format=FORMAT,
        version=VERSION,
        command=first.command,
        started_s=start,
        seconds=max(report.started_s + report.seconds for report in reports) - start,
        # None as long as one process runs; else the first exit code that is not 0.
        exit_code=None if None in codes else next(filter(None, codes), 0),
        environment=first.environment,
        replicas=replicas,
        findings=sorted(_stragglers(replicas) + _shared(replicas), key=lambda finding: -finding.cost_ms),
    )


def _shared(replicas: list[Replica]) -> list[Finding]:
    """Collect the replicas' findings. One that all have becomes one finding, with the highest cost, since replicas work in parallel."""
    findings = []
    for group in group_rows(replicas, lambda replica: [_with_replica(replica, finding) for finding in replica.findings], _finding_key):
        if len(group.ordinals) == len(replicas):
            findings.append(_costliest(group))
        else:
            findings += group.rows
    return findings


def _with_replica(replica: Replica, finding: Finding) -> Finding:
    return dataclasses.replace(finding, replica=replica.ordinal)


def _finding_key(finding: Finding) -> tuple[object, ...]:
    """Make the key by which findings of different replicas are equal: problem, line and text without its numbers."""
    return finding.problem, finding.line, _NUMBER.sub("#", finding.text)


def _costliest(group: RowGroup[Finding]) -> Finding:
    return dataclasses.replace(max(group.rows, key=lambda finding: finding.cost_ms), replica=None)


def _stragglers(replicas: list[Replica]) -> list[Finding]:
    measured = [replica for replica in replicas if replica.steps >= _STEPS]
    findings = []
    for replica in measured:
        others = [other for other in measured if other is not replica]
        if others and work_ms(replica) > _TOO_MUCH * statistics.median(map(work_ms, others)):
            findings.append(_straggler(replica, others))
    return findings


def _straggler(replica: Replica, others: list[Replica]) -> Finding:
    """Make the finding of a straggler, with the phase that takes it longer than the others, and the line."""
    others_ms = statistics.median(map(work_ms, others))
    excess_ms = work_ms(replica) - others_ms
    excess = {phase: phase_ms(replica, phase) - statistics.median(phase_ms(other, phase) for other in others) for phase in _ADVICE}
    phase = max(excess, key=lambda candidate: excess[candidate])
    hottest = max((line for line in replica.hot_lines if line.phase == phase.value), key=lambda line: line.ms, default=None)
    text = (
        f"replica {replica.ordinal} on {replica.host} works {work_ms(replica):.1f} ms per step, the others {others_ms:.1f} ms "
        f"and wait for it: {phase.value} alone takes {excess[phase]:.1f} ms more"
    )
    return Finding(Problem.STRAGGLER, hottest.line if hottest else None, text, _ADVICE[phase], excess_ms * replica.steps, replica.ordinal)
