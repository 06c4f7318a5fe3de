"""The folders in which running jobs keep their accounts: one for each, of this user."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

ACCOUNT_DIR = "XLA_DEBUG_ACCOUNT_DIR"


def folder_of(pid: int) -> Path:
    """The folder of the job that `xla-debug run` with this process id started."""
    return Path(tempfile.gettempdir()) / f"xla-debug-{os.getuid()}" / str(pid)


def make_folder(pid: int) -> Path:
    """`folder_of(pid)`, made anew, for this user's eyes only. Raises PermissionError if another user has taken its place."""
    folder = folder_of(pid)
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    if folder.parent.stat().st_uid != os.getuid():
        raise PermissionError(f"{folder.parent} belongs to another user: set TMPDIR to a folder of your own")
    shutil.rmtree(folder, ignore_errors=True)  # of a process that was killed, long ago
    folder.mkdir(mode=0o700)
    return folder


def keeping(folder: Path) -> dict[str, str]:
    """The environment that makes processes keep their accounts in `folder`."""
    return {ACCOUNT_DIR: str(folder)}
