"""Counters and metrics."""

from __future__ import annotations

from xla_core import metrics


def _xla_increment_counter(name: str, value: int) -> None:
    metrics.counter_add(name, value)
