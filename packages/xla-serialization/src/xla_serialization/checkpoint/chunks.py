"""Chunks: the blocks of a state's tensors that this process has, as they will be stored."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from xla_serialization.checkpoint.dtensors import is_dtensor, local_block, local_part
from xla_serialization.checkpoint.participants import Participants, spans_processes
from xla_serialization.checkpoint.state import FlatState, unwrapped
from xla_serialization.core import sharding
from xla_serialization.core import tensors as tensors_abi
from xla_serialization.errors import UnsavableError
from xla_serialization.format.manifest import Shape
from xla_serialization.format.shards import Block


@dataclass(frozen=True, slots=True)
class Chunk:
    """The block of a tensor at `offset`, as it will be stored, under the tensor's name. read: copies it to the CPU."""

    block: Block
    offset: Shape
    read: Callable[[], torch.Tensor]


Chunks = dict[str, Chunk]
"""Chunks by the key that `key_of` makes of the tensor's name and the offset."""


def key_of(tensor: str, offset: Sequence[int]) -> str:
    """Make the key of a tensor's block. No tensor has such a name (FORMAT.md §3)."""
    return f"{tensor}@{','.join(map(str, offset))}"


def local_chunks(state: FlatState, participants: Participants) -> Chunks:
    """Make the chunks that this process has, in an SPMD program those that it will write. Computes the tensors in one execution per device,
    and copies nothing until they are read. Raises UnsavableError for a DTensor over processes that do not save together, and for a tensor
    of all processes inside a `PerProcess`.
    """
    local = [local_part(unwrapped(tensor)) for tensor in state.tensors.values()]
    tensors_abi.materialize([tensor for tensor in local if tensor.device.type == "xla"])
    chunks = [chunk for name, tensor in state.tensors.items() for chunk in _chunks_of(name, tensor, state, participants)]
    return {key_of(chunk.block.name, chunk.offset): chunk for chunk in chunks}


def _chunks_of(name: str, tensor: torch.Tensor, state: FlatState, participants: Participants) -> list[Chunk]:
    inner, own = unwrapped(tensor), name in state.own_tensors
    shared = is_dtensor(inner) or (inner.device.type == "xla" and spans_processes())
    if shared and own:
        raise UnsavableError(f"{name}: one tensor of all processes, each of which has a part: leave out the PerProcess around it")
    if is_dtensor(inner):
        return _block_chunks(name, inner, participants)
    if shared:
        return [_shard_chunk(name, inner, part) for part in sharding.owned_shards(inner)]
    # Processes of one SPMD program have equal tensors on their hosts: the first process saves its own.
    if participants.index and spans_processes() and not own:
        return []
    return [Chunk(Block(name, inner.dtype, tuple(inner.shape)), (0,) * inner.dim(), lambda: inner.detach().cpu())]


def _block_chunks(name: str, tensor: torch.Tensor, participants: Participants) -> list[Chunk]:
    size = tensor.device_mesh.size()  # type: ignore[attr-defined]
    if size > participants.count:
        raise UnsavableError(
            f"{name}: a DTensor over {size} processes, and {participants.count} save together: save it with a CheckpointManager in all of "
            "them, or its full_tensor()"
        )
    block = local_block(tensor)
    if block is None:
        return []
    data = block.data
    return [Chunk(Block(name, tensor.dtype, tuple(data.shape)), block.offset, lambda: data.detach().cpu())]


def _shard_chunk(name: str, tensor: torch.Tensor, part: sharding.OwnedShard) -> Chunk:
    shape = tuple(span.stop - span.start for span in part.index)
    return Chunk(Block(name, tensor.dtype, shape), tuple(span.start for span in part.index), part.read)
