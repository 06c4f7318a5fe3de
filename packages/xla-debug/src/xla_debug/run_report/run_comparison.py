"""Compare runs by their reports: take the same measurements of each, and list the differences between two.

Fields are named as in the JSON files, whose names `verdicts` and `figures` are older than this code."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from xla_debug.run_report.aggregates import base_name, busy, phase_ms, typical_step_ms
from xla_debug.run_report.schema import Finding, Phase, Replica, RunReport


class MeasuredUnit(enum.Enum):
    """The unit of a measurement."""

    MS = "ms"
    BYTES = "bytes"
    COUNT = "count"
    SHARE = "share"


@dataclass(frozen=True, slots=True)
class MeasuredChange:
    """One measurement in two runs: the average over replicas, but for memory the largest."""

    name: str
    unit: MeasuredUnit
    before: float
    after: float

    @property
    def delta(self) -> float:
        return self.after - self.before

    @property
    def ratio(self) -> float | None:
        """The change as a share of the value before; None if that is 0."""
        return self.delta / self.before if self.before else None


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The measurements of one run, averaged over replicas.

    verdicts: the bottlenecks; step_ms: the median step; peak: bytes of the device that held most.
    """

    name: str
    verdicts: list[str]
    replicas: int
    steps: float
    step_ms: float
    phases_ms: dict[str, float]
    device: float
    compiles: float
    compile_ms: float
    reads_per_step: float
    blocked_ms_per_step: float
    fallbacks_per_step: float
    moved_per_step: float
    peak: int
    findings: int


@dataclass(frozen=True, slots=True)
class RunComparison:
    """The differences between two runs.

    figures: what is measured besides phases. environment: name → value in both, where they differ; None where it is not set.
    """

    before: RunSummary
    after: RunSummary
    phases: list[MeasuredChange] = field(default_factory=list)
    """Milliseconds per step by phase, the largest change first."""
    figures: list[MeasuredChange] = field(default_factory=list)
    new: list[Finding] = field(default_factory=list)
    gone: list[Finding] = field(default_factory=list)
    environment: dict[str, tuple[str | None, str | None]] = field(default_factory=dict)

    @property
    def slower(self) -> float | None:
        """By how much the median step got slower, as a share; None if one of the runs has no steps."""
        return self.after.step_ms / self.before.step_ms - 1 if self.before.step_ms and self.after.step_ms else None


def summarize(name: str, report: RunReport) -> RunSummary:
    """Take the measurements of a run that is called `name`."""
    replicas = report.replicas

    def mean(measure: Callable[[Replica], float]) -> float:
        return fmean(map(measure, replicas)) if replicas else 0.0

    def per_step(measure: Callable[[Replica], float]) -> float:
        return mean(lambda replica: measure(replica) / max(replica.steps, 1))

    phases = {phase.value: fmean(phase_ms(replica, phase) for replica in replicas) for phase in Phase if replicas}
    return RunSummary(
        name=name,
        verdicts=sorted({replica.verdict.value for replica in replicas}),
        replicas=len(replicas),
        steps=mean(lambda replica: replica.steps),
        step_ms=mean(lambda replica: typical_step_ms(replica) if replica.steps else 0.0),
        phases_ms={phase: ms for phase, ms in phases.items() if ms},
        device=mean(busy),
        compiles=mean(lambda replica: len(replica.compiles)),
        compile_ms=mean(lambda replica: sum(row.ms for row in replica.compiles)),
        reads_per_step=per_step(_reads),
        blocked_ms_per_step=per_step(lambda replica: sum(row.blocked_ms for row in replica.syncs)),
        fallbacks_per_step=per_step(lambda replica: sum(row.count for row in replica.fallbacks)),
        moved_per_step=per_step(lambda replica: sum(row.nbytes for row in replica.transfers)),
        peak=max((device.peak for replica in replicas for device in replica.memory.devices), default=0),
        findings=len(report.findings),
    )


def _reads(replica: Replica) -> int:
    """Count the copies to the host that the program asked for, without those for operators on the CPU."""
    on_cpu = {row.line for row in replica.fallbacks}
    return sum(row.count for row in replica.transfers if row.direction == "from_device" and row.line not in on_cpu)


