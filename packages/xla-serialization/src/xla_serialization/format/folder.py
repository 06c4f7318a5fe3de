"""The folder of a checkpoint: a save takes effect at one moment, and a reader sees the files of one save (FORMAT.md §6)."""

from __future__ import annotations

import errno
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from xla_serialization.core import files
from xla_serialization.errors import CheckpointError, DamagedCheckpointError, MissingCheckpointError, UnsavableError
from xla_serialization.format.files import locked, remove_leftover
from xla_serialization.format.limits import LARGEST_TEXT, shown
from xla_serialization.format.links import open_inside
from xla_serialization.format.manifest import INDEX, Manifest, dump, parse
from xla_serialization.format.shards import ShardReader
from xla_serialization.format.tree import check

# Our names contain the id of a save. Shards of other programs do not, and are never removed.
_OURS = re.compile(r"model-\d{5,}-of-\d{5,}-[0-9a-f]{16}\.safetensors|\.index-[0-9a-f]{16}\.json")
_TRIES = 100
# Files that mark folders of other programs, which we do not read, with what to do instead.
_FOREIGN_MARKS = {
    ".metadata": "torch.distributed.checkpoint wrote it, and its load reads it, with a FileSystemReader",
    "_CHECKPOINT_METADATA": "orbax wrote it, and its Checkpointer reads it: docs/checkpoints.md says how",
}


def new_id() -> str:
    """Make the id of a save, which is part of its file names so that no other save has the same."""
    return secrets.token_hex(8)


def shard_name(number: int, count: int, save_id: str) -> str:
    """The file name of shard `number` of `count`, from 1."""
    return f"model-{number:05d}-of-{count:05d}-{save_id}.safetensors"


def is_own_shard(name: str) -> bool:
    """Whether a save of ours wrote the file, by its name: a shard, or an index that was not published."""
    return _OURS.fullmatch(name) is not None


def prepare(folder: Path) -> None:
    """Make the folder, if there is none, so that it survives a crash. Raises OSError, NotADirectoryError if a file is there."""
    missing = _missing(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise NotADirectoryError(errno.ENOTDIR, "a checkpoint is a folder, and there is a file: choose another path", str(folder)) from None
    for created in missing:
        # Else a crash may lose the folder's own name, and with it all files inside.
        files.sync_folder(created.parent)


@contextmanager
def prepared(folder: Path) -> Iterator[None]:
    """Make the folder, if there is none, and lock it against other writers. A new folder is removed again if the `with` block raises.

    Raises as `prepare`, BlockingIOError if another writer has locked it.
    """
    with ExitStack() as stack, _removed_on_error(_missing(folder)):
        while True:
            prepare(folder)
            with suppress(FileNotFoundError):
                stack.enter_context(locked(folder))
                break  # else another program has removed the folder meanwhile, as that of an unfinished step
        yield


def _missing(folder: Path) -> list[Path]:
    """List the folder and its parents, as far as they do not exist."""
    return [path for path in (folder, *folder.parents) if not path.exists()]


@contextmanager
def _removed_on_error(created: list[Path]) -> Iterator[None]:
    try:
        yield
    except BaseException:
        with suppress(OSError):  # a folder that is not empty stays, and so do its parents
            for path in created:
                path.rmdir()
        raise


def publish(folder: Path, manifest: Manifest) -> None:
    """Let readers see this save from now on, and then remove files that no reader can see any more. Raises OSError, UnsavableError."""
    index = dump(manifest)
    if len(index) > LARGEST_TEXT:
        raise UnsavableError(
            f"names and plain values make an index of {len(index)} bytes, of {LARGEST_TEXT} at most: save large data as tensors"
        )
    try:
        check(parse(index, str(folder / INDEX)).tree, manifest.tensors, str(folder / INDEX))
    except DamagedCheckpointError as error:  # rather fail now than when it is needed
        raise UnsavableError(f"no reader would take it: {error}") from error
    with files.atomic_write(folder / INDEX, folder / f".index-{manifest.id}.json", durable=True) as temporary:
        with files.name_errors(temporary), open(temporary, "xb") as file:
            file.write(index)
        files.sync_folder(folder)  # the shards' names, before the index's
    # Not before the rename: until then readers open the earlier shards.
    clean(folder, set(manifest.files))


def remove(folder: Path, names: Iterable[str]) -> None:
    """Remove the files of a save that was not published; the next save removes those that cannot be removed now."""
    for name in names:
        with suppress(OSError):
            (folder / name).unlink()


def clean(folder: Path, kept: set[str]) -> None:
    """Remove our shards and unpublished indices except `kept`. Warns where that fails: what was saved is safe."""
    for path in folder.iterdir():
        if path.name not in kept and is_own_shard(path.name):
            remove_leftover(path)


def read_manifest(folder: Path) -> Manifest:
    """Read the index of a checkpoint. Raises MissingCheckpointError, DamagedCheckpointError, NewerCheckpointError, OSError."""
    path = folder / INDEX
    try:
        with open_inside(folder, INDEX) as file:
            # One byte over the limit is enough to refuse a file of any size.
            data = file.read(LARGEST_TEXT + 1)
    except (FileNotFoundError, NotADirectoryError):
        raise MissingCheckpointError(errno.ENOENT, f"no checkpoint: {_describe_without_index(folder)}", str(folder)) from None
    if len(data) > LARGEST_TEXT:
        raise DamagedCheckpointError(f"{path}: larger than any index, {LARGEST_TEXT} bytes")
    manifest = parse(data, str(path))
    check(manifest.tree, manifest.tensors, str(path))
    return manifest


def _describe_without_index(folder: Path) -> str:
    """Describe for an error what is at a path where no index is."""
    if not folder.is_dir():
        return "no folder" if folder.exists() else "there is no such folder"
    for mark, advice in _FOREIGN_MARKS.items():
        if (folder / mark).exists():
            return advice
    return f"no {INDEX} in it"


def is_published(folder: Path, save_id: str) -> bool:
    """Whether readers of the folder see this save."""
    try:
        return read_manifest(folder).id == save_id
    except (CheckpointError, OSError):
        return False


def open_shard(folder: Path, name: str, nbytes: int | None = None) -> ShardReader:
    """Open one shard; `nbytes` is its expected size, if known. Raises as `open_inside` and `ShardReader`."""
    return ShardReader(folder / name, open_inside(folder, name), nbytes)


def open_shards(folder: Path) -> tuple[Manifest, dict[str, ShardReader]]:
    """Open the checkpoint in a folder with all its shards: later saves do not change what is read from them.

    Raises as `read_manifest`, and DamagedCheckpointError for shards that are missing or damaged.
    """
    manifest = read_manifest(folder)
    for _ in range(_TRIES):
        try:
            return manifest, {name: open_shard(folder, name, size) for name, size in manifest.files.items()}
        except FileNotFoundError as error:
            newer = read_manifest(folder)
            if newer.id == manifest.id:
                raise DamagedCheckpointError(f"{error.filename}: this file of the checkpoint is missing{_lost(newer, error)}") from None
            manifest = newer  # another save has come between
    raise CheckpointError(f"{folder}: is saved to faster than it can be opened")


def _lost(manifest: Manifest, missing: FileNotFoundError) -> str:
    """Name for an error the tensors that were in a missing file."""
    lost = [name for name, entry in manifest.tensors.items() if any(piece.file == Path(missing.filename).name for piece in entry.pieces)]
    return f", with {len(lost)} tensors: {', '.join(map(shown, lost[:3]))}{', …' if len(lost) > 3 else ''}" if lost else ""
