"""The index of an exported program's folder: its files with sizes and checksums."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from xla_core.base.errors import ExportFolderError
from xla_core.features.export import typed_json
from xla_core.features.export.inside import is_inside, open_file

INDEX = "stablehlo.index.json"
VERSION = 1
LARGEST_TEXT = 16 << 20
"""Largest index, and largest meta of a function, in bytes."""
_ID, _SUM = re.compile(r"[0-9a-f]{16}"), re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Entry:
    """A file's size in bytes, and its SHA-256."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Index:
    """The files of an export. removes: files of the previous export, to remove once this export's files are in their final places."""

    version: int
    id: str
    files: dict[str, Entry]
    removes: list[str]

    @property
    def staging(self) -> str:
        """Name of the folder with files that are not in their final places yet."""
        return staging_name(self.id)


def staging_name(export_id: str) -> str:
    """Name of the staging folder of a save, inside the export's folder."""
    return f".export-{export_id}"


def dump(index: Index) -> bytes:
    """The text of the index file. Raises ExportFolderError if it is too large to be read."""
    fields = asdict(index)
    text = json.dumps({**fields, "sha256": _checksum(index)}, indent=1).encode()
    if len(text) > LARGEST_TEXT:
        raise ExportFolderError(
            f"{len(index.files)} files make an index of {len(text)} bytes, of {LARGEST_TEXT} at most: save fewer weights"
        )
    return text


def _checksum(index: Index) -> str:
    return hashlib.sha256(json.dumps(asdict(index), sort_keys=True).encode()).hexdigest()


def read_index(root: int, folder: Path) -> Index | None:
    """Read a folder's index; None if it has none. root: the folder's descriptor. Raises ExportFolderError if it is damaged or newer."""
    try:
        with open_file(root, folder, INDEX) as file:
            text = file.read(LARGEST_TEXT + 1)
    except FileNotFoundError:
        return None
    path = folder / INDEX
    again = "save the program again, or remove the index to load the folder unchecked"
    if len(text) > LARGEST_TEXT:
        raise ExportFolderError(f"{path} is larger than any index, {LARGEST_TEXT} bytes: {again}")
    try:
        data = json.loads(text)
        version = data.get("version") if isinstance(data, dict) else None
        if type(version) is int and version > VERSION:
            raise ExportFolderError(f"{path} has version {version}, this xla-core reads up to {VERSION}: upgrade xla-core")
        index: Index = typed_json.read(Index, data, "the index")
        _check(index)
        if data.get("sha256") != _checksum(index):
            raise ValueError("it has another checksum than it says")
    except ExportFolderError:
        raise
    except (ValueError, RecursionError) as error:
        raise ExportFolderError(f"{path} is damaged, or no index of an export ({error}): {again}") from error
    return index


def _check(index: Index) -> None:
    if index.version != VERSION or not _ID.fullmatch(index.id):
        raise ValueError(f"it has version {index.version} and the id {index.id[:60]!r}")
    for name in (*index.files, *index.removes):
        if not is_inside(name):
            raise ValueError(f"it names the file {name[:80]!r}, which no export has")
    for name, entry in index.files.items():
        if not _SUM.fullmatch(entry.sha256):
            raise ValueError(f"{name} has the SHA-256 {entry.sha256[:80]!r}")
