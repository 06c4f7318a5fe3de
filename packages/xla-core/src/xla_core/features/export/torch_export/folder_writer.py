"""Writes the folder of an exported program atomically: readers find the old export or the new one, even if the writer is killed.

All files are first written to a staging folder, `.export-<id>`, and are on disk before one rename replaces the index. From that moment on,
readers use the new index, and look for its files in the staging folder first. Then the files are moved to their final places, where
readers without the index look. If the writer is killed before, the next save moves them.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from xla_core.base.errors import ExportFolderError
from xla_core.base.files import atomic_write, lock, name_errors, sync_folder, unlock
from xla_core.features.export.inside import FOLDERS, opened
from xla_core.features.export.torch_export.folder_index import INDEX, VERSION, Entry, Index, dump, read_index, staging_name

Write = Callable[[BinaryIO], Any]
_STAGING = re.compile(r"\.export-[0-9a-f]{16}")
_OURS = re.compile(r"functions/.*\.(meta|bytecode|mlir)|constants/\d+")
"""Names of an export's files, to find them without an index."""


def write_folder(folder: Path, contents: Iterable[tuple[str, Write]]) -> None:
    """Replace the export in a folder, and make the folder if needed. contents: names such as `data/weight`, and a writer for each file.

    Raises BlockingIOError if another program is saving there, OSError; then the folder keeps its export.
    """
    new_folders = [path for path in (*[folder / name for name in FOLDERS], folder, *folder.parents) if not path.exists()]
    try:
        for name in FOLDERS:
            (folder / name).mkdir(parents=True, exist_ok=True)
        with opened(folder) as root, _locked(root, folder):
            for name in FOLDERS:
                with _open_subfolder(folder, root, name):
                    pass  # checks that it is a folder
            _finish(folder, root)
            for name in os.listdir(root):
                if _STAGING.fullmatch(name):
                    shutil.rmtree(folder / name)
            _replace(folder, root, contents)
    except BaseException:
        with suppress(OSError):  # folders that are not empty stay
            for path in new_folders:
                path.rmdir()
        raise


@contextmanager
def _locked(root: int, folder: Path) -> Iterator[None]:
    """Keep other writers out, if the file system has locks."""
    try:
        lock(root)
    except BlockingIOError as error:
        raise BlockingIOError(error.errno, "another program is saving there: let it end, or choose another path", str(folder)) from None
    try:
        yield
    finally:
        unlock(root)


def _replace(folder: Path, root: int, contents: Iterable[tuple[str, Write]]) -> None:
    old = _old_names(folder, root)
    export_id = secrets.token_hex(8)
    staging = folder / staging_name(export_id)
    try:
        staging.mkdir()
        files = {name: _written(staging, name, write) for name, write in contents}
        for name in files:
            if (folder / name).is_dir() and not (folder / name).is_symlink():
                raise IsADirectoryError(errno.EISDIR, "a folder is where a file of the export belongs: move it", str(folder / name))
        text = dump(Index(VERSION, export_id, files, sorted(old - files.keys())))
        for subfolder in sorted({(staging / name).parent for name in files}):
            sync_folder(subfolder)
        with atomic_write(folder / INDEX, staging / INDEX, durable=True) as temporary:
            with name_errors(temporary), open(temporary, "xb") as file:
                file.write(text)
            sync_folder(staging)
            sync_folder(folder)
    except BaseException:
        if not _is_published(folder, root, export_id):
            shutil.rmtree(staging, ignore_errors=True)  # the next save tries again
        raise
    _finish(folder, root)


def _old_names(folder: Path, root: int) -> set[str]:
    """The existing export's files. Without a valid index, weights are not among them, because `data` may have other files."""
    with suppress(ExportFolderError):
        index = read_index(root, folder)
        if index is not None:
            return set(index.files)
    names = set()
    for subfolder in FOLDERS:
        with _open_subfolder(folder, root, subfolder) as inner:
            names |= {f"{subfolder}/{file}" for file in os.listdir(inner)}
    return {name for name in names if _OURS.fullmatch(name)}


def _written(staging: Path, name: str, write: Write) -> Entry:
    path = staging / name
    path.parent.mkdir(exist_ok=True)
    with name_errors(path), open(path, "xb") as file:
        summed = _Summed(file)
        write(summed)  # type: ignore[arg-type]
        file.flush()
        os.fsync(file.fileno())
    return Entry(summed.size, summed.sha256.hexdigest())


class _Summed:
    """A file to write to, which computes size and checksum."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.size, self.sha256 = 0, hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.sha256.update(data)
        self.size += len(data)
        return self._file.write(data)


def _is_published(folder: Path, root: int, export_id: str) -> bool:
    try:
        index = read_index(root, folder)
    except (ExportFolderError, OSError):
        return False
    return index is not None and index.id == export_id


@contextmanager
def _open_subfolder(folder: Path, root: int, name: str) -> Iterator[int]:
    """Open a subfolder, which must not be a link, so that nothing is written outside of the export. Yields its descriptor."""
    try:
        with opened(name, root) as inner:
            yield inner
    except OSError as error:
        if error.errno not in (errno.ELOOP, errno.ENOTDIR):
            raise
        raise ExportFolderError(f"{folder / name} is a link or a file, and an export has a folder there: move it") from None


def _finish(folder: Path, root: int) -> None:
    """Move staged files of the export to their final places, and remove files of the previous export."""
    try:
        index = read_index(root, folder)
    except ExportFolderError:  # damaged: readers refuse it, and this save replaces it
        return
    if index is None or not (folder / index.staging).exists():
        return
    with _open_subfolder(folder, root, index.staging) as staging:
        for subfolder in FOLDERS:
            names = {name.partition("/")[2] for name in index.files if name.startswith(f"{subfolder}/")}
            gone = [name.partition("/")[2] for name in index.removes if name.startswith(f"{subfolder}/")]
            with _open_subfolder(folder, root, subfolder) as target:
                # A subfolder of the staging folder is missing if it had no files, or a writer was killed while it removed the folder.
                with suppress(FileNotFoundError), _open_subfolder(folder / index.staging, staging, subfolder) as waiting:
                    for name in names.intersection(os.listdir(waiting)):
                        os.rename(name, name, src_dir_fd=waiting, dst_dir_fd=target)
                for name in gone:
                    with suppress(FileNotFoundError, IsADirectoryError):
                        os.unlink(name, dir_fd=target)
            sync_folder(folder / subfolder)
    shutil.rmtree(folder / index.staging)
