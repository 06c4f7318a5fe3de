"""Read a checkpoint: all of it, some tensors, or parts of them; to the CPU or straight to a device."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

import torch_xla.core.xla_model as xm
from xla_serialization.core import tensors
from xla_serialization.errors import MissingCheckpointError
from xla_serialization.format import folder as folders
from xla_serialization.format.dtypes import DTYPES
from xla_serialization.format.foreign import open_foreign
from xla_serialization.format.manifest import INDEX, ForeignIndexError, Piece, Shape, TensorEntry
from xla_serialization.format.shards import READERS, Block, ShardReader, new
from xla_serialization.format.tree import decode
from xla_serialization.progress import Meter, Progress, no_progress


class Checkpoint(Mapping[str, torch.Tensor]):
    """An open checkpoint: a mapping from names to CPU tensors, each read when it is asked for. Of this package, or of another program: a
    folder of safetensors files, also those that torch.distributed.checkpoint divides among processes; these have no checksums.

    Later saves to the same folder do not change it. manifest: what it holds.
    """

    def __init__(self, path: str | os.PathLike[str], verify: bool = True) -> None:
        """verify: compare checksums of what is read whole.

        Raises MissingCheckpointError, DamagedCheckpointError, NewerCheckpointError, OSError.
        """
        self.path = Path(path)
        try:
            self.manifest, self._shards = folders.open_shards(self.path)
        except (MissingCheckpointError, ForeignIndexError) as error:
            found = open_foreign(self.path)
            if found is None:
                raise error from None
            self.manifest, self._shards = found
        self._verify = verify
        # All headers now: what does not fit is found before half of a model is on the device.
        for entry in self.manifest.tensors.values():
            for piece in entry.pieces:
                self._shard(piece).check(block_of(entry, piece))

    @property
    def bytes_read(self) -> int:
        """Of tensors' data, so far."""
        return sum(shard.bytes_read for shard in self._shards.values())

    def __getitem__(self, name: str) -> torch.Tensor:
        """A CPU tensor of its own memory. Raises KeyError, DamagedCheckpointError."""
        return self.read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.manifest.tensors)

    def __contains__(self, name: object) -> bool:
        return name in self.manifest.tensors

    def __len__(self) -> int:
        return len(self.manifest.tensors)

    def read(self, name: str, device: torch.device | str = "cpu") -> torch.Tensor:
        """A whole tensor on a device. Raises as `[name]`, and what the device raises."""
        return _sent(self.part(name, ()), torch.device(device))

    def mapped(self, name: str) -> torch.Tensor:
        """As `[name]`, but a tensor of one piece is mapped from the file, and takes memory only where it is written to: the file stays
        as it is. A later save does not change it; one who writes into the file, or cuts it off, does.
        """
        entry = self._entry(name)
        return self[name] if len(entry.pieces) > 1 else self._mapped(entry, None)

    def _mapped(self, entry: TensorEntry, found: str | None) -> torch.Tensor:
        """found: the checksum of its piece, where that has been computed."""
        (piece,) = entry.pieces
        return self._shard(piece).mapped(block_of(entry, piece), self._wanted(piece), found)

    def _checksum(self, entry: TensorEntry) -> str | None:
        """Of what will be mapped and compared."""
        (piece, *more) = entry.pieces
        return None if more or self._wanted(piece) is None else self._shard(piece).checksum(block_of(entry, piece))

    def part(self, name: str, index: tuple[slice, ...]) -> torch.Tensor:
        """`[name][index]` of slices without steps, on the CPU; of the files only that is read.

        Pieces that are read whole are verified. Raises KeyError, IndexError for too many slices, ValueError for steps,
        DamagedCheckpointError.
        """
        entry = self._entry(name)
        index = _whole_index(index, entry.shape)
        shape = tuple(one.stop - one.start for one in index)
        found: torch.Tensor | None = None
        for piece in entry.pieces:
            common = [
                (max(one.start, start), min(one.stop, start + size))
                for one, start, size in zip(index, piece.offset, piece.shape, strict=True)
            ]
            if any(start >= stop for start, stop in common):
                continue
            there = tuple(slice(start - one.start, stop - one.start) for (start, stop), one in zip(common, index, strict=True))
            inside = tuple(slice(start - offset, stop - offset) for (start, stop), offset in zip(common, piece.offset, strict=True))
            block, shard = block_of(entry, piece), self._shard(piece)
            whole = all((one.start, one.stop) == (0, size) for one, size in zip(inside, piece.shape, strict=True))
            # All that is wanted is in one piece: no second copy of it on the host.
            if whole and piece.shape == shape:
                return shard.read(block, self._wanted(piece))
            if found is None:
                found = new(DTYPES[entry.dtype], shape)
            found[there] = shard.mapped(block, self._wanted(piece)) if whole else shard.part(block, inside)
            shard.forget(block)
        return new(DTYPES[entry.dtype], shape) if found is None else found

    def _wanted(self, piece: Piece) -> str | None:
        return piece.checksum if self._verify and self.manifest.id else None

    def _entry(self, name: str) -> TensorEntry:
        return self.manifest.tensors[name]

    def _shard(self, piece: Piece) -> ShardReader:
        return self._shards[piece.file]

    def nesting(self, device: torch.device | str = "cpu", progress: Progress = no_progress, mmap: bool = False) -> Any:
        """Rebuild what was saved, with its tensors on a device (not NumPy arrays); one that was saved twice is one again.

        mmap: as `mapped`, on the CPU only.
        """
        if mmap and torch.device(device).type != "cpu":
            raise ValueError(f"mmap=True is for tensors on the CPU, not on {device}, where one at a time goes without")
        meter = Meter(progress, self.manifest.nbytes)
        known = self._all_mapped(meter) if mmap else {}

        def find(name: str) -> torch.Tensor:
            if name not in known:
                known[name] = self.read(name, device)
                meter.add(known[name].nbytes)
            return known[name]

        return decode(self.manifest.tree, find, str(self.path / INDEX))

    def _all_mapped(self, meter: Meter) -> dict[str, torch.Tensor]:
        """All tensors, as `mapped`. Several checksums are computed at a time: one core takes longer for them than memory does."""
        known = {}
        with ThreadPoolExecutor(READERS) as pool:
            entries = self.manifest.tensors
            for (name, entry), found in zip(entries.items(), pool.map(self._checksum, entries.values()), strict=True):
                known[name] = self[name] if len(entry.pieces) > 1 else self._mapped(entry, found)
                meter.add(known[name].nbytes)
        return known


