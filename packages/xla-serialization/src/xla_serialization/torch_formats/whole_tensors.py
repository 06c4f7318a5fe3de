"""Whole tensors of an SPMD program of several processes on the host: a part at a time, in a file without a name instead of memory."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path

import numpy as np
import torch

from xla_serialization.checkpoint.local_shards import Spans
from xla_serialization.checkpoint.participants import Participants, gather_bytes, spmd_participants
from xla_serialization.core import sharding
from xla_serialization.core import tensors as tensors_abi
from xla_serialization.errors import MismatchError

_EXCHANGED_BYTES = 64 << 20
"""At a time, of all processes together."""
_ALIGNMENT = 64


def whole_tensors(tensors: Sequence[torch.Tensor], keep: bool, folder: Path | None) -> list[torch.Tensor]:
    """CPU tensors with all elements of tensors on `xla`, which each process has a part of; without `keep` these tensors themselves.

    All processes must call, with the same tensors. folder: where there is room for all of them, until the result is gone.
    Raises OSError if there is not, MismatchError if processes have tensors of other shapes or dtypes.
    """
    participants = spmd_participants()
    tensors_abi.materialize(tensors)
    shards = [sharding.owned_shards(tensor) for tensor in tensors]
    mine = [
        [str(tensor.dtype), list(tensor.shape), [[(one.start, one.stop) for one in shard.index] for shard in found]]
        for tensor, found in zip(tensors, shards, strict=True)
    ]
    gathered = participants.all_gather(mine)
    _check_alike([[tuple(entry[:2]) for entry in entries] for entries in gathered])
    with participants.raise_together():
        places = _room(tensors, folder) if keep else [None] * len(tensors)
    for number, (tensor, found, place) in enumerate(zip(tensors, shards, places, strict=True)):
        _gather(tensor, found, [entries[number][2] for entries in gathered], place, participants)
    return [tensor if place is None else place for tensor, place in zip(tensors, places, strict=True)]


def _check_alike(kinds: Sequence[Sequence[object]]) -> None:
    for process, found in enumerate(kinds):
        if found != kinds[0]:
            first = next(pair for pair in zip_longest(kinds[0], found) if pair[0] != pair[1])
            raise MismatchError(
                f"processes of one SPMD program save the same tensors together: process 0 has {first[0]}, process {process} {first[1]}"
            )


def _room(tensors: Sequence[torch.Tensor], folder: Path | None) -> list[torch.Tensor]:
    """CPU tensors to be filled, in a file that nobody else sees. Raises OSError where there is no room for it."""
    starts = [0]
    for tensor in tensors:
        starts.append(starts[-1] + -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT)
    with tempfile.TemporaryFile(dir=folder) as file:
        # All of it now: what is only written to memory of a file would end the process when the disk is full.
        os.posix_fallocate(file.fileno(), 0, max(starts[-1], 1))
        memory = mmap.mmap(file.fileno(), max(starts[-1], 1))
    return [_at(memory, start, tensor) for start, tensor in zip(starts, tensors, strict=False)]


def _at(memory: mmap.mmap, start: int, like: torch.Tensor) -> torch.Tensor:
    if not like.nbytes:
        return torch.empty(like.shape, dtype=like.dtype, device="cpu")
    return torch.frombuffer(memory, dtype=torch.uint8, count=like.nbytes, offset=start).view(like.dtype).reshape(like.shape)


def _gather(
    tensor: torch.Tensor,
    shards: Sequence[sharding.OwnedShard],
    everywhere: Sequence[Sequence[Spans]],
    into: torch.Tensor | None,
    participants: Participants,
) -> None:
    """Fill `into` with what all processes have. everywhere: the places of their shards."""
    if sum(map(len, everywhere)) == 1:  # nothing is divided: each has it all
        if into is not None:
            into.copy_(tensor.detach().cpu())
        return
    most = _EXCHANGED_BYTES // participants.count
    plan = [[part for spans in found for part in _parts(spans, tensor.itemsize, most)] for found in everywhere]
    data = _data(shards, most)
    for parts in zip_longest(*plan):
        sizes = [0 if part is None else _count(part) * tensor.itemsize for part in parts]
        # Few sizes: each is a program.
        sent = np.zeros(1 << max(max(sizes) - 1, 0).bit_length(), np.uint8)
        if parts[participants.index] is not None:
            sent[: sizes[participants.index]] = next(data)
        rows = gather_bytes(sent)
        for row, size, part in zip(rows, sizes, parts, strict=True):
            if into is not None and part is not None:
                block = torch.from_numpy(row[:size].copy()).view(tensor.dtype)
                into[tuple(slice(*span) for span in part)] = block.reshape([stop - start for start, stop in part])


def _data(shards: Sequence[sharding.OwnedShard], most: int) -> Iterator[np.ndarray[tuple[int], np.dtype[np.uint8]]]:
    """The bytes of the parts of shards, one after the other."""
    for shard in shards:
        held = shard.read()
        for part in _parts([(0, size) for size in held.shape], held.itemsize, most):
            yield held[tuple(slice(*span) for span in part)].contiguous().reshape(-1).view(torch.uint8).numpy()


def _parts(spans: Sequence[tuple[int, int]], itemsize: int, most: int) -> Iterator[Spans]:
    """Halves of a block, and halves of these, until none has more than `most` bytes."""
    if _count(spans) * itemsize <= max(most, itemsize):
        yield tuple(spans)
        return
    dim, (start, stop) = next((dim, span) for dim, span in enumerate(spans) if span[1] - span[0] > 1)
    middle = (start + stop) // 2
    for half in ((start, middle), (middle, stop)):
        yield from _parts([*spans[:dim], half, *spans[dim + 1 :]], itemsize, most)


def _count(spans: Sequence[tuple[int, int]]) -> int:
    return math.prod(stop - start for start, stop in spans)
