"""Gather whole tensors of a multi-process SPMD program on the host, a part at a time, in an unnamed file instead of memory."""

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
"""Bytes exchanged at a time, of all processes together."""
_ALIGNMENT = 64


def whole_tensors(tensors: Sequence[torch.Tensor], keep: bool, folder: Path | None) -> list[torch.Tensor]:
    """Gather tensors on `xla`, of which each process has a part, as CPU tensors; without `keep` give the arguments back.

    All processes must call, with the same tensors. folder: where the file is that holds them all until the result is gone.
    Raises OSError if it has no room, MismatchError if processes have tensors of other shapes or dtypes.
    """
    participants = spmd_participants()
    tensors_abi.materialize(tensors)
    shards = [sharding.owned_shards(tensor) for tensor in tensors]
    own_shards = [
        [str(tensor.dtype), list(tensor.shape), [[(span.start, span.stop) for span in shard.index] for shard in owned]]
        for tensor, owned in zip(tensors, shards, strict=True)
    ]
    gathered = participants.all_gather(own_shards)
    _check_alike([[tuple(entry[:2]) for entry in entries] for entries in gathered])
    with participants.raise_together():
        targets = _allocate(tensors, folder) if keep else [None] * len(tensors)
    for index, (tensor, owned, target) in enumerate(zip(tensors, shards, targets, strict=True)):
        _gather(tensor, owned, [entries[index][2] for entries in gathered], target, participants)
    return [tensor if target is None else target for tensor, target in zip(tensors, targets, strict=True)]


def _check_alike(kinds: Sequence[Sequence[object]]) -> None:
    for process, kinds_there in enumerate(kinds):
        if kinds_there != kinds[0]:
            first = next(pair for pair in zip_longest(kinds[0], kinds_there) if pair[0] != pair[1])
            raise MismatchError(
                f"processes of one SPMD program save the same tensors together: process 0 has {first[0]}, process {process} {first[1]}"
            )


def _allocate(tensors: Sequence[torch.Tensor], folder: Path | None) -> list[torch.Tensor]:
    """Allocate CPU tensors in a file that nobody else sees. Raises OSError where there is no room for it."""
    starts = [0]
    for tensor in tensors:
        starts.append(starts[-1] + -(-tensor.nbytes // _ALIGNMENT) * _ALIGNMENT)
    with tempfile.TemporaryFile(dir=folder) as file:
        # Allocate all of it now: else writing to mapped memory would kill the process when the disk is full.
        os.posix_fallocate(file.fileno(), 0, max(starts[-1], 1))
        memory = mmap.mmap(file.fileno(), max(starts[-1], 1))
    return [_mapped_like(memory, start, tensor) for start, tensor in zip(starts, tensors, strict=False)]


def _mapped_like(memory: mmap.mmap, start: int, like: torch.Tensor) -> torch.Tensor:
    if not like.nbytes:
        return torch.empty(like.shape, dtype=like.dtype, device="cpu")
    return torch.frombuffer(memory, dtype=torch.uint8, count=like.nbytes, offset=start).view(like.dtype).reshape(like.shape)


def _gather(
    tensor: torch.Tensor,
    shards: Sequence[sharding.OwnedShard],
    spans_by_process: Sequence[Sequence[Spans]],
    into: torch.Tensor | None,
    participants: Participants,
) -> None:
    """Fill `into` with the shards of all processes. spans_by_process: the spans of their shards."""
    if sum(map(len, spans_by_process)) == 1:  # nothing is divided: each has it all
        if into is not None:
            into.copy_(tensor.detach().cpu())
        return
    max_bytes = _EXCHANGED_BYTES // participants.count
    plan = [[part for spans in blocks for part in _parts(spans, tensor.itemsize, max_bytes)] for blocks in spans_by_process]
    data = _data(shards, max_bytes)
    for parts in zip_longest(*plan):
        sizes = [0 if part is None else _count(part) * tensor.itemsize for part in parts]
        # A power of two, for few different sizes: each is a program to compile.
        sent = np.zeros(1 << max(max(sizes) - 1, 0).bit_length(), np.uint8)
        if parts[participants.index] is not None:
            sent[: sizes[participants.index]] = next(data)
        rows = gather_bytes(sent)
        for row, size, part in zip(rows, sizes, parts, strict=True):
            if into is not None and part is not None:
                block = torch.from_numpy(row[:size].copy()).view(tensor.dtype)
                into[tuple(slice(*span) for span in part)] = block.reshape([stop - start for start, stop in part])


def _data(shards: Sequence[sharding.OwnedShard], max_bytes: int) -> Iterator[np.ndarray[tuple[int], np.dtype[np.uint8]]]:
    """Yield the bytes of shards, part by part."""
    for shard in shards:
        data = shard.read()
        for part in _parts([(0, size) for size in data.shape], data.itemsize, max_bytes):
            yield data[tuple(slice(*span) for span in part)].contiguous().reshape(-1).view(torch.uint8).numpy()


def _parts(spans: Sequence[tuple[int, int]], itemsize: int, max_bytes: int) -> Iterator[Spans]:
    """Divide a block into halves, and these into halves, until none has more than `max_bytes`."""
    if _count(spans) * itemsize <= max(max_bytes, itemsize):
        yield tuple(spans)
        return
    dim, (start, stop) = next((dim, span) for dim, span in enumerate(spans) if span[1] - span[0] > 1)
    middle = (start + stop) // 2
    for half in ((start, middle), (middle, stop)):
        yield from _parts([*spans[:dim], half, *spans[dim + 1 :]], itemsize, max_bytes)


def _count(spans: Sequence[tuple[int, int]]) -> int:
    return math.prod(stop - start for start, stop in spans)
