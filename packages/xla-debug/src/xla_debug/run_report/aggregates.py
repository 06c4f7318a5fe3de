"""Aggregates of a run report: milliseconds per step, shares, rows grouped over replicas."""

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
    """The median step, in milliseconds: one that compiles among many does not count. newest: only so many of the last ones."""
    steps = replica.timeline[-newest:] if newest else replica.timeline
    return statistics.median(sum(step.ms.values()) for step in steps) if steps else step_ms(replica)


def busy(replica: Replica) -> float:
    """The share of the steps' time in which the device was at work, 0 to 1. A host that does not wait may be ahead of its device."""
    return min(share(replica.device_ms, sum(replica.phases_ms.values())), 1.0)


def share(part: float, whole: float) -> float:
    """Part of a whole, 0 to 1; 0 of nothing."""
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
    """The file of a `file:line`, without folders and number."""
    return (line or "").rpartition("/")[2].rpartition(":")[0]


@dataclass(frozen=True, slots=True)
class RowGroup(Generic[T]):
    """Rows of several replicas that say the same, and the replicas' ordinals."""

    rows: list[T]
    ordinals: list[int]

    @property
    def first(self) -> T:
        return self.rows[0]

    def mean(self, measure: Callable[[T], float]) -> float:
        """The mean over these replicas of what `measure` gives, summed over rows."""
        return sum(map(measure, self.rows)) / len(self.ordinals)


def group_rows(replicas: Iterable[Replica], rows: Callable[[Replica], Sequence[T]], key: Callable[[T], Hashable]) -> list[RowGroup[T]]:
    """The rows of all replicas, those with the same key together, in the order in which they are met."""
    groups: dict[Hashable, RowGroup[T]] = {}
    for replica in replicas:
        for row in rows(replica):
            group = groups.setdefault(key(row), RowGroup([], []))
            group.rows.append(row)
            if replica.ordinal not in group.ordinals:
                group.ordinals.append(replica.ordinal)
    return list(groups.values())
