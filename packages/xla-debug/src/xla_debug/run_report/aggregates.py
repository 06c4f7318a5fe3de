"""Compute aggregates of a run report: milliseconds per step, shares, rows grouped over replicas."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from xla_debug.run_report.bottleneck import shares
from xla_debug.run_report.schema import Bottleneck, Phase, Replica, RunReport

T = TypeVar("T")


def phase_ms(replica: Replica, phase: Phase) -> float:
    """Milliseconds per step in one phase; 0 before the first step."""
    return replica.phases_ms.get(phase.value, 0.0) / max(replica.measured_steps, 1)


def step_ms(replica: Replica) -> float:
    """Milliseconds per step on average."""
    return sum(replica.phases_ms.values()) / max(replica.measured_steps, 1)


def work_ms(replica: Replica) -> float:
    """Milliseconds per step of the replica's own work: all but waiting."""
    return step_ms(replica) - phase_ms(replica, Phase.WAITING)


def device_step_ms(replica: Replica) -> float:
    """Milliseconds per step in which the device was at work."""
    return replica.device_ms / max(replica.measured_steps, 1)


def typical_step_ms(replica: Replica, newest: int | None = None) -> float:
    """The median step in milliseconds, on which a few steps that compile have no effect. newest: use only so many of the last steps."""
    steps = replica.timeline[-newest:] if newest else replica.timeline
    return statistics.median(sum(step.ms.values()) for step in steps) if steps else step_ms(replica)


def busy(replica: Replica) -> float:
    """The share of the steps' time in which the device was at work, 0 to 1, also if a host that does not wait is ahead of its device."""
    return min(share(replica.device_ms, sum(replica.phases_ms.values())), 1.0)


def share(part: float, whole: float) -> float:
    """The share of a part in a whole; 0 if the whole is 0."""
    return part / whole if whole else 0.0


def bottleneck_share(replica: Replica) -> float:
    """The share of the step that the bottleneck takes, 0 to 1."""
    phase_shares = shares(replica.phases_ms)
    if replica.verdict is Bottleneck.DEVICE:
        return max(busy(replica), phase_shares[Phase.WAITING])
    return next((part for phase, part in phase_shares.items() if replica.verdict.value == f"{phase.value}-bound"), 0.0)


def slowest(report: RunReport) -> Replica | None:
    """The replica that the others wait for: the one with the most work of its own per step."""
    return max(report.replicas, key=work_ms, default=None)


def base_name(line: str | None) -> str:
    """The file name in a `file:line`, without folders and line number."""
    return (line or "").rpartition("/")[2].rpartition(":")[0]


@dataclass(frozen=True, slots=True)
class RowGroup(Generic[T]):
    """Rows of several replicas with the same key, and the replicas' ordinals."""

    rows: list[T]
    ordinals: list[int]

    @property
    def first(self) -> T:
        return self.rows[0]

    def mean(self, measure: Callable[[T], float]) -> float:
        """Sum `measure` over the rows, and divide by the number of these replicas."""
        return sum(map(measure, self.rows)) / len(self.ordinals)


def group_rows(replicas: Iterable[Replica], rows: Callable[[Replica], Sequence[T]], key: Callable[[T], Hashable]) -> list[RowGroup[T]]:
    """Group the rows of all replicas by key, in order of first occurrence."""
    groups: dict[Hashable, RowGroup[T]] = {}
    for replica in replicas:
        for row in rows(replica):
            group = groups.setdefault(key(row), RowGroup([], []))
            group.rows.append(row)
            if replica.ordinal not in group.ordinals:
                group.ordinals.append(replica.ordinal)
    return list(groups.values())
