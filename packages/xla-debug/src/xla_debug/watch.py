"""A running job, seen through the accounts that its processes write: one `account.<pid>.json` each, in one folder."""

from __future__ import annotations

import os
import platform
import re
import time
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from xla_debug import folders
from xla_debug.account import files
from xla_debug.account.merging import merge
from xla_debug.account.schema import Account, Replica
from xla_debug.errors import AccountFileError
from xla_debug.render import overview

_EVERY = 1.0
"""Seconds between looks; jobs write every other second."""
_PID = re.compile("[0-9]{1,10}")


def folder_of(target: str) -> Path:
    """The folder of a job: `target` itself, or that of the process with this number. Raises AccountFileError if there is none."""
    if os.path.isdir(target):
        return Path(target)
    if not _PID.fullmatch(target):
        raise AccountFileError(f"{target}: there is no such folder; give the folder of a job's accounts, or the number of its process")
    folder = folders.folder_of(int(target))  # of `xla-debug run`, or else of a process that it started
    folder = next((path.parent for path in folder.parent.glob(f"*/account.{target}.json")), folder)
    if not os.path.isdir(folder):
        raise AccountFileError(f"process {target} keeps no account ({folder} is missing); start it with `xla-debug run SCRIPT`")
    if not _runs(int(target)) and account_of(folder) is None:
        raise AccountFileError(f"process {target} has ended and left no account in {folder}; start it again with `xla-debug run SCRIPT`")
    return folder


def account_of(folder: Path) -> Account | None:
    """The account of a job as it is now; None before its processes have written any. Raises AccountFileError."""
    found = [account for path in sorted(folder.glob("account.*.json")) if (account := _read(path))]
    return merge(found) if found else None


def _read(path: Path) -> Account | None:
    """An account; None if its process has just taken it away."""
    try:
        return files.read(path)
    except AccountFileError:
        if path.exists():
            raise
        return None


def over(account: Account) -> bool:
    """Whether all processes have finished, or are gone without having said so."""
    return all(replica.finished or _gone(replica) for replica in account.replicas)


def _gone(replica: Replica) -> bool:
    """Whether a process of this host has ended; those of other hosts cannot be looked at."""
    return replica.host == platform.node() and not _runs(replica.pid)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True  # another user's
    return True


def once(folder: Path, console: Console) -> None:
    """Print how a job is now. Raises AccountFileError if it has not written yet."""
    account = account_of(folder)
    if account is None:
        raise AccountFileError(f"{folder}: there are no accounts yet; look again when the job has run for a second")
    console.print(_view(account))


def follow(folder: Path, console: Console) -> None:
    """Show a job until it is over, or has taken its accounts away. Raises AccountFileError."""
    with Live(Text(f"waiting for the first account in {folder}"), console=console, auto_refresh=False) as live:
        seen = False
        while True:
            account = account_of(folder)
            if account is not None:
                seen = True
                live.update(_view(account), refresh=True)
            if seen and (account is None or over(account)):
                return
            time.sleep(_EVERY)


def _view(account: Account) -> RenderableType:
    lost = [replica for replica in account.replicas if not replica.finished and _gone(replica)]
    ends = [f"process {replica.pid} of replica {replica.ordinal} ended without a last account: it was killed" for replica in lost]
    return Group(overview(account), *(Text(end, "bold red") for end in ends))
