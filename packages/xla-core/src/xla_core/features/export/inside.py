"""Checks names of an export's files, and opens only regular files inside its folder, even if others change it meanwhile."""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO

from xla_core.base.errors import ExportFolderError

FOLDERS = ("constants", "data", "functions")
"""The subfolders of an export."""
_NAME = re.compile(r"[^./\\\x00-\x1f\x7f][^/\\\x00-\x1f\x7f]*")
_LONGEST_NAME = 240  # file systems take 255 bytes; files of functions have suffixes
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # does not wait for pipes
_IS_LINK = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EMLINK})
"""Error numbers for links that were not followed, which differ by system."""


def check_file_name(name: str) -> None:
    """Raise ValueError unless this is a plain file name: not empty or too long, no separators, leading dot or control characters."""
    if not _NAME.fullmatch(name) or len(name.encode(errors="replace")) > _LONGEST_NAME or not name.isprintable():
        raise ValueError(
            f"{name[:80]!r} is no name of a file in a folder: names have {_LONGEST_NAME} bytes at most, no separators and no dot in front"
        )


def is_inside(name: str) -> bool:
    """Whether a name such as `data/weight` is that of a file in one of the three subfolders."""
    folder, _, file = name.partition("/")
    try:
        check_file_name(file)
    except ValueError:
        return False
    return folder in FOLDERS


@contextmanager
def opened(folder: Path | str, around: int | None = None) -> Iterator[int]:
    """Open a folder and yield its descriptor. around: descriptor of its parent; then links are not followed. Raises OSError."""
    descriptor = os.open(folder, _FOLDER if around is None else _FOLDER | os.O_NOFOLLOW, dir_fd=around)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_file(root: int, folder: Path, name: str) -> BinaryIO:
    """Open a regular file of a folder for reading. root: the folder's descriptor; name: `data/weight`. Follows links inside the folder.

    Raises FileNotFoundError; ExportFolderError for other links, folders, pipes and devices; OSError.
    """
    try:
        return _regular(_walk(root, name), folder / name)
    except OSError as error:
        if error.errno not in _IS_LINK:
            raise type(error)(error.errno, error.strerror, str(folder / name)) from None
    top, target = os.path.realpath(folder), os.path.realpath(folder / name)
    outside = ExportFolderError(
        f"{folder / name} is a link out of the folder, or a file is where a folder should be ({target[:200]}): copy the export with cp -rL"
    )
    if not target.startswith(top + os.sep):
        raise outside
    try:
        return _regular(_walk(root, os.path.relpath(target, top)), folder / name)
    except OSError as error:
        if error.errno in _IS_LINK:  # the folder has changed meanwhile, or a file is where a folder should be
            raise outside from None
        raise type(error)(error.errno, error.strerror, str(folder / name)) from None


def _walk(root: int, name: str) -> int:
    """Open a file and return its descriptor. No part of the name may be a link."""
    *folders, file = name.split("/")
    with ExitStack() as stack:
        here = root
        for folder in folders:
            here = stack.enter_context(opened(folder, here))
        return os.open(file, _FILE, dir_fd=here)


def _regular(descriptor: int, path: Path) -> BinaryIO:
    mode = os.fstat(descriptor).st_mode
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        noun = "folder" if stat.S_ISDIR(mode) else "pipe, device or socket"
        raise ExportFolderError(f"{path} is a {noun}, where an export has a file: save the program again")
    return open(descriptor, "rb")
