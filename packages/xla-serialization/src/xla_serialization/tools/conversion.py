"""Write a source in another format; values that the format cannot keep are refused before anything is written."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any, BinaryIO, cast

import torch

from xla_serialization.checkpoint.chunks import Chunk
from xla_serialization.checkpoint.participants import Participants
from xla_serialization.checkpoint.saving import write_chunks
from xla_serialization.checkpoint.state import FlatState
from xla_serialization.errors import UnsavableError
from xla_serialization.format.foreign import flat_tree
from xla_serialization.format.leaves import TreeLeaf
from xla_serialization.format.locked_write import locked_atomic_write
from xla_serialization.format.shards import Block, ShardWriter, ordered
from xla_serialization.format.tree import decode, free_name
from xla_serialization.progress import Meter, Progress, no_progress
from xla_serialization.tools.sources import Source, SourceTensor
from xla_serialization.torch_formats.torch_save import write_into

_SHOWN = 5


class Format(Enum):
    """The formats that can be written."""

    CHECKPOINT = "checkpoint"
    SAFETENSORS = "safetensors"
    TORCH = "torch"

    @staticmethod
    def of(path: Path) -> Format:
        """Choose the format by the path's ending: any but `.safetensors`, `.pt`, `.pth` and `.bin` means a folder."""
        endings = {".safetensors": Format.SAFETENSORS, ".pt": Format.TORCH, ".pth": Format.TORCH, ".bin": Format.TORCH}
        return endings.get(path.suffix, Format.CHECKPOINT)


def tensors_only(source: Source) -> tuple[Source, list[TreeLeaf]]:
    """Flatten a source to a dict of its tensors, named by the keys that lead to them; and list the plain values that this leaves out."""
    tensors: dict[str, SourceTensor] = {}
    left_out = []
    for leaf in source.leaves():
        if leaf.tensor is None:
            left_out.append(leaf)
        else:
            tensors[free_name(leaf.keys, tensors)] = source.tensors[leaf.tensor]
    return replace(source, tree=flat_tree(tensors), tensors=tensors), left_out


def convert(source: Source, target: Path, progress: Progress = no_progress) -> None:
    """Write the source in the format of `target`'s ending; what was there is replaced once all is written.

    Tensors go to a safetensors file and to a folder one at a time, under the names of `tensors_only`.
    Raises UnsavableError for what the format cannot keep; OSError; DamagedCheckpointError for a source with a wrong checksum.
    """
    writer: Callable[[Source, Path, Progress], None] = {
        Format.CHECKPOINT: _to_checkpoint,
        Format.SAFETENSORS: _to_safetensors,
        Format.TORCH: _to_torch,
    }[Format.of(target)]
    writer(source, target, progress)


def _to_checkpoint(source: Source, target: Path, progress: Progress) -> None:
    tensors = {name: torch.empty(tensor.shape, dtype=tensor.dtype, device="meta") for name, tensor in source.tensors.items()}
    chunks = {
        name: Chunk(Block(name, tensor.dtype, tensor.shape), (0,) * len(tensor.shape), tensor.read)
        for name, tensor in source.tensors.items()
    }
    write_chunks(FlatState(source.tree, tensors), chunks, target, Participants(), progress=progress)


def _to_safetensors(source: Source, target: Path, progress: Progress) -> None:
    flat, left_out = tensors_only(source)
    if left_out:
        raise UnsavableError(f"{target}: a safetensors file holds tensors only, not {described(left_out)}; --tensors-only leaves them out")
    wide = [name for name, tensor in flat.tensors.items() if tensor.dtype is torch.complex128]
    if wide:
        raise UnsavableError(f"{target}: safetensors has no complex128, of which {wide[0]!r} is: convert to .pt, or to a folder")
    meter = Meter(progress, flat.nbytes)
    blocks = ordered([Block(name, tensor.dtype, tensor.shape) for name, tensor in flat.tensors.items()])
    with locked_atomic_write(target) as temporary, ShardWriter(temporary, blocks, new=False) as writer:
        for block in blocks:
            writer.write(flat.tensors[block.name].read())
            meter.add(block.nbytes)


def _to_torch(source: Source, target: Path, progress: Progress) -> None:
    _check_loadable(source, target)
    tensors = _read_all(source, progress)
    nesting = decode(source.tree, tensors.__getitem__, str(source.path))
    with locked_atomic_write(target) as temporary, open(temporary, "wb") as file:
        write_into(nesting, cast(BinaryIO, _Metered(file, Meter(progress, source.nbytes))))


def _read_all(source: Source, progress: Progress) -> dict[str, torch.Tensor]:
    """Read all tensors and verify their checksums; tensors of one piece are mapped."""
    meter = Meter(progress, source.nbytes)
    tensors = {}
    for name, tensor in source.tensors.items():
        tensors[name] = tensor.read()
        meter.add(tensor.nbytes)
    return tensors


def _check_loadable(source: Source, target: Path) -> None:
    """Save and load the nesting with empty tensors, to refuse what torch.load would refuse."""
    trial = io.BytesIO()
    empty = {name: torch.empty(0, dtype=tensor.dtype, device="cpu") for name, tensor in source.tensors.items()}
    torch.save(decode(source.tree, empty.__getitem__, str(source.path)), trial)
    trial.seek(0)
    try:
        torch.load(trial, weights_only=True)
    except pickle.UnpicklingError as error:
        trial.seek(0)
        refused = ", ".join(torch.serialization.get_unsafe_globals_in_checkpoint(trial)) or str(error).partition("\n")[0]
        raise UnsavableError(
            f"{target}: torch.load(weights_only=True) would refuse what is in it ({refused}); --tensors-only leaves plain values out"
        ) from error


class _Metered:
    """Wraps a file that torch.save writes to, and counts its bytes."""

    def __init__(self, file: BinaryIO, meter: Meter) -> None:
        self._file, self._meter = file, meter

    def write(self, data: Any) -> int:
        self._meter.add(len(data))
        return self._file.write(data)

    def flush(self) -> None:
        self._file.flush()


def described(left_out: list[TreeLeaf]) -> str:
    """Describe leaves, as in `step = 1, lr = 0.1 and 3 more`."""
    shown = ", ".join(f"{'.'.join(leaf.keys) or 'the value'} = {leaf.text[:40]}" for leaf in left_out[:_SHOWN])
    return shown if len(left_out) <= _SHOWN else f"{shown} and {len(left_out) - _SHOWN} more"
