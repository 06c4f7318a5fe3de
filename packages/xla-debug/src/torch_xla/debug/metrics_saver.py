"""Metrics reports in a file."""

from xla_debug.metrics.metrics_saver import save_metrics

__all__ = ["save_metrics"]
