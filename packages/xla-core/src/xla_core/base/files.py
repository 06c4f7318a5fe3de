"""Replace files atomically: a reader, also after a crash of the program, finds the old contents or the new, never a part.

Data goes first to a temporary file beside the target. Its writer holds a lock on it (flock), which the system releases when the process
dies in any way. An unlocked temporary file is the leftover of a killed writer, and the next writer into the folder removes it. Process ids
could not tell: other containers have their own, and they are used again.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import cache
from pathlib import Path

_LONGEST_STEM = 100
"""At most this many bytes of the target's name are part of its temporary file's name."""
_TEMPORARY = re.compile(r"\..*\.(?P<mount>[0-9a-f]{16})-[0-9a-f]{16}\.xla-tmp", re.DOTALL)
_LEFT_ELSEWHERE_S = 86_400
"""A file of another mount, whose locks may be invisible here, is a leftover if nobody has written to it for this time."""
_MANY_NAMES = 1000
"""A folder with more names is listed once by each process, others at each write."""
_listed: set[tuple[int, int]] = set()
"""Such folders, by device and inode."""
_NO_FOLDER_SYNC = frozenset({errno.EBADF, errno.EINVAL})
"""Error numbers of file systems that cannot synchronize folders."""
_NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL})
"""Error numbers of file systems that cannot lock files."""


@contextmanager
def atomic_write(
    path: str | os.PathLike[str], temporary: Path | None = None, *, mode: int = 0o666, durable: bool = False
) -> Iterator[Path]:
    """Yield the path of a temporary file to write to, which is renamed to `path` at the end, or removed if something was raised.

    temporary: a path in the same folder for a file that the caller creates, and removes if a former caller was killed. None for a new,
    empty file with the bits of `mode` that the umask lets through: write into it, do not replace it. Leftovers of killed writers in the
    folder are removed. durable: call `sync_file` and `sync_folder`, so that the new contents also survive a crash of the machine. Raises
    OSError.
    """
    target = Path(path)
    with _locked_file(target, mode) if temporary is None else nullcontext(temporary) as written:
        try:
            yield written
            if durable:
                sync_file(written)
            written.replace(target)
        except BaseException:
            written.unlink(missing_ok=True)
            raise
    if durable:
        sync_folder(target.parent)


@contextmanager
def _locked_file(target: Path, mode: int) -> Iterator[Path]:
    """A new file beside the target, locked by this process; leftovers there are removed."""
    folder = target.parent.stat()
    mount = _mount(folder.st_dev)
    temporary, fd = _new_file(target, mode, mount)
    try:
        _remove_leftovers(target.parent, (folder.st_dev, folder.st_ino), mount, os.fstat(fd).st_mtime)
        yield temporary
    finally:
        unlock(fd)
        os.close(fd)


def _new_file(target: Path, mode: int, mount: str) -> tuple[Path, int]:
    """A temporary file and its descriptor, locked."""
    stem = target.name.encode(errors="replace")[:_LONGEST_STEM].decode(errors="ignore")
    while True:
        temporary = target.with_name(f".{stem}.{mount}-{secrets.token_hex(8)}.xla-tmp")
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
        with suppress(BlockingIOError):
            lock(fd)
            if _is_at(temporary, fd):
                return temporary, fd
        # Another process took it for a leftover before it was locked.
        os.close(fd)
        temporary.unlink(missing_ok=True)


def _remove_leftovers(folder: Path, identity: tuple[int, int], mount: str, now_s: float) -> None:
    """Remove the temporary files of killed writers. now_s: by the clock of the file system, since the epoch."""
    if identity in _listed:
        return
    try:
        names = os.listdir(folder)
    except PermissionError:  # one may write into a folder and not list it
        names = []
    if len(names) > _MANY_NAMES:
        _listed.add(identity)
    for name in names:
        if (match := _TEMPORARY.fullmatch(name)) is not None:
            with suppress(OSError):  # of another user, or gone: this process has its own file to write
                _remove_if_left(folder / name, now_s - _LEFT_ELSEWHERE_S if match["mount"] != mount else None)


def _remove_if_left(path: Path, before_s: float | None) -> None:
    """Remove a file that no process has locked and, unless `before_s` is None, none has written to since then. Raises OSError."""
    # Opened for writing, too: NFS locks no other files. Without waiting for a pipe or following a link.
    fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or (before_s is not None and status.st_mtime > before_s):
            return
        if lock(fd) and _is_at(path, fd):  # no longer there: renamed to its target, or removed
            path.unlink()
    finally:
        unlock(fd)
        os.close(fd)


@cache
def _mount(device: int) -> str:
    """A name of a mounted file system of this running system: processes that get the same name see the same locks.

    Some network file systems keep locks separate for each mount of each machine.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_bytes()
    except OSError:  # not Linux
        boot = secrets.token_bytes(16)
    return hashlib.sha256(b"%d %b" % (device, boot)).hexdigest()[:16]


def _is_at(path: Path, fd: int) -> bool:
    """Whether this path still leads to the open file."""
    try:
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False


def lock(fd: int, *, wait: bool = False) -> bool:
    """Lock an open file or folder against all that open it anew (flock). Returns whether it is locked: not every file system can.

    The system unlocks it when the process dies. wait: until nobody else has locked it. Raises BlockingIOError if somebody has; OSError.
    """
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return False
        raise
    return True


def unlock(fd: int) -> None:
    """Undo `lock`, even if a process that was forked meanwhile has the descriptor, too."""
    with suppress(OSError):  # of file systems without locks
        fcntl.flock(fd, fcntl.LOCK_UN)


def atomic_write_bytes(path: str | os.PathLike[str], data: bytes, *, mode: int = 0o666, durable: bool = False) -> None:
    """Replace a file by one with these bytes, as `atomic_write` does. Raises OSError, with a file's name."""
    with atomic_write(path, mode=mode, durable=durable) as temporary, name_errors(temporary):
        temporary.write_bytes(data)


@contextmanager
def name_errors(path: Path) -> Iterator[None]:
    """Add a file's name to an OSError that has none, such as the one of writing to a full disk."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def read_small_file(path: str | os.PathLike[str], most: int) -> bytes:
    """The contents of a file of at most `most` bytes. Raises ValueError for a larger one, OSError also for a pipe, device or folder."""
    target = Path(path)
    descriptor = os.open(target, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # does not wait for pipes
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise PermissionError(errno.EPERM, "it is not a regular file", str(target))
        with name_errors(target), os.fdopen(descriptor, "rb", closefd=False) as file:
            data = file.read(most + 1)
    finally:
        os.close(descriptor)
    if len(data) > most:
        raise ValueError(f"{target} has more than {most} bytes")
    return data


def sync_file(path: Path) -> None:
    """Wait until a file's contents are on disk (fsync). Raises OSError, with its name."""
    _sync(path, os.O_RDONLY)


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk (fsync), where the file system can. Raises OSError, with its name."""
    try:
        _sync(folder, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        if error.errno not in _NO_FOLDER_SYNC:
            raise


def _sync(path: Path, flags: int) -> None:
    fd = os.open(path, flags | os.O_CLOEXEC)
    try:
        with name_errors(path):
            os.fsync(fd)
    finally:
        os.close(fd)
