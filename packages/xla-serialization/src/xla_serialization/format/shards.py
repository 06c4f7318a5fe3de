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
"""Bytes of a single write, at most: the kernel takes no more than 2 GB at once."""
# The checksum of fewer bytes takes no longer than to start a thread.
_WORTH_A_THREAD = 1 << 20
READERS = min(4, os.cpu_count() or 1)
_READ_BYTES = 1 << 22
"""Bytes read at a time, so few that their checksum is computed while they are in the processor's cache."""


@dataclass(frozen=True, slots=True)
class Block:
    """A tensor's bytes in a shard that will be written."""

    name: str
    dtype: torch.dtype
    shape: Shape

    @property
    def nbytes(self) -> int:
        """Bytes of its data."""
        return math.prod(self.shape) * self.dtype.itemsize


def ordered(blocks: Sequence[Block]) -> list[Block]:
    """Sort blocks as they stand in a shard: the widest elements first, so that all are aligned."""
    return sorted(blocks, key=lambda block: -block.dtype.itemsize)


def header(blocks: Sequence[Block], offsets: Mapping[str, Shape] | None = None) -> bytes:
    """Make the bytes of a shard before its data. offsets: of blocks in their tensors, which it notes as torch.distributed.checkpoint does.

    Raises ValueError if no reader would take a header so large.
    """
    metadata = {"format": "pt"}
    if offsets is not None:
        saved_offsets = {name: {"saved_offsets": list(offset)} for name, offset in offsets.items()}
        metadata |= {"DCP_SHARDING_INFO": json.dumps(saved_offsets, separators=(",", ":")), "DCP_VERSION": "1.0"}
    text = bytearray(b"{" + _member("__metadata__", metadata))
    end = 0
    for block in blocks:
        start, end = end, end + block.nbytes
        dtype, shape = stored(block.dtype, block.shape)
        text += b"," + _member(block.name, {"dtype": dtype, "shape": list(shape), "data_offsets": [start, end]})
    text += b"}"
    text += b" " * (-(len(text) + _LENGTH_BYTES) % _ALIGNMENT)
    if len(text) > LARGEST_TEXT:
        raise ValueError(f"{len(blocks)} tensors in one shard make a header of {len(text)} bytes; make shards smaller")
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


def _member(name: str, value: dict[str, Any]) -> bytes:
    """Write a key of a JSON object and its value."""
    # One at a time: the objects of all tensors at once would take more memory than the text.
    return b"%s:%s" % (json.dumps(name).encode(), json.dumps(value, separators=(",", ":")).encode())


def bytes_of(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """Give the bytes that a shard holds for a dense CPU tensor, without a copy where the tensor is contiguous."""
    if not tensor.numel():
        return np.empty(0, np.uint8)  # its strides may be such that it cannot be viewed as bytes
    plain = as_stored(tensor.detach().contiguous()).contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy()


@contextmanager
def _summing(data: np.ndarray[Any, Any]) -> Iterator[Callable[[], str]]:
    """Compute the checksum of data in another thread during the `with` block, and give a function that returns it."""
    if data.nbytes < _WORTH_A_THREAD:
        digest = checksum(data)
        yield lambda: digest
        return
    with ThreadPoolExecutor(1) as pool:
        yield pool.submit(checksum, data).result


class ShardWriter:
    """Writes the blocks of one shard in their order. A context manager; the file is on disk when it ends without an error."""

    def __init__(self, path: Path, blocks: Sequence[Block], new: bool = True, offsets: Mapping[str, Shape] | None = None) -> None:
        """new: raise FileExistsError if there is such a file; else it is written over. offsets: as `header` takes them."""
        self.nbytes = 0
        self._path = path
        header_bytes = header(blocks, offsets)
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | (os.O_EXCL if new else os.O_TRUNC) | os.O_CLOEXEC, 0o666)
        try:
            self._write(memoryview(header_bytes))
        except BaseException:
            os.close(self._fd)
            raise

    def write(self, tensor: torch.Tensor) -> str:
        """Write the next block, from a CPU tensor of its dtype and shape; gives its checksum. Raises OSError, with the file's name."""
        data = bytes_of(tensor)
        with _summing(data) as summed:
            self._write(data.data)
        return summed()

    def _write(self, data: memoryview) -> None:
        written = 0
        with files.name_errors(self._path):
            while written < len(data):
                written += os.write(self._fd, data[written : written + _WRITE_BYTES])
        self.nbytes += len(data)

    def __enter__(self) -> ShardWriter:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        try:
            with files.name_errors(self._path):
                if error_type is None:
                    os.fsync(self._fd)
        finally:
            os.close(self._fd)


