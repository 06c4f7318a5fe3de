"""Read files that anybody may name, but only regular files, so that no read waits for a pipe or goes on forever."""

from __future__ import annotations

import errno
import os
import stat
from typing import BinaryIO


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file to read. Raises OSError, at once for a pipe, a device or a socket."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if stat.S_ISDIR(mode := os.fstat(fd).st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
        if not stat.S_ISREG(mode):
            raise OSError(errno.EINVAL, "it is a pipe or a device: write it to a file first", os.fspath(path))
    except BaseException:
        os.close(fd)
        raise
    return open(fd, "rb")


def read_bytes(path: str | os.PathLike[str]) -> bytes:
    """Read a regular file. Raises OSError as `open_regular`."""
    with open_regular(path) as file:
        return file.read()
