"""Files: opened only if they are files, made to last, and held by one writer at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from xla_serialization.errors import DamagedCheckpointError

_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL})
_NO_FOLDER_SYNC = frozenset({errno.EBADF, errno.EINVAL})
"""What file systems say that synchronise no folders."""


def open_file(path: Path) -> BinaryIO:
    """To read. Raises DamagedCheckpointError for a folder, a pipe or a device, OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)  # a pipe is not waited for
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise DamagedCheckpointError(f"{path}: is no file")
    return open(fd, "rb")


def sync_file(path: Path) -> None:
    """Make a file's contents last. Raises OSError, with its name."""
    _sync(path, os.O_RDONLY)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder last, where the file system can. Raises OSError, with its name."""
    try:
        _sync(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise


def _sync(path: Path, flags: int) -> None:
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    except OSError as error:
        error.filename = str(path)
        raise
    finally:
        os.close(fd)


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold a file or folder against other writers; the system lets go of it when the process dies.

    Where the file system knows no locks it is not held. Raises BlockingIOError if another holds it, OSError.
    """
    fd = _lockable(path)
    try:
        try:
            _lock(fd)
        except BlockingIOError as error:
            raise BlockingIOError(error.errno, "another program is saving there: let it end, or choose another path", str(path)) from None
        yield
    finally:
        _let_go(fd)


@contextmanager
def in_turn(folder: Path) -> Iterator[None]:
    """Wait until no other holds a folder, and hold it: for a few renamings. Where the file system knows no locks nobody waits."""
    fd = _lockable(folder)
    try:
        _lock(fd, wait=True)
        yield
    finally:
        _let_go(fd)


def abandoned(path: Path) -> bool:
    """Whether a file is there that no writer holds, as far as can be told."""
    try:
        fd = _lockable(path)
    except (FileNotFoundError, PermissionError):
        return False
    try:
        return _lock(fd)
    except BlockingIOError:
        return False
    finally:
        _let_go(fd)


def _lockable(path: Path) -> int:
    """A file or folder, open so that NFS lets it be locked: files to write, too."""
    flags = os.O_CLOEXEC | os.O_NONBLOCK  # a pipe is not waited for
    return os.open(path, flags | (os.O_RDONLY if path.is_dir() else os.O_RDWR))


def _let_go(fd: int) -> None:
    with suppress(OSError):  # of systems without locks
        fcntl.flock(fd, fcntl.LOCK_UN)  # a process forked meanwhile has the descriptor too
    os.close(fd)


def _lock(fd: int, wait: bool = False) -> bool:
    """Whether the file is locked now; False where the file system knows no locks. Raises BlockingIOError if another holds it, or waits."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return False
        raise
    return True
