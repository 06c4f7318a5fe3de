"""Metrics reports as numbers, compared with those of earlier runs."""

from xla_debug.metrics.metrics_comparison import compare_metrics, get_data_points_from_metrics_reports, parse_metrics_report

__all__ = ["compare_metrics", "get_data_points_from_metrics_reports", "parse_metrics_report"]
