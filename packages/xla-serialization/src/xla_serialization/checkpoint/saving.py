"""Save a nesting as a checkpoint, one tensor at a time from device to disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from xla_serialization.checkpoint.participants import Participants, is_writer, spans_processes, spmd_participants
from xla_serialization.core import sharding
from xla_serialization.core import tensors as tensors_abi
from xla_serialization.errors import UnsavableError
from xla_serialization.format import folder as folders
from xla_serialization.format.dtypes import name_of
from xla_serialization.format.limits import MOST_DIMS
from xla_serialization.format.manifest import Manifest, Piece, Shape, TensorEntry, Tree
from xla_serialization.format.shards import Block, ShardWriter, ordered
from xla_serialization.format.tree import encode, free_name, where
from xla_serialization.progress import Meter, Progress, no_progress

SHARD_BYTES = 5_000_000_000


@dataclass(frozen=True)
class FlatState:
    """A state to save: the tree of its nesting, and its tensors by name."""

    tree: Tree
    tensors: dict[str, torch.Tensor]

    @property
    def nbytes(self) -> int:
        """Of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


@dataclass(frozen=True)
class Chunk:
    """The block of a tensor at `offset`, as it will be stored. read: copies it to the CPU."""

    tensor: str
    block: Block
    offset: Shape
    read: Callable[[], torch.Tensor]


Chunks = dict[str, Chunk]
"""By the names of their blocks."""


def flatten(data: Any) -> FlatState:
    """Split a nesting into its tree and its tensors, named; aliases of the same elements are one. Raises UnsavableError."""
    named: dict[str, torch.Tensor] = {}
    seen: dict[Hashable, str] = {}

    def name(tensor: torch.Tensor, keys: tuple[str, ...]) -> str:
        _check(tensor, keys)
        key = _key(tensor)
        if key not in seen:
            seen[key] = free_name(keys, named)
            # Alive until all are named: ids and addresses of a tensor that is gone would be used again.
            named[seen[key]] = tensor
        return seen[key]

    return FlatState(encode(data, name), named)


def _check(tensor: torch.Tensor, keys: tuple[str, ...]) -> None:
    if tensor.layout is not torch.strided or tensor.is_quantized or name_of(tensor.dtype) is None:
        what = "quantized" if tensor.is_quantized else str(tensor.layout if tensor.layout is not torch.strided else tensor.dtype)
        raise UnsavableError(f"{where(keys)}: a {what} tensor cannot be saved; save a dense tensor of numbers")
    if tensor.dim() > MOST_DIMS:
        raise UnsavableError(f"{where(keys)}: a tensor of {tensor.dim()} dimensions, of {MOST_DIMS} at most; save a reshaped one")
    if tensor.device.type == "meta":
        raise UnsavableError(f"{where(keys)}: a tensor on the meta device has no data to save")


def _key(tensor: torch.Tensor) -> Hashable:
    """Equal exactly for tensors that alias the same elements of the same memory."""
    inner = unwrapped(tensor)
    if inner.device.type == "xla":
        return tensors_abi.alias_key(inner)
    if inner.device.type == "meta" or not inner.numel():
        return id(tensor)
    return (inner.device, inner.data_ptr(), inner.dtype, inner.shape, inner.stride(), inner.is_conj(), inner.is_neg())


def unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor that a wrapper (XLAShardedTensor) stands for; any other as it is."""
    inner: torch.Tensor = getattr(tensor, "global_tensor", tensor)
    return inner


def save(
    data: Any,
    path: str | os.PathLike[str],
    master_only: bool = True,
    global_master: bool = False,
    *,
    shard_bytes: int = SHARD_BYTES,
    progress: Progress = no_progress,
) -> None:
    """Save a nesting of tensors and plain values in the folder `path`, in place of what it held.

    Readers, and a program that is killed, see the old checkpoint or the new one, whole. On the host there is one tensor at a time.
    Of replicas, each host's master writes (global_master: the job's only; not master_only: all, each to a path of its own), others compute
    the tensors and write nothing. Processes of one SPMD program save together: all must call, with one path that all can write to.
    shard_bytes: of a file, unless one tensor is larger. progress: called after each tensor.
    Raises UnsavableError for what a checkpoint cannot hold, OSError if it cannot be written: then nothing has changed.
    """
    participants = spmd_participants()
    with participants.raise_together():
        state = flatten(data)
        chunks = local_chunks(state, participants)
    if participants.count > 1 or is_writer(master_only, global_master):
        write_chunks(state, chunks, Path(path), participants, shard_bytes, progress)


def local_chunks(state: FlatState, participants: Participants) -> Chunks:
    """The chunks that this process will write. Computes the tensors, in one execution per device; copies nothing until they are read."""
    tensors_abi.materialize([unwrapped(tensor) for tensor in state.tensors.values() if tensor.device.type == "xla"])
    found = [chunk for name, tensor in state.tensors.items() for chunk in _chunks_of(name, tensor, participants)]
    return {chunk.block.name: chunk for chunk in found}


def write_chunks(
    state: FlatState,
    chunks: Chunks,
    folder: Path,
    participants: Participants,
    shard_bytes: int = SHARD_BYTES,
    progress: Progress = no_progress,
) -> None:
    """Save the chunks; processes that save together all call it. Records and runs no programs, so that it may go on beside them."""
    if shard_bytes < 1:
        raise ValueError(f"shard_bytes is {shard_bytes}, must be positive")
    shards = split_into_files([chunk.block for chunk in chunks.values()], shard_bytes)
    counts, save_id = _numbered(len(shards), participants)
    first = 1 + sum(counts[: participants.index])
    names = [folders.shard_name(first + number, sum(counts), save_id) for number in range(len(shards))]
    files: dict[str, int] = {}
    pieces: dict[str, list[Piece]] = {}
    meter = Meter(progress, sum(chunk.block.nbytes for chunk in chunks.values()))
    with ExitStack() as stack:
        try:
            with participants.raise_together():
                if participants.index == 0:
                    # By one of them for all: the lock is the folder's, and the others would find it taken.
                    stack.enter_context(folders.prepared(folder))
                else:
                    folders.prepare(folder)
            # Only now: a program that had locked the folder before removes, at its end, what it does not know.
            with participants.raise_together():
                for file, shard in zip(names, shards, strict=True):
                    _write_shard(folder / file, [chunks[block.name] for block in shard], files, pieces, meter)
            _publish(state, folder, save_id, files, pieces, participants)
        except BaseException:
            # What fails after the rename, or Ctrl-C there, must not take files from those who read them already.
            if not folders.is_published(folder, save_id):
                folders.remove(folder, names)
            raise


def _numbered(shards: int, participants: Participants) -> tuple[list[int], str]:
    """The number of shards that each process writes, and the id of this save."""
    # Each makes an id, and the first one's counts: one exchange less.
    gathered = participants.all_gather([shards, folders.new_id()])
    return [count for count, _ in gathered], gathered[0][1]


def _write_shard(path: Path, chunks: Sequence[Chunk], files: dict[str, int], pieces: dict[str, list[Piece]], meter: Meter) -> None:
    with ShardWriter(path, [chunk.block for chunk in chunks]) as writer:
        for chunk in chunks:
            checksum = writer.write(chunk.read())
            pieces.setdefault(chunk.tensor, []).append(Piece(path.name, chunk.block.name, chunk.offset, chunk.block.shape, checksum))
            meter.add(chunk.block.nbytes)
    files[path.name] = writer.nbytes


def _publish(
    state: FlatState, folder: Path, save_id: str, files: dict[str, int], pieces: dict[str, list[Piece]], participants: Participants
) -> None:
    gathered = participants.all_gather([files, {name: [asdict(piece) for piece in found] for name, found in pieces.items()}])
    with participants.raise_together():
        if participants.index == 0:
            all_files = {file: size for files, _ in gathered for file, size in files.items()}
            entries = {
                name: _entry(tensor, [piece for _, found in gathered for piece in found.get(name, ())])
                for name, tensor in state.tensors.items()
            }
            folders.publish(folder, Manifest(save_id, all_files, entries, state.tree))


def _entry(tensor: torch.Tensor, pieces: Sequence[dict[str, Any]]) -> TensorEntry:
    return TensorEntry(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tuple(Piece(**piece) for piece in pieces))


def _chunks_of(name: str, tensor: torch.Tensor, participants: Participants) -> list[Chunk]:
    """The chunks of a tensor that this process saves."""
    inner = unwrapped(tensor)
    if inner.device.type == "xla" and spans_processes():
        return [_shard_chunk(name, inner, part) for part in sharding.owned_shards(inner)]
    if participants.index:
        return []
    return [Chunk(name, Block(name, inner.dtype, tuple(inner.shape)), (0,) * inner.dim(), lambda: inner.detach().cpu())]


def _shard_chunk(name: str, tensor: torch.Tensor, part: sharding.OwnedShard) -> Chunk:
    offset = tuple(one.start for one in part.index)
    shape = tuple(one.stop - one.start for one in part.index)
    stored = name if shape == tuple(tensor.shape) else f"{name}@{','.join(map(str, offset))}"
    return Chunk(name, Block(stored, tensor.dtype, shape), offset, part.read)


def split_into_files(blocks: Sequence[Block], shard_bytes: int) -> list[list[Block]]:
    """The blocks of each shard file."""
    shards: list[list[Block]] = []
    size = 0
    for block in blocks:
        if not shards or size + block.nbytes > shard_bytes and size:
            shards.append([])
            size = 0
        shards[-1].append(block)
        size += block.nbytes
    return [ordered(shard) for shard in shards]