class ShardReader:
    """Reads an open shard, and closes its file. metadata: texts in the header. nbytes: of the file. bytes_read: of data, so far.

    Raises DamagedCheckpointError for a file that has another size than expected, or no header of a safetensors file.
    """

    def __init__(self, path: Path, file: BinaryIO, nbytes: int | None = None) -> None:
        """path: for the texts of errors. nbytes: expected size of the file."""
        self.bytes_read = 0
        self._path = path
        self._file = file
        # Nobody closes a checkpoint; what is mapped does not need the descriptor.
        weakref.finalize(self, self._file.close)
        file_size = os.fstat(self._file.fileno()).st_size
        if nbytes not in (None, file_size):
            raise DamagedCheckpointError(f"{path}: has {file_size} bytes, should have {nbytes}; it was cut off or changed")
        self.nbytes = file_size
        length = int.from_bytes(self._file.read(_LENGTH_BYTES), "little")
        if length > min(LARGEST_TEXT, file_size - _LENGTH_BYTES):
            raise DamagedCheckpointError(f"{path}: its header says that it has {length} bytes, of {file_size} in the file")
        fd_path = f"/dev/fd/{self._file.fileno()}"  # another file may have the name by now
        try:
            check_parts(self._file.read(length))
            self.metadata, self._entries = _entries(fd_path, _LENGTH_BYTES + length)
        except (SafetensorError, OSError, ValueError) as error:
            raise DamagedCheckpointError(f"{path}: no safetensors file ({error})") from error

    def blocks(self) -> list[Block]:
        """The blocks of the shard, as its header describes them."""
        return [Block(name, READ_AS[dtype], shape) for name, (dtype, shape, _, _) in self._entries.items()]

    def check(self, block: Block) -> None:
        """Raise DamagedCheckpointError if the shard does not hold the block that the manifest describes."""
        dtype, shape = stored(block.dtype, block.shape)
        entry = self._entries.get(block.name)
        if entry is None:
            raise DamagedCheckpointError(f"{self._path}: tensor {shown(block.name)} is not in this file")
        if entry[:2] != (dtype, shape):
            raise DamagedCheckpointError(
                f"{self._path}: tensor {shown(block.name)} is {entry[0]}{shown(list(entry[1]))}, should be {dtype}{shown(list(shape))}"
            )

    def read(self, block: Block, expected: str | None) -> torch.Tensor:
        """Read a block into new memory. Raises DamagedCheckpointError if its checksum is not the expected one, OSError."""
        start, end = self._byte_range(block)
        data = _allocate(end - start)
        starts = range(start, end, _READ_BYTES)
        parts = [data.data[position - start : position - start + _READ_BYTES] for position in starts]
        # `map` keeps the order: parts go into the checksum as they come, while later ones are read.
        with ThreadPoolExecutor(READERS) as pool:  # threads start when there is work: for small blocks none does
            self._compare(block, (pool.map if len(parts) > 1 else map)(self._fill, parts, starts), expected)
        return _as_tensor(data, block.dtype, block.shape)

    def verify(self, block: Block, expected: str) -> None:
        """Raise DamagedCheckpointError if the block's checksum is not the expected one, OSError."""
        start, end = self._byte_range(block)
        memory = memoryview(bytearray(min(end - start, _READ_BYTES)))
        starts = range(start, end, _READ_BYTES)
        self._compare(block, (self._fill(memory[: end - position], position) for position in starts), expected)

    def mapped(self, block: Block, expected: str | None, computed: str | None = None) -> torch.Tensor:
        """Map a block from the file; memory is taken only for pages that are written to. Raises as `read`.

        computed: its checksum, where that has been computed.
        """
        data = self._data(block, self._writable_map)
        self.bytes_read += data.nbytes
        if expected is not None:
            self._check_checksum(block, checksum(data) if computed is None else computed, expected)
        return _as_tensor(data, block.dtype, block.shape)

    def checksum(self, block: Block) -> str:
        """Compute the checksum of a block from the mapped file. Several threads may do so at once."""
        return checksum(self._data(block, self._writable_map))

    def _fill(self, part: memoryview, start: int) -> memoryview:
        """Fill memory with the file's bytes from `start` on, and return it."""
        filled = 0
        while filled < len(part):
            count = os.preadv(self._file.fileno(), [part[filled:]], start + filled)
            if not count:
                raise DamagedCheckpointError(f"{self._path}: was cut off while it was read")
            filled += count
        return part

    def _compare(self, block: Block, parts: Iterable[memoryview], expected: str | None) -> None:
        digest = xxhash.xxh3_64()
        for part in parts:
            self.bytes_read += len(part)
            if expected is not None:
                digest.update(part)
        if expected is not None:
            self._check_checksum(block, digest.hexdigest(), expected)

    def _check_checksum(self, block: Block, actual: str, expected: str) -> None:
        if actual != expected:
            raise DamagedCheckpointError(f"{self._path}: the data of tensor {shown(block.name)} has changed since it was written")

    def part(self, block: Block, index: tuple[slice, ...]) -> torch.Tensor:
        """Map a part of a block, read-only and without a check; only that part is read from the file."""
        selected = _as_tensor(self._data(block, self._read_only_map), block.dtype, block.shape)[index]
        self.bytes_read += selected.nbytes
        return selected

    def forget(self, block: Block) -> None:
        """Give the memory in which a block is mapped back to the system."""
        start, end = self._byte_range(block)
        # Whole pages only: what a neighbour loses is read again. Not on the writable map, where written pages would be lost.
        start -= start % mmap.PAGESIZE
        if end > start:
            self._read_only_map.madvise(mmap.MADV_DONTNEED, start, end - start)

    @functools.cached_property
    def _read_only_map(self) -> mmap.mmap:
        return mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)

    @functools.cached_property
    def _writable_map(self) -> mmap.mmap:
        return mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_COPY)

    def _data(self, block: Block, mapped: mmap.mmap) -> np.ndarray[Any, Any]:
        start, end = self._byte_range(block)
        return np.frombuffer(mapped, np.uint8, end - start, start)

    def _byte_range(self, block: Block) -> tuple[int, int]:
        self.check(block)
        return self._entries[block.name][2:]


