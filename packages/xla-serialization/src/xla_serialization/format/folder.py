"""The folder of a checkpoint: what makes a save one moment, and a reader see one save (FORMAT.md §6)."""

from __future__ import annotations

import errno
import os
import re
import secrets
from collections.abc import Iterable
from pathlib import Path

from xla_serialization.errors import CheckpointError, DamagedCheckpointError, MissingCheckpointError
from xla_serialization.format.manifest import INDEX, LARGEST_TEXT, Manifest, dump, parse
from xla_serialization.format.shards import ShardReader

_OURS = re.compile(r"model-\d{5,}-of-\d{5,}-[0-9a-f]{16}\.safetensors|\.index-[0-9a-f]{16}\.json")
_TRIES = 5


def new_id() -> str:
    """Of a save: names of its files, which no earlier one has."""
    return secrets.token_hex(8)


def shard_name(number: int, count: int, save_id: str) -> str:
    """The file name of a shard, counted from 1."""
    return f"model-{number:05d}-of-{count:05d}-{save_id}.safetensors"


def prepare(folder: Path) -> None:
    """Make the folder, if there is none. Raises OSError, NotADirectoryError if a file is there."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, "a checkpoint is a folder, and there is a file: choose another path", str(folder)) from None


def publish(folder: Path, manifest: Manifest) -> None:
    """The moment of saving: readers now see these shards. Then removes what no reader can see any more. Raises OSError."""
    beside = folder / f".index-{manifest.id}.json"
    try:
        with open(beside, "xb") as file:
            file.write(dump(manifest))
            file.flush()
            os.fsync(file.fileno())
        sync_folder(folder)  # the shards' names, before the index's
        beside.replace(folder / INDEX)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync_folder(folder)
    clean(folder, set(manifest.files))


def remove(folder: Path, names: Iterable[str]) -> None:
    """Take back files of a save that did not come to its moment."""
    for name in names:
        (folder / name).unlink(missing_ok=True)


def clean(folder: Path, kept: set[str]) -> None:
    """Remove shards and indices of ours that are not to be kept."""
    for path in folder.iterdir():
        if path.name not in kept and _OURS.fullmatch(path.name):
            path.unlink(missing_ok=True)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder last."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def read_manifest(folder: Path) -> Manifest:
    """What the folder holds now. Raises MissingCheckpointError, DamagedCheckpointError, NewerCheckpointError, OSError."""
    path = folder / INDEX
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size > LARGEST_TEXT:
                raise DamagedCheckpointError(f"{path}: larger than any index, {LARGEST_TEXT} bytes")
            data = file.read()
    except (FileNotFoundError, NotADirectoryError):
        what = "there is no such folder" if not folder.exists() else "no folder" if not folder.is_dir() else f"no {INDEX} in it"
        raise MissingCheckpointError(errno.ENOENT, f"no checkpoint: {what}", str(folder)) from None
    return parse(data, str(path))


def holds(folder: Path, save_id: str) -> bool:
    """Whether this save has come to its moment."""
    try:
        return read_manifest(folder).id == save_id
    except (CheckpointError, OSError):
        return False


def open_shards(folder: Path) -> tuple[Manifest, dict[str, ShardReader]]:
    """What the folder holds now, with all its shards open: later saves do not change what is read from them.

    Raises as `read_manifest`, and DamagedCheckpointError for shards that are missing or damaged.
    """
    manifest = read_manifest(folder)
    for _ in range(_TRIES):
        try:
            return manifest, {name: ShardReader(folder / name, size) for name, size in manifest.files.items()}
        except FileNotFoundError as error:
            newer = read_manifest(folder)
            if newer.id == manifest.id:
                raise DamagedCheckpointError(f"{error.filename}: this file of the checkpoint is missing") from None
            manifest = newer  # another save has come between
    raise CheckpointError(f"{folder}: is saved to faster than it can be opened")
