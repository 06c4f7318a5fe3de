"""Folders of safetensors files that other programs wrote: Hugging Face's, and those of torch.distributed.checkpoint, divided or not."""

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
    """The manifest that such a folder would have, without checksums, and its files.

    These are what the index names; without one `model.safetensors`, or all. None where there are none.
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
    entries = {name: _entry(found) for name, found in ordered.items()}
    manifest = Manifest("", sizes, entries, flat_tree(entries))
    check_sense(manifest, str(folder))
    return manifest, shards


def flat_tree(names: Iterable[str]) -> Tree:
    """Of a dict from these names to their tensors."""
    return {"dict": [[name, {"tensor": name}] for name in names]}


def _weights(folder: Path) -> Mapping[str, str] | None:
    """Name → file, of the index; None where there is none."""
    index = folder / INDEX
    try:
        with open_inside(folder, INDEX) as file:
            whole = parsed(file.read(LARGEST_TEXT + 1))
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not isinstance(whole, dict):
        return {}
    weights = whole.get("weight_map")
    if not isinstance(weights, dict) or not all(isinstance(file, str) for file in weights.values()):
        raise DamagedCheckpointError(f"{index}: no index of safetensors files: it has no 'weight_map' from names to files")
    for name in weights.values():
        if not is_file_name(name):
            raise DamagedCheckpointError(f"{index}: {shown(name)}, of {len(name)} characters, is no plain file name")
    return weights


def _without_index(folder: Path) -> list[str]:
    if (folder / _SINGLE).is_file():
        return [_SINGLE]
    # Not those of a save of ours that did not come to its moment.
    found = (path.name for path in folder.iterdir() if path.name.endswith(_ENDING) and path.is_file()) if folder.is_dir() else ()
    return sorted(name for name in found if is_file_name(name) and not is_own_shard(name))


def _opened(folder: Path, name: str) -> ShardReader:
    try:
        return open_shard(folder, name)
    except FileNotFoundError:
        raise DamagedCheckpointError(f"{folder / name}: this file of the checkpoint is missing") from None


def _pieces(path: Path, shard: ShardReader) -> list[tuple[Block, Piece]]:
    places = _offsets(path, shard)
    try:
        return [
            (block, Piece(path.name, block.name, (0,) * len(block.shape) if places is None else places[block.name], block.shape, ""))
            for block in shard.blocks()
        ]
    except (KeyError, ValidationError) as error:
        raise DamagedCheckpointError(f"{path}: its DCP_SHARDING_INFO does not say where its tensors belong: {str(error)[:80]}") from None


def _offsets(path: Path, shard: ShardReader) -> dict[str, Any] | None:
    """Name → offset of what is in a file, as torch.distributed.checkpoint notes it."""
    text = shard.metadata.get("DCP_SHARDING_INFO")
    if text is None:
        return None
    try:
        return {name: tuple(place["saved_offsets"]) for name, place in parsed(text.encode()).items()}
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise DamagedCheckpointError(f"{path}: its DCP_SHARDING_INFO does not say where its tensors belong: {str(error)[:80]}") from None


def _entry(found: list[tuple[Block, Piece]]) -> TensorEntry:
    first = found[0][0]
    dims = range(len(first.shape))
    if any(len(piece.offset) != len(dims) or len(piece.shape) != len(dims) or block.dtype is not first.dtype for block, piece in found):
        raise DamagedCheckpointError(f"the parts of tensor {shown(first.name)} do not fit each other: they have other dtypes or dimensions")
    shape = tuple(max(piece.offset[dim] + piece.shape[dim] for _, piece in found) for dim in dims)
    return TensorEntry(name_of(first.dtype) or "", shape, tuple(piece for _, piece in found))
