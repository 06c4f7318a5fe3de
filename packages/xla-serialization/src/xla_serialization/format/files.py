"""Files: opened only if they are regular files, and locked by one writer at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from xla_serialization.errors import DamagedCheckpointError

_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL})


def open_file(path: Path, folder: int | None = None) -> BinaryIO:
    """To read; where a descriptor of its folder is given, the file of that name there.

    Raises DamagedCheckpointError for a folder, a pipe or a device, OSError.
    """
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe is not waited for
    fd = os.open(path, flags) if folder is None else os.open(path.name, flags, dir_fd=folder)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise DamagedCheckpointError(f"{path}: is no file")
    return open(fd, "rb")


@contextmanager
def locked(path: Path, wait: bool = False) -> Iterator[None]:
    """Lock a file or folder against other writers; the system unlocks it when the process dies. wait: until no other has locked it.

    Where the file system knows no locks it is not locked. Raises BlockingIOError if another has, FileNotFoundError also if it has
    been removed meanwhile, OSError.
    """
    fd = _open_to_lock(path)
    try:
        try:
            _lock(fd, wait)
        except BlockingIOError as error:
            raise BlockingIOError(error.errno, "another program is saving there: let it end, or choose another path", str(path)) from None
        if not os.path.samestat(os.fstat(fd), os.stat(path)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        yield
    finally:
        _unlock(fd)


@contextmanager
def rename_lock(folder: Path) -> Iterator[None]:
    """Wait until no other program has locked a folder, and lock it: for a few renamings. Without locks in the file system nobody waits."""
    fd = _open_to_lock(folder)
    try:
        _lock(fd, wait=True)
        yield
    finally:
        _unlock(fd)


def is_stale(path: Path) -> bool:
    """Whether a file is there that no writer has locked, as far as can be seen."""
    try:
        fd = _open_to_lock(path)
    except (FileNotFoundError, PermissionError):
        return False
    try:
        return _lock(fd)
    except BlockingIOError:
        return False
    finally:
        _unlock(fd)


def remove_if_stale(path: Path) -> None:
    """Remove a file that no writer has locked, as far as can be seen, and that none can lock meanwhile. Warns as `remove_leftover`."""
    with suppress(FileNotFoundError, PermissionError, BlockingIOError):
        fd = _open_to_lock(path)
        try:
            if _lock(fd):
                remove_leftover(path)
        finally:
            _unlock(fd)


def remove_leftover(path: Path) -> None:
    """Remove a file or folder that an earlier save left. Warns where that fails: what was saved is safe."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        warnings.warn(f"{path}: of an earlier save, cannot be removed ({error.strerror}); the next save tries again", stacklevel=2)


def _open_to_lock(path: Path) -> int:
    """A file or folder, open so that NFS lets it be locked: files to write, too."""
    flags = os.O_CLOEXEC | os.O_NONBLOCK  # a pipe is not waited for
    return os.open(path, flags | (os.O_RDONLY if path.is_dir() else os.O_RDWR))


def _unlock(fd: int) -> None:
    with suppress(OSError):  # of systems without locks
        fcntl.flock(fd, fcntl.LOCK_UN)  # a process forked meanwhile has the descriptor too
    os.close(fd)


def _lock(fd: int, wait: bool = False) -> bool:
    """Whether the file is locked now; False without locks in the file system. Raises BlockingIOError if another has locked it, or waits."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return False
        raise
    return True
