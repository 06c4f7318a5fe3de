"""Shards: safetensors files, written one tensor at a time, read through a memory map (FORMAT.md §4)."""

from __future__ import annotations

import json
import math
import mmap
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from xla_serialization.errors import DamagedCheckpointError
from xla_serialization.format.dtypes import READ_AS, as_loaded, as_stored, stored
from xla_serialization.format.files import open_file
from xla_serialization.format.manifest import LARGEST_TEXT, Shape, checksum

_ALIGNMENT = 64  # so that data may be used where it is mapped
_LENGTH_BYTES = 8
_WRITE_BYTES = 64 << 20
"""A single write takes at most so many: the kernel takes no more than 2 GB at once."""
_WORTH_A_THREAD = 1 << 20


@dataclass(frozen=True, slots=True)
class Block:
    """What a shard will hold under a name."""

    name: str
    dtype: torch.dtype
    shape: Shape

    @property
    def nbytes(self) -> int:
        """Of its data."""
        return math.prod(self.shape) * self.dtype.itemsize


def ordered(blocks: Sequence[Block]) -> list[Block]:
    """As they stand in a shard: the widest elements first, so that all are aligned."""
    return sorted(blocks, key=lambda block: -block.dtype.itemsize)


def header(blocks: Sequence[Block]) -> bytes:
    """The first bytes of a shard, up to the data. Raises ValueError if no reader would take a header so large."""
    entries: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for block in blocks:
        start, end = end, end + block.nbytes
        dtype, shape = stored(block.dtype, block.shape)
        entries[block.name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + _LENGTH_BYTES) % _ALIGNMENT)
    if len(text) > LARGEST_TEXT:
        raise ValueError(f"{len(blocks)} tensors in one shard make a header of {len(text)} bytes; make shards smaller")
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def bytes_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The bytes that a shard holds of a dense CPU tensor, without a copy where it is contiguous."""
    if not tensor.numel():
        return np.empty(0, np.uint8)  # its strides may be such that it cannot be viewed as bytes
    plain = as_stored(tensor.detach().contiguous()).contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy()


@contextmanager
def _summing(data: np.ndarray[Any, Any]) -> Iterator[Callable[[], str]]:
    """The checksum of data, which another thread computes while the block of code reads it too."""
    if data.nbytes < _WORTH_A_THREAD:
        found = checksum(data)
        yield lambda: found
        return
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(checksum, data).result


class ShardWriter:
    """Writes the blocks of one shard in their order. A context manager; the file is on disk when it ends without an error."""

    def __init__(self, path: Path, blocks: Sequence[Block], new: bool = True) -> None:
        """new: raise FileExistsError if there is such a file; else it is written over."""
        self.nbytes = 0
        self._path = path
        first = header(blocks)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | (os.O_EXCL if new else os.O_TRUNC) | os.O_CLOEXEC, 0o666)
        try:
            self._write(memoryview(first))
        except BaseException:
            os.close(self._fd)
            raise

    def write(self, tensor: torch.Tensor) -> str:
        """The next block, a CPU tensor of its dtype and shape; gives its checksum. Raises OSError, with the file's name."""
        data = bytes_of(tensor)
        with _summing(data) as summed:
            self._write(data.data)
        return summed()

    def _write(self, data: memoryview) -> None:
        at = 0
        try:
            while at < len(data):
                at += os.write(self._fd, data[at : at + _WRITE_BYTES])
        except OSError as error:
            error.filename = str(self._path)
            raise
        self.nbytes += len(data)

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                os.fsync(self._fd)
        except OSError as error:
            error.filename = str(self._path)
            raise
        finally:
            os.close(self._fd)