def _whole_index(index: tuple[slice, ...], shape: Shape) -> tuple[slice, ...]:
    """A slice with start and stop for each dimension."""
    if len(index) > len(shape):
        raise IndexError(f"{len(index)} slices for a tensor of {len(shape)} dimensions")
    if any(one.step not in (None, 1) for one in index):
        raise ValueError(f"{index}: parts are read without steps; slice what is read")
    spans = [one.indices(size) for one, size in zip((*index, *[slice(None)] * (len(shape) - len(index))), shape, strict=True)]
    return tuple(slice(start, max(start, stop)) for start, stop, _ in spans)


def _sent(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """On a device, wholly: a transfer that goes on after the call keeps memory on the host, and there would soon be several."""
    if device.type != "xla":
        return tensor.to(device)
    there = tensors.tensor_from_host(tensor, device)
    xm.unlazy([there])
    return there


def block_of(entry: TensorEntry, piece: Piece) -> Block:
    """A piece as its shard holds it."""
    return Block(piece.name, DTYPES[entry.dtype], piece.shape)


def load(
    path: str | os.PathLike[str],
    *,
    device: torch.device | str = "cpu",
    verify: bool = True,
    mmap: bool = False,
    progress: Progress = no_progress,
) -> Any:
    """Load what `save` saved, in the same nesting, one tensor at a time from disk to `device`. No code from the files is run.

    verify: compare each tensor's checksum. mmap: map CPU tensors from files, as `Checkpoint.mapped`. progress: called after each tensor.
    Raises MissingCheckpointError (FileNotFoundError), DamagedCheckpointError (RuntimeError) that names file and tensor,
    NewerCheckpointError, and ValueError for mmap on another device.
    """
    return Checkpoint(path, verify).nesting(device, progress, mmap)
