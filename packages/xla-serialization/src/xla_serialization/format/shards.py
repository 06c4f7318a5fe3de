"""Shards: safetensors files, written and read one tensor at a time (FORMAT.md §4)."""

from __future__ import annotations

import functools
import json
import math
import mmap
import os
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
import xxhash
from safetensors import SafetensorError, safe_open

from xla_serialization.core import files
from xla_serialization.errors import DamagedCheckpointError
from xla_serialization.format.dtypes import READ_AS, as_loaded, as_stored, stored
from xla_serialization.format.limits import LARGEST_TEXT, check_parts, shown
from xla_serialization.format.manifest import Shape, checksum

_ALIGNMENT = 64  # so that data may be used where it is mapped
_LENGTH_BYTES = 8
_WRITE_BYTES = 64 << 20
"""A single write takes at most so many: the kernel takes no more than 2 GB at once."""
# Of less, the checksum takes no longer than the start of a thread.
_WORTH_A_THREAD = 1 << 20
READERS = min(4, os.cpu_count() or 1)
_READ_BYTES = 1 << 22
"""Read at a time: its checksum is computed while it is in the processor's cache."""


@dataclass(frozen=True, slots=True)
class Block:
    """A tensor's bytes in a shard that will be written."""

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


def header(blocks: Sequence[Block], offsets: Mapping[str, Shape] | None = None) -> bytes:
    """The first bytes of a shard, up to the data. offsets: of blocks in their tensors, as torch.distributed.checkpoint notes them.

    Raises ValueError if no reader would take a header so large.
    """
    metadata = {"format": "pt"}
    if offsets is not None:
        places = {name: {"saved_offsets": list(offset)} for name, offset in offsets.items()}
        metadata |= {"DCP_SHARDING_INFO": json.dumps(places, separators=(",", ":")), "DCP_VERSION": "1.0"}
    text = bytearray(b"{" + _entry("__metadata__", metadata))
    end = 0
    for block in blocks:
        start, end = end, end + block.nbytes
        dtype, shape = stored(block.dtype, block.shape)
        text += b"," + _entry(block.name, {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]})
    text += b"}"
    text += b" " * (-(len(text) + _LENGTH_BYTES) % _ALIGNMENT)
    if len(text) > LARGEST_TEXT:
        raise ValueError(f"{len(blocks)} tensors in one shard make a header of {len(text)} bytes; make shards smaller")
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def _entry(name: str, value: dict[str, Any]) -> bytes:
    """A key of a JSON object and its value."""
    # One by one: the objects of many tensors at once take more memory than the text.
    return b"%s:%s" % (json.dumps(name).encode(), json.dumps(value, separators=(",", ":")).encode())


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

    def __init__(self, path: Path, blocks: Sequence[Block], new: bool = True, offsets: Mapping[str, Shape] | None = None) -> None:
        """new: raise FileExistsError if there is such a file; else it is written over. offsets: as `header` takes them."""
        self.nbytes = 0
        self._path = path
        first = header(blocks, offsets)
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
        with files.name_errors(self._path):
            while at < len(data):
                at += os.write(self._fd, data[at : at + _WRITE_BYTES])
        self.nbytes += len(data)

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            with files.name_errors(self._path):
                if kind is None:
                    os.fsync(self._fd)
        finally:
            os.close(self._fd)


