"""Describe a checkpoint without reading its tensors: a folder of ours, safetensors of others, or a file of torch.save."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import torch

from xla_serialization.checkpoint.loading import Checkpoint
from xla_serialization.checkpoint.state import flatten
from xla_serialization.errors import CheckpointError, DamagedCheckpointError, MissingCheckpointError
from xla_serialization.format.dtypes import DTYPES
from xla_serialization.format.files import open_file
from xla_serialization.format.folder import read_manifest
from xla_serialization.format.foreign import flat_tree, open_foreign
from xla_serialization.format.leaves import TreeLeaf, leaves
from xla_serialization.format.manifest import ForeignIndexError, Shape, Tree
from xla_serialization.format.shards import ShardReader
from xla_serialization.torch_formats import xser


class SourceKind(Enum):
    """The kinds of sources, by who wrote them."""

    CHECKPOINT = "checkpoint of xla_serialization"
    FOLDER = "folder of safetensors files"
    FILE = "safetensors file"
    TORCH = "file of torch.save"


@dataclass(frozen=True)
class SourceTensor:
    """A tensor of a source. files: those with its pieces. read: gives it on the CPU; a tensor of one piece is mapped."""

    dtype: torch.dtype
    shape: Shape
    files: tuple[str, ...]
    pieces: int
    nbytes: int
    read: Callable[[], torch.Tensor]


@dataclass(frozen=True)
class Source:
    """The contents of a path: a nesting, and its tensors by name."""

    path: Path
    kind: SourceKind
    tree: Tree
    tensors: Mapping[str, SourceTensor]

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self.tensors.values())

    def leaves(self) -> list[TreeLeaf]:
        """The leaves of the nesting. Raises DamagedCheckpointError."""
        return leaves(self.tree, str(self.path))


def open_source(path: Path) -> Source:
    """Open a path as a source, of the kind that it turns out to be.

    Raises CheckpointError, OSError. No code from the files is run.
    """
    if path.is_dir():
        return _checkpoint(path)
    if path.suffix == ".safetensors":
        return _flat(path, SourceKind.FILE, _in_file(path))
    return _torch(path)


def is_foreign(path: Path) -> bool:
    """Whether a path is a file, or a folder of safetensors files that another program wrote."""
    if path.is_file():
        return True
    try:
        read_manifest(path)
    except (ForeignIndexError, MissingCheckpointError):
        return path.is_dir() and open_foreign(path) is not None
    except CheckpointError:
        return False
    return False


def _flat(path: Path, kind: SourceKind, tensors: Mapping[str, SourceTensor]) -> Source:
    return Source(path, kind, flat_tree(tensors), tensors)


def _checkpoint(path: Path) -> Source:
    checkpoint = Checkpoint(path)
    tensors = {
        name: SourceTensor(
            DTYPES[entry.dtype],
            entry.shape,
            tuple(dict.fromkeys(piece.file for piece in entry.pieces)),
            len(entry.pieces),
            entry.nbytes,
            partial(checkpoint.mapped, name),
        )
        for name, entry in checkpoint.manifest.tensors.items()
    }
    return Source(path, SourceKind.CHECKPOINT if checkpoint.manifest.id else SourceKind.FOLDER, checkpoint.manifest.tree, tensors)


def _in_file(path: Path) -> dict[str, SourceTensor]:
    reader = ShardReader(path, open_file(path))
    return {
        block.name: SourceTensor(block.dtype, block.shape, (path.name,), 1, block.nbytes, partial(reader.mapped, block, None))
        for block in reader.blocks()
    }


def _torch(path: Path) -> Source:
    """Open a file of torch.save, mapped where its format allows; with the files of `xser` beside it if it refers to them."""
    with open_file(path):  # raises for a pipe, which torch.load would wait for
        pass
    try:
        data = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, EOFError, pickle.UnpicklingError):
        data = _xser_or_refused(path)
    state = flatten(data)
    tensors = {
        name: SourceTensor(tensor.dtype, tuple(tensor.shape), (path.name,), 1, tensor.nbytes, partial(_itself, tensor))
        for name, tensor in state.tensors.items()
    }
    return Source(path, SourceKind.TORCH, state.tree, tensors)


def _xser_or_refused(path: Path) -> Any:
    try:
        return xser.load(path)
    except DamagedCheckpointError as error:
        if isinstance(error.__cause__, pickle.UnpicklingError):  # torch's text is long, and advises to run the file's code
            raise DamagedCheckpointError(f"{path}: no file of torch.save, or one with more than containers, scalars and tensors") from error
        raise


def _itself(tensor: torch.Tensor) -> torch.Tensor:
    return tensor
