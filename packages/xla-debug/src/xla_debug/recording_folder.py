"""The folders where the processes of running jobs keep their recordings: one for each of this user's jobs."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

# The variable and the files keep their first name, `account`, for compatibility.
RECORDING_DIR = "XLA_DEBUG_ACCOUNT_DIR"
OPENTELEMETRY = "XLA_DEBUG_OPENTELEMETRY"
TENSORBOARD_DIR = "XLA_DEBUG_TENSORBOARD_DIR"
_FILE = "account.{}.json"
_LEFT_S = 86_400
"""Seconds after the last write to the folder of a killed `xla-debug run` before another run removes it; until then it can be watched."""
_locks: list[int] = []
"""Descriptors of locked folders, kept open as long as this process lives: the system unlocks them when it dies."""


def folder_of(pid: int) -> Path:
    """The path for the recordings of the job that `xla-debug run` with this process id started."""
    return Path(tempfile.gettempdir()) / f"xla-debug-{os.getuid()}" / str(pid)


def make_folder(pid: int) -> Path:
    """Make `folder_of(pid)` anew, readable by this user only, and lock it. Raises PermissionError if another user owns its parent.

    Folders of killed processes are removed a day after the last recording.
    """
    folder = folder_of(pid)
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    if folder.parent.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder.parent} belongs to another user: set TMPDIR to a folder of your own")
    shutil.rmtree(folder, ignore_errors=True)  # left by a killed process that had the same id
    folder.mkdir(mode=0o700)
    _locks.append(_locked(folder))
    for other in folder.parent.iterdir():
        if other.name.isdecimal():
            with suppress(OSError):  # its process runs and has locked it, or it is gone
                _remove_if_left(other)
    return folder


def _locked(folder: Path) -> int:
    """Lock a folder and return its descriptor. Raises BlockingIOError if a process has locked it, OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _remove_if_left(folder: Path) -> None:
    """Remove the folder of a dead process if nothing was written to it for long. Raises OSError, also for a locked folder."""
    if time.time() - folder.lstat().st_mtime <= _LEFT_S:  # each recording renames a file there
        return
    descriptor = _locked(folder)
    try:
        shutil.rmtree(folder)
    finally:
        os.close(descriptor)


def file_of(folder: Path, pid: int) -> Path:
    """The path of one process's recording, which is its run report up to now."""
    return folder / _FILE.format(pid)


def files_in(folder: Path) -> list[Path]:
    """The paths of the recordings of all processes of a job."""
    return sorted(folder.glob(_FILE.format("*")))


def recording_environment(folder: Path, opentelemetry: bool | None = None, tensorboard: Path | None = None) -> dict[str, str]:
    """Make the environment variables with which processes keep their recordings in `folder`.

    opentelemetry: whether they make spans; None: as their environment says. tensorboard: the folder for scalars of each step.
    """
    spans = {} if opentelemetry is None else {OPENTELEMETRY: str(int(opentelemetry))}
    scalars = {} if tensorboard is None else {TENSORBOARD_DIR: str(tensorboard.absolute())}
    return {RECORDING_DIR: str(folder), **spans, **scalars}
