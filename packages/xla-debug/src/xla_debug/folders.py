"""Where running jobs keep their accounts: a folder for each, of this user."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

ACCOUNT_DIR = "XLA_DEBUG_ACCOUNT_DIR"


def folder_of(pid: int) -> Path:
    """The folder of the job that `xla-debug run` with this process id started."""
    return Path(tempfile.gettempdir()) / f"xla-debug-{os.getuid()}" / str(pid)


def keeping(folder: Path) -> dict[str, str]:
    """The environment that makes processes keep their accounts in `folder`."""
    return {ACCOUNT_DIR: str(folder)}
