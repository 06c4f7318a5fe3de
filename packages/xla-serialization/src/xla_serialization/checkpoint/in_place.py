"""Load into existing tensors, on any device and with any sharding: only the shards of this process's devices are read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import islice
from typing import Any

import torch

from xla_serialization.checkpoint.dtensors import is_dtensor, local_block
from xla_serialization.checkpoint.loading import Checkpoint
from xla_serialization.checkpoint.local_shards import local_spans, write_local_shards
from xla_serialization.checkpoint.participants import Participants, spmd_participants
from xla_serialization.checkpoint.state import FlatState, flatten, unwrapped
from xla_serialization.core import sharding
from xla_serialization.errors import MismatchError
from xla_serialization.format.dtypes import DTYPES
from xla_serialization.format.manifest import INDEX
from xla_serialization.format.matching import matched, own_part
from xla_serialization.format.per_process import with_holders_filled
from xla_serialization.format.tree import decode
from xla_serialization.progress import Meter, Progress, no_progress

_SHOWN = 5


def load_into(state: Any, path: str | os.PathLike[str], *, verify: bool = True, progress: Progress = no_progress) -> Any:
    """Write a checkpoint's tensors into the tensors of `state`, a nesting like the saved one; gives the saved nesting with those tensors.

    Of sharded tensors, only the shards of this process's devices are read from the files: the mesh, and the number of devices
    and processes, may be others than when saving. In the place of a `PerProcess` stands this process's own value.
    In a folder that another program wrote, tensors are found by their names.
    verify: compare checksums of what is read whole. progress: called after each tensor.
    Raises MismatchError, which says where, for other keys, shapes or dtypes, before anything is written; else as `load`.
    """
    return load_part(state, path, spmd_participants(), verify, progress)


def load_part(
    state: Any, path: str | os.PathLike[str], participants: Participants, verify: bool = True, progress: Progress = no_progress
) -> Any:
    """As `load_into`, for one of several processes that load together."""
    checkpoint = Checkpoint(path, verify)
    flat = flatten(state, participants.index)
    mine_whole, tree = with_holders_filled(flat.tree, lambda index: flat.own[index]), checkpoint.manifest.tree
    if checkpoint.manifest.id:
        tree = own_part(flat.tree, tree, participants.index, participants.count) if flat.own else tree
        pairs = matched(mine_whole, tree)
    else:
        tree, pairs = mine_whole, _named_alike(flat, checkpoint)
    names: dict[str, str] = {}
    for mine, theirs in pairs:
        if names.setdefault(mine, theirs) != theirs:
            raise MismatchError(f"{mine}: one tensor, which stands where the checkpoint has two, {names[mine]} and {theirs}")
        _check(mine, flat.tensors[mine], checkpoint, theirs)
    meter = Meter(progress, sum(checkpoint.manifest.tensors[theirs].nbytes for theirs in names.values()))
    for mine, theirs in names.items():
        fill(flat.tensors[mine], checkpoint, theirs)
        meter.add(checkpoint.manifest.tensors[theirs].nbytes)
    filled = {theirs: flat.tensors[mine] for mine, theirs in names.items()}
    return decode(tree, lambda name: filled[name] if name in filled else checkpoint[name], str(checkpoint.path / INDEX))


def _named_alike(flat: FlatState, checkpoint: Checkpoint) -> Iterator[tuple[str, str]]:
    """Pair each tensor's name with itself: other programs save no nesting, but name tensors by the keys that lead to them, as we do."""
    for name in flat.tensors:
        if name not in checkpoint:
            raise MismatchError(f"{name}: not in {checkpoint.path}, which has {', '.join(islice(checkpoint, _SHOWN))}, …")
        yield name, name


def _check(mine: str, tensor: torch.Tensor, checkpoint: Checkpoint, theirs: str) -> None:
    entry = checkpoint.manifest.tensors[theirs]
    if tuple(tensor.shape) != entry.shape or tensor.dtype is not DTYPES[entry.dtype]:
        expected = f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
        raise MismatchError(f"{mine}: the checkpoint has {entry.dtype}{list(entry.shape)}, the tensor is {expected}")


def fill(tensor: torch.Tensor, checkpoint: Checkpoint, name: str) -> None:
    """Write a checkpoint's tensor into `tensor`, of its shape and dtype."""
    inner = unwrapped(tensor)
    if is_dtensor(inner):
        block = local_block(inner)
        if block is not None:
            index = tuple(slice(start, start + size) for start, size in zip(block.offset, block.data.shape, strict=True))
            with torch.no_grad():
                block.data.copy_(checkpoint.part(name, index))
        return
    if inner.device.type == "xla" and sharding.sharding_of(inner) is not None:
        local = set(local_spans(inner))
        write_local_shards(inner, {spans: checkpoint.part(name, tuple(slice(*span) for span in spans)) for spans in local})
        return
    with torch.no_grad():
        inner.copy_(checkpoint.read(name, inner.device))
