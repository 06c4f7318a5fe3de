"""Save a nesting as a checkpoint, one tensor at a time from device to disk."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from xla_serialization.checkpoint.agreement import check_equal, divide, warn_of_values
from xla_serialization.checkpoint.chunks import Chunk, Chunks, key_of, local_chunks
from xla_serialization.checkpoint.heap import give_back
from xla_serialization.checkpoint.participants import Participants, is_writer, spmd_participants
from xla_serialization.checkpoint.state import FlatState, flatten
from xla_serialization.errors import UnsavableError
from xla_serialization.format import folder as folders
from xla_serialization.format.manifest import Manifest, Piece, Shape, TensorEntry, Tree, canonical, checksum
from xla_serialization.format.per_process import of_all
from xla_serialization.format.shards import ShardWriter, bytes_of
from xla_serialization.progress import Meter, Progress, no_progress

SHARD_BYTES = 5_000_000_000


def save(
    data: Any,
    path: str | os.PathLike[str],
    master_only: bool = True,
    global_master: bool = False,
    *,
    shard_bytes: int = SHARD_BYTES,
    progress: Progress = no_progress,
) -> None:
    """Save a nesting of tensors and plain values in the folder `path`, in place of an earlier checkpoint.

    Readers see the whole old checkpoint or the whole new one, also after the program is killed. The host holds one tensor at a time.
    Of replicas, each host's master writes (global_master: the job's only; not master_only: all, each to a path of its own), others compute
    the tensors and write nothing. Processes of one SPMD program save together: all must call, with one path that all can write to.
    shard_bytes: of a file, unless one tensor is larger. progress: called after each tensor.
    Raises UnsavableError for what a checkpoint cannot hold, OSError if it cannot be written: then nothing has changed.
    """
    participants = spmd_participants()
    with participants.raise_together():
        state = flatten(data, participants.index)
        chunks = local_chunks(state, participants)
    if participants.count > 1 or is_writer(master_only, global_master):
        write_chunks(state, chunks, Path(path), participants, shard_bytes, progress)


@dataclass
class _Written:
    """What a process has written in a save: sizes of files by name, pieces by tensor; and checksums of its copies by chunk."""

    files: dict[str, int] = field(default_factory=dict)
    pieces: dict[str, list[Piece]] = field(default_factory=dict)
    copies: dict[str, str] = field(default_factory=dict)

    def checksums(self) -> dict[str, str]:
        """The checksums of the chunks that it has written, by their keys."""
        return {key_of(name, piece.offset): piece.checksum for name, pieces in self.pieces.items() for piece in pieces}


def write_chunks(
    state: FlatState,
    chunks: Chunks,
    folder: Path,
    participants: Participants,
    shard_bytes: int = SHARD_BYTES,
    progress: Progress = no_progress,
) -> None:
    """Save the chunks; processes that save together all call it. Records and runs no programs itself, so that a thread may run it.

    Replicas write each chunk once, and compare it with their copies: raises ReplicasDifferError in all of them if one differs.
    """
    if shard_bytes < 1:
        raise ValueError(f"shard_bytes is {shard_bytes}, must be positive")
    chunks, copies = divide(state, chunks, participants)
    shards = split_into_files(list(chunks.values()), shard_bytes)
    counts, save_id = _agree_on_numbers(len(shards), participants)
    first = 1 + sum(counts[: participants.index])
    names = [folders.shard_name(first + index, sum(counts), save_id) for index in range(len(shards))]
    written = _Written()
    meter = Meter(progress, sum(chunk.block.nbytes for chunk in (*chunks.values(), *copies.values())))
    with ExitStack() as stack:
        try:
            with participants.raise_together():
                if participants.index == 0:
                    # One process locks the folder for all: the others would find it locked.
                    stack.enter_context(folders.prepared(folder))
                else:
                    folders.prepare(folder)
            # Not before the lock: a program that held it earlier removes, when it ends, files that it does not know.
            with participants.raise_together():
                for file, shard in zip(names, shards, strict=True):
                    _write_shard(folder / file, shard, written, meter, divided=participants.count > 1)
                for name, chunk in copies.items():
                    written.copies[name] = checksum(bytes_of(chunk.read()))
                    meter.add(chunk.block.nbytes)
            give_back()  # the index of many tensors takes as much memory as a tensor
            _publish(state, folder, save_id, written, participants)
        except BaseException:
            # An error or KeyboardInterrupt after the rename must not remove files that readers already see.
            if not folders.is_published(folder, save_id):
                folders.remove(folder, names)
            raise


def _agree_on_numbers(shards: int, participants: Participants) -> tuple[list[int], str]:
    """Gather the number of shards that each process writes, and agree on the id of this save."""
    # Each process makes an id, and all use the first one's: this saves an exchange.
    gathered = participants.all_gather([shards, folders.new_id()])
    return [count for count, _ in gathered], gathered[0][1]


def _write_shard(path: Path, chunks: Sequence[Chunk], written: _Written, meter: Meter, divided: bool) -> None:
    offsets = {chunk.block.name: chunk.offset for chunk in chunks} if divided else None
    with ShardWriter(path, [chunk.block for chunk in chunks], offsets=offsets) as writer:
        for chunk in chunks:
            piece = Piece(path.name, chunk.block.name, chunk.offset, chunk.block.shape, writer.write(chunk.read()))
            written.pieces.setdefault(chunk.block.name, []).append(piece)
            meter.add(chunk.block.nbytes)
    written.files[path.name] = writer.nbytes


def _publish(state: FlatState, folder: Path, save_id: str, written: _Written, participants: Participants) -> None:
    own_tensors = {name: _dtype_and_shape(state.tensors[name]) for name in state.own_tensors}
    parts = [_Part(written, own_tensors, state.own)]
    if participants.count > 1:
        parts = _exchanged(parts[0], state.tree, participants)
    with participants.raise_together():
        if participants.index == 0:
            all_files = {file: size for part in parts for file, size in part.written.files.items()}
            descriptions = {name: _dtype_and_shape(tensor) for name, tensor in state.tensors.items()}
            for part in parts:
                descriptions.update(part.own_tensors)
            entries = {
                name: TensorEntry(dtype, shape, tuple(piece for part in parts for piece in part.written.pieces.get(name, ())))
                for name, (dtype, shape) in descriptions.items()
            }
            folders.publish(folder, Manifest(save_id, all_files, entries, of_all(state.tree, [part.own for part in parts])))


@dataclass(frozen=True)
class _Part:
    """What a process tells the others of its part in a save. own_tensors: dtypes and shapes of `PerProcess` tensors; own: their trees."""

    written: _Written
    own_tensors: dict[str, tuple[str, Shape]]
    own: Sequence[Tree]


def _exchanged(own_part: _Part, tree: Tree, participants: Participants) -> list[_Part]:
    """Gather the parts of all processes. Raises ReplicasDifferError or UnsavableError in all of them where the parts do not agree."""
    rows, digests = zip(*participants.all_gather([asdict(own_part), checksum(canonical(tree))]), strict=True)
    parts = [_from_json(row) for row in rows]
    counts = [len(part.own) for part in parts]
    if len(set(counts)) > 1:
        raise UnsavableError(f"processes have {counts} PerProcess in what they save together: mark the same places in all of them")
    check_equal([part.written.checksums() for part in parts], [part.written.copies for part in parts])
    warn_of_values(tree, digests, participants)
    return parts


def _from_json(row: dict[str, Any]) -> _Part:
    written = row["written"]
    pieces = {name: [Piece(**piece) for piece in tensor_pieces] for name, tensor_pieces in written["pieces"].items()}
    own_tensors = {name: (dtype, tuple(shape)) for name, (dtype, shape) in row["own_tensors"].items()}
    return _Part(_Written(written["files"], pieces, written["copies"]), own_tensors, row["own"])


def _dtype_and_shape(tensor: torch.Tensor) -> tuple[str, Shape]:
    return str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)


def split_into_files(chunks: Sequence[Chunk], shard_bytes: int) -> list[list[Chunk]]:
    """Divide the chunks among shard files, with at most one chunk of a tensor in each file."""
    layers: list[list[Chunk]] = []
    layers_used: Counter[str] = Counter()
    for chunk in chunks:
        if layers_used[chunk.block.name] == len(layers):
            layers.append([])
        layers[layers_used[chunk.block.name]].append(chunk)
        layers_used[chunk.block.name] += 1
    return [shard for layer in layers for shard in _split(layer, shard_bytes)]


def _split(chunks: Sequence[Chunk], shard_bytes: int) -> list[list[Chunk]]:
    shards: list[list[Chunk]] = []
    size = 0
    for chunk in chunks:
        if not shards or size + chunk.block.nbytes > shard_bytes and size:
            shards.append([])
            size = 0
        shards[-1].append(chunk)
        size += chunk.block.nbytes
    # The widest elements first, so that all are aligned.
    return [sorted(shard, key=lambda chunk: -chunk.block.dtype.itemsize) for shard in shards]