def compare_runs(before: tuple[str, RunReport], after: tuple[str, RunReport]) -> RunComparison:
    """Compare two runs, each with its name."""
    old, new = summarize(*before), summarize(*after)
    names = [phase.value for phase in Phase if phase.value in old.phases_ms or phase.value in new.phases_ms]
    phases = [MeasuredChange(name, MeasuredUnit.MS, old.phases_ms.get(name, 0.0), new.phases_ms.get(name, 0.0)) for name in names]
    return RunComparison(
        before=old,
        after=new,
        phases=sorted(phases, key=lambda measure: -abs(measure.delta)),
        figures=[measure for measure in _measurements(old, new) if measure.before or measure.after],
        new=_unmatched(after[1].findings, before[1].findings),
        gone=_unmatched(before[1].findings, after[1].findings),
        environment=_environment(before[1], after[1]),
    )


def _measurements(old: RunSummary, new: RunSummary) -> list[MeasuredChange]:
    return [
        MeasuredChange("steps", MeasuredUnit.COUNT, old.steps, new.steps),
        MeasuredChange("median step", MeasuredUnit.MS, old.step_ms, new.step_ms),
        MeasuredChange("mean step", MeasuredUnit.MS, sum(old.phases_ms.values()), sum(new.phases_ms.values())),
        MeasuredChange("device at work", MeasuredUnit.SHARE, old.device, new.device),
        MeasuredChange("compiles", MeasuredUnit.COUNT, old.compiles, new.compiles),
        MeasuredChange("compiling, in all", MeasuredUnit.MS, old.compile_ms, new.compile_ms),
        MeasuredChange("reads per step", MeasuredUnit.COUNT, old.reads_per_step, new.reads_per_step),
        MeasuredChange("blocked per step", MeasuredUnit.MS, old.blocked_ms_per_step, new.blocked_ms_per_step),
        MeasuredChange("CPU calls per step", MeasuredUnit.COUNT, old.fallbacks_per_step, new.fallbacks_per_step),
        MeasuredChange("moved per step", MeasuredUnit.BYTES, old.moved_per_step, new.moved_per_step),
        MeasuredChange("peak memory", MeasuredUnit.BYTES, old.peak, new.peak),
        MeasuredChange("findings", MeasuredUnit.COUNT, old.findings, new.findings),
    ]


def _unmatched(findings: Sequence[Finding], others: Sequence[Finding]) -> list[Finding]:
    """List the findings that `others` lacks, at the same line or at another line of the same file, since lines move."""
    unmatched, unpaired = list(findings), list(others)
    # First pair those at the same line, before findings that have moved.
    for key in (lambda finding: (finding.problem, finding.line), lambda finding: (finding.problem, base_name(finding.line))):
        for other in list(unpaired):
            match = next((finding for finding in unmatched if key(finding) == key(other)), None)
            if match is not None:
                unmatched.remove(match)
                unpaired.remove(other)
    return unmatched


def _environment(before: RunReport, after: RunReport) -> dict[str, tuple[str | None, str | None]]:
    """List the differences between the environments of the runs."""
    old, new = _environment_of(before), _environment_of(after)
    return {name: (old.get(name), new.get(name)) for name in old | new if old.get(name) != new.get(name)}


def _environment_of(report: RunReport) -> dict[str, str]:
    environment = report.environment
    hardware = ", ".join(sorted({replica.hardware for replica in report.replicas}))
    basics = {"command": " ".join(report.command), "hardware": hardware, "replicas": str(len(report.replicas))}
    return basics | {"Python": environment.python, "platform": environment.platform} | environment.versions | environment.settings


def comparison_json(comparison: RunComparison) -> bytes:
    """Write a comparison as JSON: version 1, with the fields of the dataclass."""
    return _json({"format": "xla-debug comparison", "version": 1, "slower": comparison.slower, **dataclasses.asdict(comparison)})


def runs_json(runs: Sequence[RunSummary]) -> bytes:
    """Write the measurements of several runs as JSON: version 1, with the fields of the dataclass."""
    return _json({"format": "xla-debug runs", "version": 1, "runs": [dataclasses.asdict(run) for run in runs]})


def _json(data: dict[str, Any]) -> bytes:
    return json.dumps(data, default=lambda member: member.value, separators=(",", ":")).encode()