class ShardReader:
    """One shard, open, which closes the file. metadata: texts in its header. nbytes: of the file. bytes_read: of data, so far.

    Raises DamagedCheckpointError for a file that is not of the size expected, or whose header is not that of a safetensors file.
    """

    def __init__(self, path: Path, file: BinaryIO, nbytes: int | None = None) -> None:
        """path: for the texts of errors. nbytes: what it is expected to have."""
        self.bytes_read = 0
        self._path = path
        self._file = file
        # Nobody closes a checkpoint; what is mapped does not need the descriptor.
        weakref.finalize(self, self._file.close)
        found = os.fstat(self._file.fileno()).st_size
        if nbytes not in (None, found):
            raise DamagedCheckpointError(f"{path}: has {found} bytes, should have {nbytes}; it was cut off or changed")
        self.nbytes = found
        length = int.from_bytes(self._file.read(_LENGTH_BYTES), "little")
        if length > min(LARGEST_TEXT, found - _LENGTH_BYTES):
            raise DamagedCheckpointError(f"{path}: its header says that it has {length} bytes, of {found} in the file")
        this = f"/dev/fd/{self._file.fileno()}"  # whatever its name now means
        try:
            check_parts(self._file.read(length))
            self.metadata, self._entries = _entries(this, _LENGTH_BYTES + length)
        except (SafetensorError, OSError, ValueError) as error:
            raise DamagedCheckpointError(f"{path}: no safetensors file ({error})") from error

    def blocks(self) -> list[Block]:
        """The blocks of the shard, as its header describes them."""
        return [Block(name, READ_AS[dtype], shape) for name, (dtype, shape, _, _) in self._entries.items()]

    def check(self, block: Block) -> None:
        """Raise DamagedCheckpointError if the shard does not hold what the manifest says."""
        dtype, shape = stored(block.dtype, block.shape)
        found = self._entries.get(block.name)
        if found is None:
            raise DamagedCheckpointError(f"{self._path}: tensor {shown(block.name)} is not in this file")
        if found[:2] != (dtype, shape):
            raise DamagedCheckpointError(
                f"{self._path}: tensor {shown(block.name)} is {found[0]}{shown(list(found[1]))}, should be {dtype}{shown(list(shape))}"
            )

    def read(self, block: Block, wanted: str | None) -> torch.Tensor:
        """A block in memory of its own. Raises DamagedCheckpointError if `wanted` is not its checksum, OSError."""
        start, end = self._place(block)
        data = _memory(end - start)
        places = range(start, end, _READ_BYTES)
        parts = [data.data[at - start : at - start + _READ_BYTES] for at in places]
        # `map` keeps the order, so that the checksum goes on over parts as they come while later ones are read.
        with ThreadPoolExecutor(READERS) as pool:  # threads start when there is work: of small blocks none does
            self._compare(block, (pool.map if len(parts) > 1 else map)(self._filled, parts, places), wanted)
        return _shown(data, block.dtype, block.shape)

    def verify(self, block: Block, wanted: str) -> None:
        """Raise DamagedCheckpointError if `wanted` is not the block's checksum, OSError."""
        start, end = self._place(block)
        memory = memoryview(bytearray(min(end - start, _READ_BYTES)))
        places = range(start, end, _READ_BYTES)
        self._compare(block, (self._filled(memory[: end - at], at) for at in places), wanted)

    def mapped(self, block: Block, wanted: str | None, found: str | None = None) -> torch.Tensor:
        """A block as it is in the file, of which memory is taken only for what is written to. Raises as `read`.

        found: its checksum, where that has been computed.
        """
        data = self._data(block, self._private)
        self.bytes_read += data.nbytes
        if wanted is not None:
            self._same(block, checksum(data) if found is None else found, wanted)
        return _shown(data, block.dtype, block.shape)

    def checksum(self, block: Block) -> str:
        """Of a block as it is mapped. Several threads may ask for it."""
        return checksum(self._data(block, self._private))

    def _filled(self, part: memoryview, start: int) -> memoryview:
        """The memory, with what is in the file from `start` on."""
        at = 0
        while at < len(part):
            count = os.preadv(self._file.fileno(), [part[at:]], start + at)
            if not count:
                raise DamagedCheckpointError(f"{self._path}: was cut off while it was read")
            at += count
        return part

    def _compare(self, block: Block, parts: Iterable[memoryview], wanted: str | None) -> None:
        found = xxhash.xxh3_64()
        for part in parts:
            self.bytes_read += len(part)
            if wanted is not None:
                found.update(part)
        if wanted is not None:
            self._same(block, found.hexdigest(), wanted)

    def _same(self, block: Block, found: str, wanted: str) -> None:
        if found != wanted:
            raise DamagedCheckpointError(f"{self._path}: the data of tensor {shown(block.name)} has changed since it was written")

    def part(self, block: Block, index: tuple[slice, ...]) -> torch.Tensor:
        """A part of a block as it is mapped, read-only, of which only that is read; not checked."""
        found = _shown(self._data(block, self._map), block.dtype, block.shape)[index]
        self.bytes_read += found.nbytes
        return found

    def forget(self, block: Block) -> None:
        """Let the system have back the memory in which a block is mapped."""
        start, end = self._place(block)
        # Whole pages only; what a neighbour loses by it is read again. Not on the private mapping, where written pages would be lost.
        start -= start % mmap.PAGESIZE
        if end > start:
            self._map.madvise(mmap.MADV_DONTNEED, start, end - start)

    @functools.cached_property
    def _map(self) -> mmap.mmap:
        return mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)

    @functools.cached_property
    def _private(self) -> mmap.mmap:
        return mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_COPY)

    def _data(self, block: Block, mapped: mmap.mmap) -> np.ndarray[Any, Any]:
        start, end = self._place(block)
        return np.frombuffer(mapped, np.uint8, end - start, start)

    def _place(self, block: Block) -> tuple[int, int]:
        self.check(block)
        return self._entries[block.name][2:]


def _entries(path: str, start: int) -> tuple[dict[str, str], dict[str, tuple[str, Shape, int, int]]]:
    """The texts of the header; dtype, shape and place of each tensor.

    safetensors checks the header: its tensors follow each other without gaps.
    """
    found = {}
    with safe_open(path, framework="numpy") as file:
        metadata = dict(file.metadata() or {})
        # In the order of the data: each begins where the one before ends.
        for name in file.offset_keys():
            part = file.get_slice(name)
            dtype, shape = part.get_dtype(), tuple(part.get_shape())
            if dtype not in _ITEMSIZE:
                raise ValueError(f"{shown(name)} is of dtype {dtype}, which no checkpoint holds")
            end = start + math.prod(shape) * _ITEMSIZE[dtype]
            found[name] = (dtype, shape, start, end)
            start = end
    return metadata, found


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


def _memory(nbytes: int) -> np.ndarray[Any, Any]:
    """New memory of torch: aligned, so that devices of the host can use it in place."""
    return torch.empty(nbytes, dtype=torch.uint8, device="cpu").numpy()


def new(dtype: torch.dtype, shape: Shape) -> torch.Tensor:
    """A CPU tensor to be filled."""
    return _shown(_memory(math.prod(shape) * dtype.itemsize), dtype, shape)


def _shown(data: np.ndarray[Any, Any], dtype: torch.dtype, shape: Shape) -> torch.Tensor:
    """The tensor whose bytes, as a shard holds them, are in this memory: without a copy, where they are aligned."""
    if not data.nbytes:
        return torch.empty(shape, dtype=dtype, device="cpu")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nobody writes to what is mapped
        raw = torch.from_numpy(data if data.ctypes.data % dtype.itemsize == 0 else data.copy())  # others may not align it
    _, sizes = stored(dtype, shape)
    inner = torch.float64 if dtype is torch.complex128 else dtype
    return as_loaded(raw.view(inner).reshape(sizes), dtype)