def _entries(path: str, start: int) -> tuple[dict[str, str], dict[str, tuple[str, Shape, int, int]]]:
    """Read the texts of the header; and dtype, shape, start and end of each tensor.

    safetensors checks that the header's tensors follow each other without gaps.
    """
    entries = {}
    with safe_open(path, framework="numpy") as file:
        metadata = dict(file.metadata() or {})
        # In the order of the data: each begins where the one before ends.
        for name in file.offset_keys():
            tensor = file.get_slice(name)
            dtype, shape = tensor.get_dtype(), tuple(tensor.get_shape())
            if dtype not in _ITEMSIZE:
                raise ValueError(f"{shown(name)} is of dtype {dtype}, which no checkpoint holds")
            end = start + math.prod(shape) * _ITEMSIZE[dtype]
            entries[name] = (dtype, shape, start, end)
            start = end
    return metadata, entries


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


def _allocate(nbytes: int) -> np.ndarray[Any, Any]:
    """Allocate memory through torch: aligned, so that CPU devices can use it in place."""
    return torch.empty(nbytes, dtype=torch.uint8, device="cpu").numpy()


def new(dtype: torch.dtype, shape: Shape) -> torch.Tensor:
    """Make an uninitialized CPU tensor."""
    return _as_tensor(_allocate(math.prod(shape) * dtype.itemsize), dtype, shape)


def _as_tensor(data: np.ndarray[Any, Any], dtype: torch.dtype, shape: Shape) -> torch.Tensor:
    """Make a tensor of bytes as a shard holds them, without a copy where they are aligned."""
    if not data.nbytes:
        return torch.empty(shape, dtype=dtype, device="cpu")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")  # nobody writes to the read-only map
        raw = torch.from_numpy(data if data.ctypes.data % dtype.itemsize == 0 else data.copy())  # other programs may not align data
    _, sizes = stored(dtype, shape)
    inner = torch.float64 if dtype is torch.complex128 else dtype
    return as_loaded(raw.view(inner).reshape(sizes), dtype)
