"""Replace files atomically: a reader, also after a crash of the program, finds the old contents or the new, never a part."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LONGEST_STEM = 100
_NO_FOLDER_SYNC = frozenset({errno.EBADF, errno.EINVAL})
"""Error numbers of file systems that synchronize no folders."""


@contextmanager
def atomic_write(
    path: str | os.PathLike[str], temporary: Path | None = None, *, mode: int = 0o666, durable: bool = False
) -> Iterator[Path]:
    """Give the path of a temporary file to write to, which is renamed to `path` at the end, or removed if something was raised.

    temporary: a path of the caller's in the same folder, which the caller creates; None for a new, empty file with the bits of `mode`
    that the umask lets through. durable: as `sync_file` and `sync_folder`, so that the new contents also survive a crash of the machine.
    Raises OSError.
    """
    target = Path(path)
    if temporary is None:
        temporary = target.with_name(f".{target.name[:_LONGEST_STEM]}.{secrets.token_hex(8)}")
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode))
    try:
        yield temporary
        if durable:
            sync_file(temporary)
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        sync_folder(target.parent)


def atomic_write_bytes(path: str | os.PathLike[str], data: bytes, *, mode: int = 0o666, durable: bool = False) -> None:
    """Replace a file by one with these bytes, as `atomic_write`. Raises OSError, with a file's name."""
    with atomic_write(path, mode=mode, durable=durable) as temporary, name_errors(temporary):
        temporary.write_bytes(data)


@contextmanager
def name_errors(path: Path) -> Iterator[None]:
    """Give errors of the system the name of a file, where they have none: writing to a full disk raises one without."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


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
