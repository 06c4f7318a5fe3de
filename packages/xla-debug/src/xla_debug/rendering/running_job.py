"""Show a running job from the recordings in its folder, of which each process writes one."""

from __future__ import annotations

import os
import platform
import re
import time
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from xla_debug import recording_folder
from xla_debug.rendering.tables import plain
from xla_debug.rendering.terminal import overview
from xla_debug.run_report import files
from xla_debug.run_report.errors import RunReportFileError
from xla_debug.run_report.merging import merge
from xla_debug.run_report.schema import Replica, RunReport

_EVERY = 1.0
"""Seconds between refreshes; jobs write every other second."""
_PID = re.compile("[0-9]{1,10}")


def folder_of(target: str) -> Path:
    """Find the folder of a job: `target` itself, or the folder of the process with this id. Raises RunReportFileError if there is none."""
    if os.path.isdir(target):
        return Path(target)
    if not _PID.fullmatch(target):
        raise RunReportFileError(f"{target}: there is no such folder; give the folder of a job's recordings, or the number of its process")
    folder = recording_folder.folder_of(int(target))  # if it is `xla-debug run`; else it may be a process that that started
    folder = next((job for job in folder.parent.glob("*") if recording_folder.file_of(job, int(target)).exists()), folder)
    if not os.path.isdir(folder):
        raise RunReportFileError(f"process {target} is not recorded ({folder} is missing); start it with `xla-debug run SCRIPT`")
    if not _is_running(int(target)) and report_of(folder) is None:
        raise RunReportFileError(
            f"process {target} has ended and left no recording in {folder}; start it again with `xla-debug run SCRIPT`"
        )
    return folder


def report_of(folder: Path) -> RunReport | None:
    """Read the run report of a job up to now; None before its processes have written any. Raises RunReportFileError."""
    reports = [report for path in recording_folder.files_in(folder) if (report := _read(path))]
    return merge(reports) if reports else None


def _read(path: Path) -> RunReport | None:
    """Read the run report of one process; None if the file has just been removed."""
    try:
        return files.read(path)
    except RunReportFileError:
        if path.exists():
            raise
        return None


def has_ended(report: RunReport) -> bool:
    """Whether all processes have finished, or ended without a last recording."""
    return all(replica.finished or _has_exited(replica) for replica in report.replicas)


def _has_exited(replica: Replica) -> bool:
    """Whether a process of this host has ended; those of other hosts cannot be asked."""
    return replica.host == platform.node() and not _is_running(replica.pid)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # it is another user's process
    return True


def show_once(folder: Path, console: Console) -> None:
    """Print the present state of a job. Raises RunReportFileError if it has not written yet."""
    report = report_of(folder)
    if report is None:
        raise RunReportFileError(f"{folder}: nothing is recorded yet; look again when the job has run for a second")
    console.print(_view(folder, report))


def follow(folder: Path, console: Console) -> None:
    """Show a job until it has ended, or its recordings are removed. Raises RunReportFileError."""
    with Live(Text(f"waiting for the first recording in {folder}"), console=console, auto_refresh=False) as live:
        was_recorded = False
        while True:
            report = report_of(folder)
            if report is not None:
                was_recorded = True
                live.update(_view(folder, report), refresh=True)
            if was_recorded and (report is None or has_ended(report)):
                return
            time.sleep(_EVERY)


def _view(folder: Path, report: RunReport) -> RenderableType:
    lost = [replica for replica in report.replicas if not replica.finished and _has_exited(replica)]
    messages = [f"process {replica.pid} of replica {replica.ordinal} ended without a last recording: it was killed" for replica in lost]
    return Group(overview(report), plain(f"\nrecorded in {folder.absolute()}", "dim"), *(Text(message, "bold red") for message in messages))
