"""The folders in which the processes of running jobs keep their recordings: one for each job, of this user."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import time
from contextlib import suppress
from pathlib import Path

# The variable and the files keep the name that they were given first.
RECORDING_DIR = "XLA_DEBUG_ACCOUNT_DIR"
OPENTELEMETRY = "XLA_DEBUG_OPENTELEMETRY"
TENSORBOARD_DIR = "XLA_DEBUG_TENSORBOARD_DIR"
_FILE = "account.{}.json"
_LEFT_S = 86_400
"""How long nothing was written to the folder of a killed `xla-debug run`, before another one removes it: until then it can be watched."""
_locks: list[int] = []
"""Open as long as this process lives: the system unlocks them when it dies."""


def folder_of(pid: int) -> Path:
    """The folder of the job that `xla-debug run` with this process id started."""
    return Path(tempfile.gettempdir()) / f"xla-debug-{os.getuid()}" / str(pid)


def make_folder(pid: int) -> Path:
    """`folder_of(pid)`, made anew, for this user's eyes only, and locked by this process. Raises PermissionError if another user owns it.

    Folders of killed processes are removed a day after the last recording.
    """
    folder = folder_of(pid)
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    if folder.parent.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder.parent} belongs to another user: set TMPDIR to a folder of your own")
    shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed, long ago
    folder.mkdir(mode=0o700)
    _locks.append(_locked(folder))
    for other in folder.parent.iterdir():
        if other.name.isdecimal():
            with suppress(OSError):  # locked by its process, or gone
                _remove_if_left(other)
    return folder


def _locked(folder: Path) -> int:
    """The descriptor of a folder, locked. Raises BlockingIOError if a process has locked it, OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _remove_if_left(folder: Path) -> None:
    """Remove the folder of a process that has died, if nobody has written to it for long. Raises OSError, for one that is locked too."""
    if time.time() - folder.lstat().st_mtime <= _LEFT_S:  # each recording renames a file there
        return
    descriptor = _locked(folder)
    try:
        shutil.rmtree(folder)
    finally:
        os.close(descriptor)


def file_of(folder: Path, pid: int) -> Path:
    """The recording of one process: its run report up to now."""
    return folder / _FILE.format(pid)


def files_in(folder: Path) -> list[Path]:
    """The recordings of all processes of a job."""
    return sorted(folder.glob(_FILE.format("*")))


def recording_environment(folder: Path, opentelemetry: bool | None = None, tensorboard: Path | None = None) -> dict[str, str]:
    """The environment that makes processes keep their recordings in `folder`.

    opentelemetry: whether they make spans; None: as the environment says. tensorboard: the folder for scalars of each step.
    """
    spans = {} if opentelemetry is None else {OPENTELEMETRY: str(int(opentelemetry))}
    scalars = {} if tensorboard is None else {TENSORBOARD_DIR: str(tensorboard.absolute())}
    return {RECORDING_DIR: str(folder), **spans, **scalars}
