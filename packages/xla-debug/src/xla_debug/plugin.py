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
from xla_debug.recording import opentelemetry_environment, trace_log


def offered() -> Mapping[str, Callable[..., Any]]:
    """User's name → function. Starts what the environment asks for."""
    tensors_file.install()  # first: what it is given are the programs, and not what others put around them
    metrics_saver.install()
    execution_analysis.install()
    trace_log.install()
    _start_recording()
    profiler: Any = xlac_profiler  # a module, not a function
    return {
        "torch_xla._XLAC.profiler": profiler,
        "torch_xla._XLAC._xla_metrics_report": metrics_report.metrics_report,
        "torch_xla._XLAC._short_xla_metrics_report": metrics_report.short_metrics_report,
    }


def _start_recording() -> None:
    recording, scalars = settings.RECORDING_DIR.get(), settings.TENSORBOARD_DIR.get()
    if recording is not None or scalars is not None:
        from xla_debug.recording.recorder import start_recording

        start_recording(None if recording is None else Path(recording), None if scalars is None else Path(scalars))
    if opentelemetry_environment.spans_wanted(recorded=recording is not None):
        from xla_debug.recording.opentelemetry_spans import start_spans

        start_spans()
