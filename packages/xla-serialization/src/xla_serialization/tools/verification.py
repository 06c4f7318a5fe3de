"""Read all tensors of a checkpoint, and list the damaged ones."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from xla_serialization.checkpoint.loading import block_of
from xla_serialization.errors import CheckpointError, DamagedCheckpointError
from xla_serialization.format.folder import open_shard, read_manifest
from xla_serialization.format.manifest import Manifest
from xla_serialization.format.shards import ShardReader
from xla_serialization.progress import Meter, Progress, no_progress


@dataclass(frozen=True)
class Damage:
    """Damage to a tensor: a piece of it in `file`."""

    tensor: str
    file: str
    what: str


def find_damage(path: str | os.PathLike[str], progress: Progress = no_progress) -> tuple[Manifest, list[Damage]]:
    """The manifest of a checkpoint, and all that is not as it was written. Reads every piece.

    Raises MissingCheckpointError, NewerCheckpointError, DamagedCheckpointError if the index itself is damaged, CheckpointError if
    the folder was saved to meanwhile, OSError.
    """
    folder = Path(path)
    manifest = read_manifest(folder)
    shards = {file: _opened(folder, file, size) for file, size in manifest.files.items()}
    meter = Meter(progress, manifest.nbytes)
    found = []
    for name, entry in manifest.tensors.items():
        for piece in entry.pieces:
            shard, block = shards[piece.file], block_of(entry, piece)
            try:
                if isinstance(shard, DamagedCheckpointError):
                    raise shard
                shard.verify(block, piece.checksum)
            except DamagedCheckpointError as error:
                found.append(Damage(name, piece.file, str(error)))
            meter.add(block.nbytes)
    if found and read_manifest(folder).id != manifest.id:
        raise CheckpointError(f"{folder}: was saved to while it was verified: verify it again")
    return manifest, found


def _opened(folder: Path, file: str, nbytes: int) -> ShardReader | DamagedCheckpointError:
    try:
        return open_shard(folder, file, nbytes)
    except FileNotFoundError:
        return DamagedCheckpointError(f"{folder / file}: this file of the checkpoint is missing")
    except DamagedCheckpointError as error:
        return error
