"""Read a checkpoint: all of it, some tensors, or parts of tensors, to the CPU or to a device."""

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
    """An open checkpoint: a mapping from names to CPU tensors, each read when it is asked for. This package wrote it, or another program
    wrote it as a folder of safetensors files, without checksums (also one that torch.distributed.checkpoint divided among processes).

    Later saves to the same folder do not change it. manifest: describes its tensors and their nesting.
    """

    def __init__(self, path: str | os.PathLike[str], verify: bool = True) -> None:
        """verify: compare checksums of what is read whole.

        Raises MissingCheckpointError, DamagedCheckpointError, NewerCheckpointError, OSError.
        """
        self.path = Path(path)
        try:
            self.manifest, self._shards = folders.open_shards(self.path)
        except (MissingCheckpointError, ForeignIndexError) as error:
            foreign = open_foreign(self.path)
            if foreign is None:
                raise error from None
            self.manifest, self._shards = foreign
        self._verify = verify
        # Check all headers now, so that an error comes before half of a model is on the device.
        for entry in self.manifest.tensors.values():
            for piece in entry.pieces:
                self._shard(piece).check(block_of(entry, piece))

    @property
    def bytes_read(self) -> int:
        """Bytes of tensors' data read so far."""
        return sum(shard.bytes_read for shard in self._shards.values())

    def __getitem__(self, name: str) -> torch.Tensor:
        """Read a tensor into new CPU memory. Raises KeyError, DamagedCheckpointError."""
        return self.read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.manifest.tensors)

    def __contains__(self, name: object) -> bool:
        return name in self.manifest.tensors

    def __len__(self) -> int:
        return len(self.manifest.tensors)

    def read(self, name: str, device: torch.device | str = "cpu") -> torch.Tensor:
        """Read a whole tensor to a device. Raises as `[name]`, and what the device raises."""
        return _transferred(self.part(name, ()), torch.device(device))

    def mapped(self, name: str) -> torch.Tensor:
        """As `[name]`, but map a tensor of one piece from the file: it takes memory only where it is written to, and the file does not
        change. A later save does not change the tensor; a program that writes into the file, or truncates it, does.
        """
        entry = self._entry(name)
        return self[name] if len(entry.pieces) > 1 else self._mapped(entry, None)

    def _mapped(self, entry: TensorEntry, computed: str | None) -> torch.Tensor:
        """computed: the checksum of its piece, where that has been computed."""
        (piece,) = entry.pieces
        return self._shard(piece).mapped(block_of(entry, piece), self._expected_checksum(piece), computed)

    def _checksum(self, entry: TensorEntry) -> str | None:
        """Compute the checksum of a tensor that will be mapped and verified; None for any other."""
        (piece, *further) = entry.pieces
        return None if further or self._expected_checksum(piece) is None else self._shard(piece).checksum(block_of(entry, piece))

    def part(self, name: str, index: tuple[slice, ...]) -> torch.Tensor:
        """Read `[name][index]` to the CPU, for slices without steps; no other part of the files is read.

        Pieces that are read whole are verified. Raises KeyError, IndexError for too many slices, ValueError for steps,
        DamagedCheckpointError.
        """
        entry = self._entry(name)
        index = _whole_index(index, entry.shape)
        shape = tuple(span.stop - span.start for span in index)
        result: torch.Tensor | None = None
        for piece in entry.pieces:
            common = [
                (max(span.start, start), min(span.stop, start + size))
                for span, start, size in zip(index, piece.offset, piece.shape, strict=True)
            ]
            if any(start >= stop for start, stop in common):
                continue
            target = tuple(slice(start - span.start, stop - span.start) for (start, stop), span in zip(common, index, strict=True))
            source = tuple(slice(start - offset, stop - offset) for (start, stop), offset in zip(common, piece.offset, strict=True))
            block, shard = block_of(entry, piece), self._shard(piece)
            is_whole = all((span.start, span.stop) == (0, size) for span, size in zip(source, piece.shape, strict=True))
            # The part is exactly one piece: return it without a second copy on the host.
            if is_whole and piece.shape == shape:
                return shard.read(block, self._expected_checksum(piece))
            if result is None:
                result = new(DTYPES[entry.dtype], shape)
            result[target] = shard.mapped(block, self._expected_checksum(piece)) if is_whole else shard.part(block, source)
            shard.forget(block)
        return new(DTYPES[entry.dtype], shape) if result is None else result

    def _expected_checksum(self, piece: Piece) -> str | None:
        return piece.checksum if self._verify and self.manifest.id else None

    def _entry(self, name: str) -> TensorEntry:
        return self.manifest.tensors[name]

    def _shard(self, piece: Piece) -> ShardReader:
        return self._shards[piece.file]

    def nesting(self, device: torch.device | str = "cpu", progress: Progress = no_progress, mmap: bool = False) -> Any:
        """Rebuild the saved nesting, with its tensors on a device (not NumPy arrays); a tensor at several places is one object again.

        mmap: as `mapped`, on the CPU only.
        """
        if mmap and torch.device(device).type != "cpu":
            raise ValueError(f"mmap=True is for tensors on the CPU, not on {device}, where one at a time goes without")
        meter = Meter(progress, self.manifest.nbytes)
        loaded = self._all_mapped(meter) if mmap else {}

        def find(name: str) -> torch.Tensor:
            if name not in loaded:
                loaded[name] = self.read(name, device)
                meter.add(loaded[name].nbytes)
            return loaded[name]

        return decode(self.manifest.tree, find, str(self.path / INDEX))

    def _all_mapped(self, meter: Meter) -> dict[str, torch.Tensor]:
        """Read all tensors as `mapped` does, in several threads: one core computes checksums more slowly than memory is read."""
        loaded = {}
        with ThreadPoolExecutor(READERS) as pool:
            entries = self.manifest.tensors
            for (name, entry), computed in zip(entries.items(), pool.map(self._checksum, entries.values()), strict=True):
                loaded[name] = self[name] if len(entry.pieces) > 1 else self._mapped(entry, computed)
                meter.add(loaded[name].nbytes)
        return loaded


