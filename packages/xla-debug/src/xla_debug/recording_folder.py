"""The folders in which the processes of running jobs keep their recordings: one for each job, of this user."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

# The variable and the files keep the name that they were given first.
RECORDING_DIR = "XLA_DEBUG_ACCOUNT_DIR"
OPENTELEMETRY = "XLA_DEBUG_OPENTELEMETRY"
TENSORBOARD_DIR = "XLA_DEBUG_TENSORBOARD_DIR"
_FILE = "account.{}.json"


def folder_of(pid: int) -> Path:
    """The folder of the job that `xla-debug run` with this process id started."""
    return Path(tempfile.gettempdir()) / f"xla-debug-{os.getuid()}" / str(pid)


def make_folder(pid: int) -> Path:
    """`folder_of(pid)`, made anew, for this user's eyes only. Raises PermissionError if another user owns it."""
    folder = folder_of(pid)
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    if folder.parent.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder.parent} belongs to another user: set TMPDIR to a folder of your own")
    shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed, long ago
    folder.mkdir(mode=0o700)
    return folder


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
