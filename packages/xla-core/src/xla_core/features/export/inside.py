"""Names of an export's files, and the files opened: regular files of its folder only, whatever stands there or changes meanwhile."""

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
"""What an export's folder holds."""
_NAME = re.compile(r"[^./\\\x00-\x1f\x7f][^/\\\x00-\x1f\x7f]*")
_LONGEST_NAME = 240  # of 255 bytes that file systems take: functions have endings
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # a pipe is not waited for
_IS_LINK = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EMLINK})
"""Error numbers for links that are not followed, by system and kind."""


def check_file_name(name: str) -> None:
    """Raise ValueError for what is no plain name of a file: with separators, a dot in front, control characters, too long, or empty."""
    if not _NAME.fullmatch(name) or len(name.encode(errors="replace")) > _LONGEST_NAME or not name.isprintable():
        raise ValueError(
            f"{name[:80]!r} is no name of a file in a folder: names have {_LONGEST_NAME} bytes at most, no separators and no dot in front"
        )


def is_inside(name: str) -> bool:
    """Whether it is a file of one of the three folders: `data/weight`."""
    folder, _, file = name.partition("/")
    try:
        check_file_name(file)
    except ValueError:
        return False
    return folder in FOLDERS


@contextmanager
def opened(folder: Path | str, around: int | None = None) -> Iterator[int]:
    """A descriptor of a folder. around: of the one that it is in; then it is no link. Raises OSError."""
    descriptor = os.open(folder, _FOLDER if around is None else _FOLDER | os.O_NOFOLLOW, dir_fd=around)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def open_file(root: int, folder: Path, name: str) -> BinaryIO:
    """A regular file of a folder, to read. root: the folder's descriptor; name: `data/weight`. Links that stay in the folder are followed.

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
        if error.errno in _IS_LINK:  # it has changed meanwhile, or is a file where a folder should be
            raise outside from None
        raise type(error)(error.errno, error.strerror, str(folder / name)) from None


def _walk(root: int, name: str) -> int:
    """A descriptor; no part of the name may be a link."""
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
