"""Open files of a checkpoint's folder, following links only within the folder and within Hugging Face's cache (FORMAT.md §7)."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from xla_serialization.errors import DamagedCheckpointError

_FOLDER = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe is not waited for
# REPOSITORY/snapshots/REVISION/… contains links to files of REPOSITORY/blobs.
_REPOSITORY = re.compile(r"(models|datasets|spaces)--.+")


def open_inside(folder: Path, name: str) -> BinaryIO:
    """Open a regular file of the folder to read. A link is followed once, to a regular file of the folder itself or, in a snapshot of
    Hugging Face's cache, of `blobs` of the same repository.

    The system itself follows no link, so that the file that was checked is the one opened, whoever changes the folder meanwhile.
    Raises FileNotFoundError, DamagedCheckpointError for any other link, a folder, a pipe or a device, OSError.
    """
    path = folder / name
    with _open_folder(folder) as folder_fd:
        try:
            return _regular_file(os.open(name, _FILE, dir_fd=folder_fd), path)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise _with_path(error, path) from None
        try:
            target = os.readlink(name, dir_fd=folder_fd)
        except OSError as error:  # no link any more
            raise _with_path(error, path) from None
        return _follow(folder, folder_fd, path, target)


def _follow(folder: Path, folder_fd: int, path: Path, target: str) -> BinaryIO:
    """Open the file that a link of the folder leads to. folder_fd: the folder's descriptor."""
    parent, slash, name = target.rpartition("/")
    with ExitStack() as stack:
        allowed = [folder_fd]
        blobs = _path_to_blobs(folder)
        if blobs is not None:
            with suppress(OSError):  # there is no `blobs`, or it is a link itself
                allowed.append(stack.enter_context(_open_folder(blobs, os.O_NOFOLLOW, folder_fd)))
        matching = [fd for fd in allowed if _is_folder(folder / (parent or slash), fd)]
        if not matching or name in ("", ".", ".."):
            raise DamagedCheckpointError(
                f"{path}: is a link to {target}, and a checkpoint's files are in its folder, or in 'blobs' of Hugging Face's cache: "
                "copy the folder with cp -rL"
            )
        try:
            return _regular_file(os.open(name, _FILE, dir_fd=matching[0]), path)
        except FileNotFoundError:
            raise DamagedCheckpointError(f"{path}: is a link to {target}, where no file is: download or copy it again") from None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise DamagedCheckpointError(f"{path}: is a link to {target}, which is a link too: copy the folder with cp -rL") from None
            raise _with_path(error, path) from None


def _path_to_blobs(folder: Path) -> str | None:
    """The relative path from a repository's snapshot to its `blobs`: it goes up only, so that no part but the last can be a link."""
    parts = Path(os.path.realpath(folder)).parts
    for up in range(2, len(parts)):
        if parts[-up] == "snapshots" and _REPOSITORY.fullmatch(parts[-up - 1]):
            return "../" * up + "blobs"
    return None


@contextmanager
def _open_folder(folder: Path | str, flags: int = 0, parent: int | None = None) -> Iterator[int]:
    """Open a folder, give its descriptor, and close it. parent: descriptor from which a relative path starts."""
    fd = os.open(folder, _FOLDER | flags, dir_fd=parent)
    try:
        yield fd
    finally:
        os.close(fd)


def _is_folder(folder: Path, fd: int) -> bool:
    """Whether a path leads to the folder that is open as `fd`."""
    try:
        return os.path.samestat(os.stat(folder), os.fstat(fd))
    except OSError:
        return False


def _regular_file(fd: int, path: Path) -> BinaryIO:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise DamagedCheckpointError(f"{path}: is no file")
    return open(fd, "rb")


def _with_path(error: OSError, path: Path) -> OSError:
    """Copy an error, with the path of the file instead of its name alone."""
    return type(error)(error.errno, error.strerror, str(path))
