"""Files of a checkpoint's folder, opened: of links those that stay in the folder, and those of Hugging Face's cache (FORMAT.md §7)."""

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
# REPOSITORY/snapshots/REVISION/… has links to files of REPOSITORY/blobs.
_REPOSITORY = re.compile(r"(models|datasets|spaces)--.+")


def open_inside(folder: Path, name: str) -> BinaryIO:
    """A regular file of the folder, to read. A link is followed once, to a regular file of the folder itself or, in a snapshot of Hugging
    Face's cache, of `blobs` of the same repository.

    The system follows none, so that what is checked is what is opened, whoever changes the folder meanwhile.
    Raises FileNotFoundError, DamagedCheckpointError for any other link, a folder, a pipe or a device, OSError.
    """
    path = folder / name
    with _opened(folder) as here:
        try:
            return _regular(os.open(name, _FILE, dir_fd=here), path)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise _named(error, path) from None
        try:
            target = os.readlink(name, dir_fd=here)
        except OSError as error:  # no link any more
            raise _named(error, path) from None
        return _followed(folder, here, path, target)


def _followed(folder: Path, here: int, path: Path, target: str) -> BinaryIO:
    """The file that a link of the folder leads to. here: the folder's descriptor."""
    around, slash, name = target.rpartition("/")
    with ExitStack() as stack:
        places = [here]
        way = _way_to_blobs(folder)
        if way is not None:
            with suppress(OSError):  # there is none, or it is a link itself
                places.append(stack.enter_context(_opened(way, os.O_NOFOLLOW, here)))
        found = [place for place in places if _is(folder / (around or slash), place)]
        if not found or name in ("", ".", ".."):
            raise DamagedCheckpointError(
                f"{path}: is a link to {target}, and a checkpoint's files are in its folder, or in 'blobs' of Hugging Face's cache: "
                "copy the folder with cp -rL"
            )
        try:
            return _regular(os.open(name, _FILE, dir_fd=found[0]), path)
        except FileNotFoundError:
            raise DamagedCheckpointError(f"{path}: is a link to {target}, where no file is: download or copy it again") from None
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise DamagedCheckpointError(f"{path}: is a link to {target}, which is a link too: copy the folder with cp -rL") from None
            raise _named(error, path) from None


def _way_to_blobs(folder: Path) -> str | None:
    """From a folder that is one of a repository's snapshots: upwards only, where no part but the last can be a link."""
    parts = Path(os.path.realpath(folder)).parts
    for up in range(2, len(parts)):
        if parts[-up] == "snapshots" and _REPOSITORY.fullmatch(parts[-up - 1]):
            return "../" * up + "blobs"
    return None


@contextmanager
def _opened(folder: Path | str, flags: int = 0, around: int | None = None) -> Iterator[int]:
    """A folder's descriptor."""
    opened = os.open(folder, _FOLDER | flags, dir_fd=around)
    try:
        yield opened
    finally:
        os.close(opened)


def _is(folder: Path, opened: int) -> bool:
    """Whether this is the path of a folder that is open."""
    try:
        return os.path.samestat(os.stat(folder), os.fstat(opened))
    except OSError:
        return False


def _regular(fd: int, path: Path) -> BinaryIO:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise DamagedCheckpointError(f"{path}: is no file")
    return open(fd, "rb")


def _named(error: OSError, path: Path) -> OSError:
    """The error, with the path of the file instead of its name alone."""
    return type(error)(error.errno, error.strerror, str(path))
