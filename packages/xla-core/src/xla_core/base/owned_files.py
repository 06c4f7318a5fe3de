"""Read files that nobody but this user, or root, can have written: for compiled programs, which are code."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_owned(path: str | os.PathLike[str], *, follow_links: bool) -> BinaryIO:
    """Open a regular file for reading, without waiting for a pipe.

    follow_links: also where the path is a link. Raises PermissionError for what others own or may write, OSError.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow_links else os.O_NOFOLLOW)
    handle = os.open(path, flags)
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise PermissionError("it is not a regular file")
        check_owner(status, "it")
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def check_owned_folder(path: Path) -> None:
    """Raise PermissionError for a folder that others own or may write to; OSError."""
    check_owner(path.stat(), "the folder")


def check_owner(status: os.stat_result, name: str) -> None:
    """Raise PermissionError for a file, called `name` in the message, that others than this user and root own, or may write to."""
    user = os.geteuid()
    if status.st_uid not in (user, 0):
        raise PermissionError(f"{name} belongs to user {status.st_uid}, not to this one ({user}) or to root; make a copy of your own")
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{name} is writable by others (mode {stat.S_IMODE(status.st_mode):o}); chmod go-w it")
