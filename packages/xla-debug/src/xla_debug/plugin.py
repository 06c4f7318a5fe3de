"""The plugin of this package; the core asks for it once, when a device is first needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from xla_debug import settings
from xla_debug.analysis import execution_analysis
from xla_debug.graphs import tensors_file
from xla_debug.metrics import metrics_report, metrics_saver
from xla_debug.profiling import xlac_profiler
from xla_debug.recording import trace_log


def offered() -> Mapping[str, Callable[..., Any]]:
    """User's name → function. Starts what the environment asks for."""
    tensors_file.install()  # first: what it is given are the programs, and not what others put around them
    metrics_saver.install()
    execution_analysis.install()
    trace_log.install()
    folder = settings.RECORDING_DIR.get()
    if folder is not None:
        from xla_debug.recording.recorder import start_recording

        start_recording(Path(folder))
    profiler: Any = xlac_profiler  # a module, not a function
    return {
        "torch_xla._XLAC.profiler": profiler,
        "torch_xla._XLAC._xla_metrics_report": metrics_report.metrics_report,
        "torch_xla._XLAC._short_xla_metrics_report": metrics_report.short_metrics_report,
    }
