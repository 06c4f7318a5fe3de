"""Counters and metrics of the runtime (alias `met`)."""

from xla_debug.metrics.metrics_report import clear_all as clear_all
from xla_debug.metrics.metrics_report import clear_counters as clear_counters
from xla_debug.metrics.metrics_report import clear_metrics as clear_metrics
from xla_debug.metrics.metrics_report import counter_names as counter_names
from xla_debug.metrics.metrics_report import counter_value as counter_value
from xla_debug.metrics.metrics_report import executed_fallback_ops as executed_fallback_ops
from xla_debug.metrics.metrics_report import metric_data as metric_data
from xla_debug.metrics.metrics_report import metric_names as metric_names
from xla_debug.metrics.metrics_report import metrics_report as metrics_report
from xla_debug.metrics.metrics_report import short_metrics_report as short_metrics_report

__all__ = [name for name in dir() if not name.startswith("__")]
