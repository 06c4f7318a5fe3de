"""Files: opened only if they are files, made to last, and held by one writer at a time."""

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
_NO_FOLDER_SYNC = frozenset({errno.EBADF, errno.EINVAL})
"""What file systems say that synchronise no folders."""


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
def naming(path: Path) -> Iterator[None]:
    """Give errors of the system the name of a file, where they have none: of a full disk, writing tells no name."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


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
        with naming(path):
            os.fsync(fd)
    finally:
        os.close(fd)


@contextmanager
def held(path: Path, wait: bool = False) -> Iterator[None]:
    """Hold a file or folder against other writers; the system lets go of it when the process dies. wait: until no other holds it.

    Where the file system knows no locks it is not held. Raises BlockingIOError if another holds it, FileNotFoundError also if it has
    been removed meanwhile, OSError.
    """
    fd = _lockable(path)
    try:
        try:
            _lock(fd, wait)
        except BlockingIOError as error:
            raise BlockingIOError(error.errno, "another program is saving there: let it end, or choose another path", str(path)) from None
        if not os.path.samestat(os.fstat(fd), os.stat(path)):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
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


def remove_abandoned(path: Path) -> None:
    """Remove a file that no writer holds, as far as can be told, and that none can hold meanwhile. Warns as `remove_leftover`."""
    with suppress(FileNotFoundError, PermissionError, BlockingIOError):
        fd = _lockable(path)
        try:
            if _lock(fd):
                remove_leftover(path)
        finally:
            _let_go(fd)


def remove_leftover(path: Path) -> None:
    """Remove a file or folder that an earlier save left. Warns where that fails: what was saved is safe."""
    try:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        warnings.warn(f"{path}: of an earlier save, cannot be removed ({error.strerror}); the next save tries again", stacklevel=2)


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
