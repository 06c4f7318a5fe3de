"""Files: opened only if they are regular files, and locked by one writer at a time."""

from __future__ import annotations

import errno
import os
import shutil
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from xla_serialization.core import files
from xla_serialization.errors import DamagedCheckpointError


def open_file(path: Path, folder: int | None = None) -> BinaryIO:
    """Open a regular file to read. folder: descriptor of an open folder, in which the file's name is looked up instead of at its path.

    Raises DamagedCheckpointError for a folder, a pipe or a device, OSError.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe is not waited for
    try:
        fd = os.open(path if folder is None else path.name, flags, dir_fd=folder)
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise DamagedCheckpointError(f"{path}: is no file")
    return open(fd, "rb")


@contextmanager
def locked(path: Path, wait: bool = False) -> Iterator[None]:
    """Lock a file or folder against other writers; the system unlocks it when the process dies. wait: until no other holds the lock.

    On a file system without locks nothing is locked. Raises BlockingIOError if another holds the lock, FileNotFoundError also if the path
    has been removed meanwhile, OSError.
    """
    with _opened_to_lock(path) as fd:
        try:
            files.lock(fd, wait=wait)
        except BlockingIOError as error:
            raise BlockingIOError(error.errno, "another program is saving there: let it end, or choose another path", str(path)) from None
        if not os.path.samestat(os.fstat(fd), os.stat(path)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        yield


@contextmanager
def rename_lock(folder: Path) -> Iterator[None]:
    """Wait for the lock of a folder, and hold it for a few renames. On a file system without locks nobody waits."""
    with _opened_to_lock(folder) as fd:
        files.lock(fd, wait=True)
        yield


def is_stale(path: Path) -> bool:
    """Whether a path exists and no writer has locked it, as far as can be seen."""
    try:
        with _opened_to_lock(path) as fd:
            return files.lock(fd)
    except (FileNotFoundError, PermissionError, BlockingIOError):
        return False


def remove_leftover(path: Path) -> None:
    """Remove a file or folder that an earlier save left. Warns where that fails: what was saved is safe."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        warnings.warn(f"{path}: of an earlier save, cannot be removed ({error.strerror}); the next save tries again", stacklevel=2)


@contextmanager
def _opened_to_lock(path: Path) -> Iterator[int]:
    """Open a file or folder for locking (files also for writing, as NFS demands), give its descriptor, then unlock and close it."""
    flags = os.O_CLOEXEC | os.O_NONBLOCK  # a pipe is not waited for
    fd = os.open(path, flags | (os.O_RDONLY if path.is_dir() else os.O_RDWR))
    try:
        yield fd
    finally:
        files.unlock(fd)
        os.close(fd)
