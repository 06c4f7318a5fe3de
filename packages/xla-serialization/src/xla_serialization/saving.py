"""Save a nesting as a checkpoint, one tensor at a time from device to disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from xla_serialization.core import abi
from xla_serialization.errors import UnsavableError
from xla_serialization.format import folder as folders
from xla_serialization.format.dtypes import name_of
from xla_serialization.format.limits import MOST_DIMS
from xla_serialization.format.manifest import Manifest, Piece, Shape, TensorEntry, Tree
from xla_serialization.format.shards import Block, ShardWriter, ordered
from xla_serialization.format.tree import encode, free_name, where
from xla_serialization.masters import writes
from xla_serialization.processes import Party, party, spread
from xla_serialization.progress import Meter, Progress, nobody

SHARD_BYTES = 5_000_000_000


@dataclass(frozen=True)
class Plan:
    """The plan of a save: the nesting without its tensors, and these by name."""

    tree: Tree
    tensors: dict[str, torch.Tensor]

    @property
    def nbytes(self) -> int:
        """Of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())


@dataclass(frozen=True)
class Part:
    """The block of a tensor at `offset`, as it will be stored. read: it, on the CPU."""

    tensor: str
    block: Block
    offset: Shape
    read: Callable[[], torch.Tensor]


Parts = dict[str, Part]
"""By the names of their blocks."""


def plan(data: Any) -> Plan:
    """Name the tensors of a nesting. Those that show the same are one. Raises UnsavableError."""
    named: dict[str, torch.Tensor] = {}
    seen: dict[Hashable, str] = {}

    def name(tensor: torch.Tensor, keys: tuple[str, ...]) -> str:
        _check(tensor, keys)
        key = _key(tensor)
        if key not in seen:
            seen[key] = free_name(keys, named)
            named[seen[key]] = tensor
        return seen[key]

    return Plan(encode(data, name), named)


def _check(tensor: torch.Tensor, keys: tuple[str, ...]) -> None:
    if tensor.layout is not torch.strided or tensor.is_quantized or name_of(tensor.dtype) is None:
        what = "quantized" if tensor.is_quantized else str(tensor.layout if tensor.layout is not torch.strided else tensor.dtype)
        raise UnsavableError(f"{where(keys)}: a {what} tensor cannot be saved; save a dense tensor of numbers")
    if tensor.dim() > MOST_DIMS:
        raise UnsavableError(f"{where(keys)}: a tensor of {tensor.dim()} dimensions, of {MOST_DIMS} at most; save a reshaped one")
    if tensor.device.type == "meta":
        raise UnsavableError(f"{where(keys)}: a tensor on the meta device has no data to save")


def _key(tensor: torch.Tensor) -> Hashable:
    """Equal exactly for tensors that show the same elements of the same memory."""
    inner = unwrapped(tensor)
    if inner.device.type == "xla":
        return abi.shown_key(inner)
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
    progress: Progress = nobody,
) -> None:
    """Save a nesting of tensors and plain values in the folder `path`, in place of what it held.

    Readers, and a program that is killed, see the old checkpoint or the new one, whole. On the host there is one tensor at a time.
    Of replicas, each host's master writes (global_master: the job's only; not master_only: all, each to a path of its own), others compute
    the tensors and write nothing. Processes of one SPMD program save together: all must call, with one path that all can write to.
    shard_bytes: of a file, unless one tensor is larger. progress: called after each tensor.
    Raises UnsavableError for what a checkpoint cannot hold, OSError if it cannot be written: then nothing has changed.
    """
    together = party()
    with together.agreed():
        planned = plan(data)
        parts = parts_of(planned, together)
    if together.count > 1 or writes(master_only, global_master):
        write_parts(planned, parts, Path(path), together, shard_bytes, progress)


def parts_of(planned: Plan, together: Party) -> Parts:
    """The parts that this process will write. Computes the tensors, in one execution per device; copies nothing until they are read."""
    abi.computed([unwrapped(tensor) for tensor in planned.tensors.values() if tensor.device.type == "xla"])
    found = [part for name, tensor in planned.tensors.items() for part in _parts(name, tensor, together)]
    return {part.block.name: part for part in found}


