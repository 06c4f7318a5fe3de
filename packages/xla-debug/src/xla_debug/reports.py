"""The reports that the core asks plugins for: this module is a `xla_core.abi.plugins.Reports`."""

from __future__ import annotations

from types import ModuleType

from xla_debug.metrics.metrics_report import metrics_report as metrics_report
from xla_debug.metrics.metrics_report import short_metrics_report as short_metrics_report


def profiler() -> ModuleType:
    """The module `torch_xla._XLAC.profiler`."""
    from xla_debug.profiling import xlac_profiler

    return xlac_profiler