def _whole_index(index: tuple[slice, ...], shape: Shape) -> tuple[slice, ...]:
    """Complete an index to one slice per dimension, each with start and stop."""
    if len(index) > len(shape):
        raise IndexError(f"{len(index)} slices for a tensor of {len(shape)} dimensions")
    if any(part.step not in (None, 1) for part in index):
        raise ValueError(f"{index}: parts are read without steps; slice what is read")
    spans = [part.indices(size) for part, size in zip((*index, *[slice(None)] * (len(shape) - len(index))), shape, strict=True)]
    return tuple(slice(start, max(start, stop)) for start, stop, _ in spans)


def _transferred(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Transfer a tensor and wait for the end: transfers that go on after the call would hold several tensors' memory on the host."""
    if device.type != "xla":
        return tensor.to(device)
    transferred = tensors.tensor_from_host(tensor, device)
    xm.unlazy([transferred])
    return transferred


def block_of(entry: TensorEntry, piece: Piece) -> Block:
    """Describe a piece as a block of its shard."""
    return Block(piece.name, DTYPES[entry.dtype], piece.shape)


def load(
    path: str | os.PathLike[str],
    *,
    device: torch.device | str = "cpu",
    verify: bool = True,
    mmap: bool = False,
    progress: Progress = no_progress,
) -> Any:
    """Load a nesting that `save` saved, one tensor at a time from disk to `device`. No code from the files is run.

    verify: compare each tensor's checksum. mmap: map CPU tensors from files, as `Checkpoint.mapped`. progress: called after each tensor.
    Raises MissingCheckpointError (FileNotFoundError), DamagedCheckpointError (RuntimeError) that names file and tensor,
    NewerCheckpointError, and ValueError for mmap on another device.
    """
    return Checkpoint(path, verify).nesting(device, progress, mmap)