def write_parts(
    planned: Plan, parts: Parts, folder: Path, together: Party, shard_bytes: int = SHARD_BYTES, progress: Progress = nobody
) -> None:
    """Save the parts; processes that save together all call it. Records and runs no programs, so that it may go on beside them."""
    if shard_bytes < 1:
        raise ValueError(f"shard_bytes is {shard_bytes}, must be positive")
    shards = divided([part.block for part in parts.values()], shard_bytes)
    counts, save_id = _numbered(len(shards), together)
    first = 1 + sum(counts[: together.index])
    names = [folders.shard_name(first + number, sum(counts), save_id) for number in range(len(shards))]
    files: dict[str, int] = {}
    pieces: dict[str, list[Piece]] = {}
    meter = Meter(progress, sum(part.block.nbytes for part in parts.values()))
    with ExitStack() as stack:
        try:
            with together.agreed():
                if together.index == 0:
                    stack.enter_context(folders.prepared(folder))
                else:
                    folders.prepare(folder)
            with together.agreed():  # only now: a program that held the folder before removes, at its end, what it does not know
                for file, shard in zip(names, shards, strict=True):
                    _write_shard(folder / file, [parts[block.name] for block in shard], files, pieces, meter)
            _publish(planned, folder, save_id, files, pieces, together)
        except BaseException:
            if not folders.holds(folder, save_id):
                folders.remove(folder, names)
            raise


def _numbered(shards: int, together: Party) -> tuple[list[int], str]:
    """The number of shards that each process writes, and the id of this save."""
    told = together.exchange([shards, folders.new_id()])
    return [count for count, _ in told], told[0][1]


def _write_shard(path: Path, parts: Sequence[Part], files: dict[str, int], pieces: dict[str, list[Piece]], meter: Meter) -> None:
    with ShardWriter(path, [part.block for part in parts]) as writer:
        for part in parts:
            checksum = writer.write(part.read())
            pieces.setdefault(part.tensor, []).append(Piece(path.name, part.block.name, part.offset, part.block.shape, checksum))
            meter.add(part.block.nbytes)
    files[path.name] = writer.nbytes


def _publish(planned: Plan, folder: Path, save_id: str, files: dict[str, int], pieces: dict[str, list[Piece]], together: Party) -> None:
    told = together.exchange([files, {name: [asdict(piece) for piece in found] for name, found in pieces.items()}])
    with together.agreed():
        if together.index == 0:
            all_files = {file: size for files, _ in told for file, size in files.items()}
            entries = {
                name: _entry(tensor, [piece for _, found in told for piece in found.get(name, ())])
                for name, tensor in planned.tensors.items()
            }
            folders.publish(folder, Manifest(save_id, all_files, entries, planned.tree))


def _entry(tensor: torch.Tensor, pieces: Sequence[dict[str, Any]]) -> TensorEntry:
    return TensorEntry(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tuple(Piece(**piece) for piece in pieces))


def _parts(name: str, tensor: torch.Tensor, together: Party) -> list[Part]:
    """The parts of a tensor that this process saves."""
    inner = unwrapped(tensor)
    if inner.device.type == "xla" and spread():
        return [_divided_part(name, inner, part) for part in abi.owned_parts(inner)]
    if together.index:
        return []
    return [Part(name, Block(name, inner.dtype, tuple(inner.shape)), (0,) * inner.dim(), lambda: inner.detach().cpu())]


def _divided_part(name: str, tensor: torch.Tensor, part: abi.OwnedPart) -> Part:
    offset = tuple(one.start for one in part.index)
    shape = tuple(one.stop - one.start for one in part.index)
    stored = name if shape == tuple(tensor.shape) else f"{name}@{','.join(map(str, offset))}"
    return Part(name, Block(stored, tensor.dtype, shape), offset, part.read)


def divided(blocks: Sequence[Block], shard_bytes: int) -> list[list[Block]]:
    """The blocks of each shard."""
    shards: list[list[Block]] = []
    size = 0
    for block in blocks:
        if not shards or size + block.nbytes > shard_bytes and size:
            shards.append([])
            size = 0
        shards[-1].append(block)
        size += block.nbytes
    return [ordered(shard) for shard in shards]
