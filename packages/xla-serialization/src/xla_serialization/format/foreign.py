"""Folders of safetensors files that other programs wrote: Hugging Face, or torch.distributed.checkpoint, sharded or not."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from xla_serialization.errors import DamagedCheckpointError
from xla_serialization.format.dtypes import name_of
from xla_serialization.format.folder import is_own_shard, open_shard
from xla_serialization.format.limits import LARGEST_TEXT, is_file_name, parsed, shown
from xla_serialization.format.links import open_inside
from xla_serialization.format.manifest import INDEX, Manifest, Piece, TensorEntry, Tree, check_sense
from xla_serialization.format.shards import Block, ShardReader

_SINGLE = "model.safetensors"
_ENDING = ".safetensors"


def open_foreign(folder: Path) -> tuple[Manifest, dict[str, ShardReader]] | None:
    """Make a manifest for such a folder, without checksums, and open its files; None if it has none.

    The files are those that the index names; without an index `model.safetensors`, or else all.
    Raises DamagedCheckpointError for tensors of which parts are missing.
    """
    weights = _weights(folder)
    names = _without_index(folder) if weights is None else sorted(set(weights.values()))
    if not names:
        return None
    shards = {name: _opened(folder, name) for name in names}
    pieces: dict[str, list[tuple[Block, Piece]]] = {}
    for file, shard in shards.items():
        for block, piece in _pieces(folder / file, shard):
            if weights is None or weights.get(block.name) == file:
                pieces.setdefault(block.name, []).append((block, piece))
    for name, file in (weights or {}).items():
        if name not in pieces:
            raise DamagedCheckpointError(f"{folder / file}: tensor {shown(name)} is not in this file")
    ordered = {name: pieces[name] for name in weights or pieces}
    sizes = {name: shard.nbytes for name, shard in shards.items()}
    entries = {name: _entry(parts) for name, parts in ordered.items()}
    manifest = Manifest("", sizes, entries, flat_tree(entries))
    check_sense(manifest, str(folder))
    return manifest, shards


def flat_tree(names: Iterable[str]) -> Tree:
    """The tree of a dict from these names to the tensors of the same names."""
    return {"dict": [[name, {"tensor": name}] for name in names]}


def _weights(folder: Path) -> Mapping[str, str] | None:
    """Read the index's map from tensor names to files; None if there is no index."""
    index = folder / INDEX
    try:
        with open_inside(folder, INDEX) as file:
            document = parsed(file.read(LARGEST_TEXT + 1))
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not isinstance(document, dict):
        return {}
    weights = document.get("weight_map")
    if not isinstance(weights, dict) or not all(isinstance(file, str) for file in weights.values()):
        raise DamagedCheckpointError(f"{index}: no index of safetensors files: it has no 'weight_map' from names to files")
    for name in weights.values():
        if not is_file_name(name):
            raise DamagedCheckpointError(f"{index}: {shown(name)}, of {len(name)} characters, is no plain file name")
    return weights


def _without_index(folder: Path) -> list[str]:
    if (folder / _SINGLE).is_file():
        return [_SINGLE]
    # Not the shards of a save of ours that was not published.
    candidates = (path.name for path in folder.iterdir() if path.name.endswith(_ENDING) and path.is_file()) if folder.is_dir() else ()
    return sorted(name for name in candidates if is_file_name(name) and not is_own_shard(name))


def _opened(folder: Path, name: str) -> ShardReader:
    try:
        return open_shard(folder, name)
    except FileNotFoundError:
        raise DamagedCheckpointError(f"{folder / name}: this file of the checkpoint is missing") from None


def _pieces(path: Path, shard: ShardReader) -> list[tuple[Block, Piece]]:
    offsets = _offsets(path, shard)
    try:
        return [
            (block, Piece(path.name, block.name, (0,) * len(block.shape) if offsets is None else offsets[block.name], block.shape, ""))
            for block in shard.blocks()
        ]
    except (KeyError, ValidationError) as error:
        raise DamagedCheckpointError(f"{path}: its DCP_SHARDING_INFO does not say where its tensors belong: {str(error)[:80]}") from None


def _offsets(path: Path, shard: ShardReader) -> dict[str, Any] | None:
    """Read the offsets of a file's blocks in their tensors, by name, as torch.distributed.checkpoint notes them; None if it notes none."""
    text = shard.metadata.get("DCP_SHARDING_INFO")
    if text is None:
        return None
    try:
        return {name: tuple(info["saved_offsets"]) for name, info in parsed(text.encode()).items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DamagedCheckpointError(f"{path}: its DCP_SHARDING_INFO does not say where its tensors belong: {str(error)[:80]}") from None


def _entry(parts: list[tuple[Block, Piece]]) -> TensorEntry:
    first = parts[0][0]
    dims = range(len(first.shape))
    if any(len(piece.offset) != len(dims) or len(piece.shape) != len(dims) or block.dtype is not first.dtype for block, piece in parts):
        raise DamagedCheckpointError(f"the parts of tensor {shown(first.name)} do not fit each other: they have other dtypes or dimensions")
    shape = tuple(max(piece.offset[dim] + piece.shape[dim] for _, piece in parts) for dim in dims)
    return TensorEntry(name_of(first.dtype) or "", shape, tuple(piece for _, piece in parts))
