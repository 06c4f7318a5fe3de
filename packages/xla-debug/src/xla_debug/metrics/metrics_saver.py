"""The metrics report after each step, in a file."""

from __future__ import annotations

import functools
import os
import threading

from xla_debug import replica_output
from xla_debug.core import events, job
from xla_debug.metrics.metrics_report import metrics_report
from xla_debug.settings import METRICS_FILE


class _ReportCount(threading.local):
    """The number of reports that this thread has saved."""

    count = 0


_report_count = _ReportCount()


def save_metrics(metrics_file: str | os.PathLike[str] | None = None) -> None:
    """Append the report to a file, with the number of reports that this thread saved before; of several replicas each has its own file.

    metrics_file: a path, or STDERR or STDOUT; None: what XLA_METRICS_FILE says; nothing if it is unset.
    Raises OSError if the file cannot be written.
    """
    target = METRICS_FILE.get() if metrics_file is None else os.fspath(metrics_file)
    if target is None:
        return
    replica_output.append(replica_output.target_of_replica(target), f"[MetricsData; step={_report_count.count}]\n{metrics_report()}\n")
    _report_count.count += 1


@functools.cache
def install() -> None:
    """Let each step sync save the report on the local master."""
    events.subscribe(_synced, events.SyncEvent)


def _synced(event: events.SyncEvent) -> None:
    if event.kind is events.SyncKind.STEP and job.local_ordinal() == 0:
        save_metrics()
