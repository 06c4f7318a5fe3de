"""The core's plugin of this package: it brings reports, and starts the recordings that the environment asks for before devices start."""

from __future__ import annotations

from pathlib import Path

from xla_core.abi.plugins import Plugin, Reports
from xla_debug import _compat, settings
from xla_debug.recording import opentelemetry_environment


def prepare() -> None:
    """Start the recordings that the environment asks for, and import nothing else."""
    if settings.SAVE_TENSORS_FILE.is_set():  # first, so that it gets the programs themselves, not other tools' wrappers of them
        from xla_debug.graphs import tensors_file

        tensors_file.install()
    if settings.METRICS_FILE.is_set():
        from xla_debug.metrics import metrics_saver

        metrics_saver.install()
    if settings.DEBUG.is_set() or settings.DEBUG_LEVEL.is_set():
        from xla_debug.analysis import execution_analysis

        execution_analysis.install()
    if _compat.trace_log_is_written():
        from xla_debug.recording import trace_log

        trace_log.install()
    _start_recording()


def _start_recording() -> None:
    recording, scalars = settings.RECORDING_DIR.get(), settings.TENSORBOARD_DIR.get()
    if recording is not None or scalars is not None:
        from xla_debug.recording.recorder import start_recording

        start_recording(None if recording is None else Path(recording), None if scalars is None else Path(scalars))
    if opentelemetry_environment.spans_wanted(recorded=recording is not None):
        from xla_debug.recording.opentelemetry_spans import start_spans

        start_spans()


def _reports() -> Reports:
    from xla_debug import reports

    return reports


PLUGIN = Plugin(prepare=prepare, reports=_reports)
