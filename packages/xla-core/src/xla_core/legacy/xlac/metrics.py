"""Counters and metrics. The package xla-debug makes text reports of them."""

from __future__ import annotations

from xla_core.base import metrics

_READ = "aten::_local_scalar_dense"  # a scalar was read: counted like a fallback, but no operator lacks a lowering


def _xla_increment_counter(name: str, value: int = 1) -> None:
    """Add `value` to a counter."""
    metrics.counter_add(name, value)


def _xla_counter_names() -> list[str]:
    """Names of all counters that are not zero."""
    return list(metrics.snapshot().counters)


def _xla_counter_value(name: str) -> int | None:
    """A counter; None while it is zero."""
    return metrics.counter(name) or None


def _xla_metric_names() -> list[str]:
    """Names of all metrics with samples."""
    return list(metrics.snapshot().metrics)


def _xla_metric_data(name: str) -> tuple[int, float, list[tuple[float, float]]] | None:
    """A metric's number of samples, their sum, and the newest samples as (seconds since the epoch, value); None without samples."""
    metric = metrics.metric(name)
    return None if metric is None else (metric.total_samples, metric.accumulator, list(metric.samples))


def _clear_xla_counters() -> None:
    """Restart every counter at zero."""
    metrics.clear(metrics=False)


def _clear_xla_metrics() -> None:
    """Forget all metrics."""
    metrics.clear(counters=False)


def _get_executed_fallback_ops() -> list[str]:
    """Full names of the operators that ran on the CPU because they have no lowering."""
    return [name for name in metrics.snapshot().counters if "::" in name and not name.startswith("xla::") and name != _READ]
