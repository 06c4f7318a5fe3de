"""Reads the folder of an exported program: files of one export only, checked by the index, or unchecked without an index."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, TypeVar

from xla_core.base.errors import ExportFolderError
from xla_core.features.export.inside import FOLDERS, is_inside, open_file, opened
from xla_core.features.export.torch_export.folder_index import INDEX, Index, read_index

_Result = TypeVar("_Result")
_TRIES = 100


def read_folder(folder: Path, make: Callable[[ExportFiles], _Result]) -> _Result:
    """Call `make` with the files of an export, again if another export is saved meanwhile. Returns its result.

    Raises FileNotFoundError if there is no such folder, ExportFolderError if it is damaged, and what `make` raises.
    """
    with opened(folder) as root:
        for _ in range(_TRIES):
            index = read_index(root, folder)
            try:
                result = make(ExportFiles(folder, root, index))
            except (OSError, ValueError):
                if read_index(root, folder) == index:
                    raise
                continue
            if index is not None or read_index(root, folder) is None:
                return result
    raise ExportFolderError(f"{folder} is saved to faster than it can be read: load it again")


class ExportFiles:
    """The files of an export by names such as `data/weight`: those of its index, or without an index all in the folder."""

    def __init__(self, folder: Path, root: int, index: Index | None) -> None:
        """root: a descriptor of the folder."""
        self.folder, self._root, self._index = folder, root, index
        self.names = sorted(index.files) if index is not None else self._found()

    def _found(self) -> list[str]:
        names = []
        for folder in FOLDERS:
            try:
                with opened(folder, self._root) as inner:
                    names += [f"{folder}/{file}" for file in os.listdir(inner)]
            except FileNotFoundError:
                continue
            except OSError as error:
                raise ExportFolderError(f"{self.folder / folder} is no folder ({error.strerror}): copy the export with cp -rL") from None
        return sorted(filter(is_inside, names))

    def read(self, name: str, largest: int | None = None) -> bytearray:
        """Read a file. largest: most bytes that it may have.

        Raises ExportFolderError for a missing, damaged, larger or special file; OSError.
        """
        try:
            with self._open(name) as file:
                size = self._size(file, name, largest)
                content = bytearray(size)
                # A further byte means that the file has changed since its size was read.
                if file.readinto(content) != size or file.read(1):  # type: ignore[attr-defined]
                    raise self.error(name, "changes while it is read")
        except FileNotFoundError:
            raise self.error(name, "is missing") from None
        if self._index is not None and hashlib.sha256(content).hexdigest() != self._index.files[name].sha256:
            raise self.error(name, f"is damaged, or of another export: {INDEX} has another SHA-256")
        return content

    def _open(self, name: str) -> BinaryIO:
        if self._index is not None:
            try:  # the staging folder comes first: until a file is moved, its final place may have the previous export's file
                return open_file(self._root, self.folder, f"{self._index.staging}/{name}")
            except FileNotFoundError:
                pass
        return open_file(self._root, self.folder, name)

    def _size(self, file: BinaryIO, name: str, largest: int | None) -> int:
        size = os.fstat(file.fileno()).st_size
        if self._index is not None and size != self._index.files[name].size:
            raise self.error(name, f"has {size} bytes, and {self._index.files[name].size} by {INDEX}")
        if largest is not None and size > largest:
            raise self.error(name, f"has {size} bytes, of {largest} at most")
        return size

    def error(self, name: str, problem: str) -> ExportFolderError:
        """An error with a file's path, its problem and a remedy."""
        again = "save the program again"
        if self._index is not None:
            again += f"; if another program has written it, remove {INDEX}: then the folder loads unchecked"
        return ExportFolderError(f"{self.folder / name} {problem}: {again}")
