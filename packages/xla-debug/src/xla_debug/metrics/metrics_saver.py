"""Append the metrics report to a file after each step."""

from __future__ import annotations

import functools
import os
import threading

from xla_debug import replica_output
from xla_debug.core import budget, events, job
from xla_debug.metrics.metrics_report import metrics_report
from xla_debug.settings import METRICS_FILE


class _ReportCount(threading.local):
    """The number of reports that this thread has saved."""

    count = 0


_report_count = _ReportCount()


@budget()
def save_metrics(metrics_file: str | os.PathLike[str] | None = None) -> None:
    """Append the report to a file, with the number of reports that this thread saved before; each of several replicas has its own file.

    metrics_file: a path, or STDERR or STDOUT; None: what XLA_METRICS_FILE says, or do nothing if it is unset.
    Raises OSError if the file cannot be written.
    """
    target = METRICS_FILE.get() if metrics_file is None else os.fspath(metrics_file)
    if target is None:
        return
    replica_output.append(replica_output.target_of_replica(target), f"[MetricsData; step={_report_count.count}]\n{metrics_report()}\n")
    _report_count.count += 1


@functools.cache
def install() -> None:
    """Save the report at each step sync, on each host's master."""
    events.subscribe(_synced, events.SyncEvent)


def _synced(event: events.SyncEvent) -> None:
    if event.kind is events.SyncKind.STEP and job.local_ordinal() == 0:
        save_metrics()
