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
    """Damage to a tensor, in the piece that is in `file`."""

    tensor: str
    file: str
    what: str


def find_damage(path: str | os.PathLike[str], progress: Progress = no_progress) -> tuple[Manifest, list[Damage]]:
    """Read every piece of a checkpoint; gives the manifest, and the pieces that are not as they were written.

    Raises MissingCheckpointError, NewerCheckpointError, DamagedCheckpointError if the index itself is damaged, CheckpointError if
    the folder was saved to meanwhile, OSError.
    """
    folder = Path(path)
    manifest = read_manifest(folder)
    shards = {file: _open_or_error(folder, file, size) for file, size in manifest.files.items()}
    meter = Meter(progress, manifest.nbytes)
    damages = []
    for name, entry in manifest.tensors.items():
        for piece in entry.pieces:
            shard, block = shards[piece.file], block_of(entry, piece)
            try:
                if isinstance(shard, DamagedCheckpointError):
                    raise shard
                shard.verify(block, piece.checksum)
            except DamagedCheckpointError as error:
                damages.append(Damage(name, piece.file, str(error)))
            meter.add(block.nbytes)
    if damages and read_manifest(folder).id != manifest.id:
        raise CheckpointError(f"{folder}: was saved to while it was verified: verify it again")
    return manifest, damages


def _open_or_error(folder: Path, file: str, nbytes: int) -> ShardReader | DamagedCheckpointError:
    try:
        return open_shard(folder, file, nbytes)
    except FileNotFoundError:
        return DamagedCheckpointError(f"{folder / file}: this file of the checkpoint is missing")
    except DamagedCheckpointError as error:
        return error