class ShardReader:
    """One shard, mapped. bytes_read: of data, so far.

    Raises DamagedCheckpointError for a file that is not of the size expected, or whose header is not that of a safetensors file.
    """

    def __init__(self, path: Path, nbytes: int) -> None:
        self.bytes_read = 0
        self._path = path
        with open_file(path) as file:
            found = os.fstat(file.fileno()).st_size
            if found != nbytes:
                raise DamagedCheckpointError(f"{path}: has {found} bytes, should have {nbytes}; it was cut off or changed")
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if length > min(LARGEST_TEXT, nbytes - _LENGTH_BYTES):
                raise DamagedCheckpointError(f"{path}: its header says that it has {length} bytes, of {nbytes} in the file")
            try:
                self._entries = _entries(f"/proc/self/fd/{file.fileno()}", _LENGTH_BYTES + length)  # this file, whatever its name now means
            except (SafetensorError, OSError, ValueError) as error:
                raise DamagedCheckpointError(f"{path}: no safetensors file ({error})") from error
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def blocks(self) -> list[Block]:
        """What the shard holds, as its header tells it."""
        return [Block(name, READ_AS[dtype], shape) for name, (dtype, shape, _, _) in self._entries.items()]

    def check(self, block: Block) -> None:
        """Raise DamagedCheckpointError if the shard does not hold what the manifest says."""
        dtype, shape = stored(block.dtype, block.shape)
        found = self._entries.get(block.name)
        if found is None:
            raise DamagedCheckpointError(f"{self._path}: tensor {block.name!r} is not in this file")
        if found[:2] != (dtype, shape):
            raise DamagedCheckpointError(
                f"{self._path}: tensor {block.name!r} is {found[0]}{list(found[1])}, should be {dtype}{list(shape)}"
            )

    def whole(self, block: Block, wanted: str | None) -> torch.Tensor:
        """A block as it is mapped, read-only. Raises DamagedCheckpointError if `wanted` is not its checksum."""
        data = self._data(block)
        self.bytes_read += data.nbytes
        if wanted is not None:
            self._compare(block, checksum(data), wanted)
        return _mapped(data, block)

    @contextmanager
    def copying(self, block: Block, wanted: str | None) -> Iterator[torch.Tensor]:
        """As `whole`, for a block of code that copies it meanwhile: a wrong checksum is found when that ends."""
        data = self._data(block)
        self.bytes_read += data.nbytes
        if wanted is None:
            yield _mapped(data, block)
            return
        with _summing(data) as summed:
            yield _mapped(data, block)
        self._compare(block, summed(), wanted)

    def _compare(self, block: Block, found: str, wanted: str) -> None:
        if found != wanted:
            raise DamagedCheckpointError(f"{self._path}: the data of tensor {block.name!r} has changed since it was written")

    def part(self, block: Block, index: tuple[slice, ...]) -> torch.Tensor:
        """A part of a block, of which only that is read; not checked."""
        found = _mapped(self._data(block), block)[index]
        self.bytes_read += found.nbytes
        return found

    def forget(self, block: Block) -> None:
        """Let the system have back the memory in which a block was read."""
        start, end = self._entries[block.name][2:]
        start -= start % mmap.PAGESIZE
        if end > start:
            self._map.madvise(mmap.MADV_DONTNEED, start, end - start)

    def _data(self, block: Block) -> np.ndarray[Any, Any]:
        self.check(block)
        start, end = self._entries[block.name][2:]
        return np.frombuffer(self._map, np.uint8, end - start, start)


def _entries(path: str, start: int) -> dict[str, tuple[str, Shape, int, int]]:
    """Dtype, shape and place of each tensor. safetensors checks the header: its tensors follow each other without gaps."""
    found = {}
    with safe_open(path, framework="numpy") as file:
        for name in file.offset_keys():
            part = file.get_slice(name)
            dtype, shape = part.get_dtype(), tuple(part.get_shape())
            if dtype not in _ITEMSIZE:
                raise ValueError(f"{name!r} is of dtype {dtype}, which no checkpoint holds")
            end = start + math.prod(shape) * _ITEMSIZE[dtype]
            found[name] = (dtype, shape, start, end)
            start = end
    return found


_ITEMSIZE = {
    name: size
    for size, names in {
        1: "BOOL U8 I8 F8_E4M3 F8_E4M3FNUZ F8_E5M2 F8_E5M2FNUZ",
        2: "I16 U16 F16 BF16",
        4: "I32 U32 F32",
        8: "I64 U64 F64 C64",
    }.items()
    for name in names.split()
}


def _mapped(data: np.ndarray[Any, Any], block: Block) -> torch.Tensor:
    if not data.nbytes:
        return torch.empty(block.shape, dtype=block.dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nobody writes to it
        raw = torch.from_numpy(data if data.ctypes.data % block.dtype.itemsize == 0 else data.copy())  # others may not align it
    _, shape = stored(block.dtype, block.shape)
    inner = torch.float64 if block.dtype is torch.complex128 else block.dtype
    return as_loaded(raw.view(inner).reshape(shape), block.dtype)
