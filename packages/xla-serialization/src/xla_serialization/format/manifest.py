"""The index of a checkpoint: JSON, checked for sense before anything that it names is opened (FORMAT.md §1, §2, §3, §7)."""

from __future__ import annotations

import functools
import json
import math
import re
from dataclasses import asdict, dataclass
from typing import Any

import xxhash
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from xla_serialization.errors import DamagedCheckpointError, NewerCheckpointError
from xla_serialization.format.dtypes import DTYPES

INDEX = "model.safetensors.index.json"
VERSION = 1
LARGEST_TEXT = 100 << 20
"""Bytes of an index, and of a shard's header, at most."""
_KEY = "xla_checkpoint"
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_SIZE_LIMIT = 1 << 63
_LENIENT = ConfigDict(extra="ignore")

Shape = tuple[int, ...]
Tree = Any
"""What stands for a nesting in JSON (FORMAT.md §5)."""


@checked(frozen=True, config=_LENIENT)
class Piece:
    """The block of a tensor of `shape` whose first element is at `offset`: stored as `name` in `file`."""

    file: str
    name: str
    offset: Shape
    shape: Shape
    checksum: str


@checked(frozen=True, config=_LENIENT)
class TensorEntry:
    """A tensor: its dtype by torch's name, and the pieces that cover it."""

    dtype: str
    shape: Shape
    pieces: tuple[Piece, ...]

    @property
    def nbytes(self) -> int:
        """Of its elements."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint holds. files: name → bytes."""

    id: str
    files: dict[str, int]
    tensors: dict[str, TensorEntry]
    tree: Tree = None
    version: int = VERSION

    @property
    def nbytes(self) -> int:
        """Of all tensors."""
        return sum(entry.nbytes for entry in self.tensors.values())


def checksum(data: Any) -> str:
    """XXH3 with 64 bits, of anything with a buffer."""
    return xxhash.xxh3_64_hexdigest(data)


def dump(manifest: Manifest) -> bytes:
    """The index file."""
    plain = {
        "version": manifest.version,
        "id": manifest.id,
        "files": manifest.files,
        "tensors": {name: asdict(entry) for name, entry in manifest.tensors.items()},
        "tree": manifest.tree,
    }
    weights = {piece.name: piece.file for entry in manifest.tensors.values() for piece in entry.pieces}
    whole = {
        "metadata": {"total_size": manifest.nbytes},
        "weight_map": weights,
        _KEY: {**plain, "checksum": checksum(_canonical(plain))},
    }
    return json.dumps(whole, indent=1, allow_nan=False).encode()


def _canonical(plain: dict[str, Any]) -> bytes:
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def parse(data: bytes, path: str) -> Manifest:
    """The manifest in an index file. Raises DamagedCheckpointError or NewerCheckpointError; `path` is for their text."""
    try:
        whole = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise DamagedCheckpointError(f"{path}: not JSON, or cut off after {len(data)} bytes ({error})") from error
    if not isinstance(whole, dict) or not isinstance(whole.get(_KEY), dict):
        raise DamagedCheckpointError(f"{path}: the index of another program's checkpoint: it has no {_KEY!r}")
    found: dict[str, Any] = whole[_KEY]
    version = found.get("version")
    if type(version) is not int or version < 1:
        raise DamagedCheckpointError(f"{path}: a checkpoint of version {version!r}, which never was")
    if version > VERSION:
        raise NewerCheckpointError(
            f"{path}: a checkpoint of version {version}, this xla-serialization reads up to {VERSION}: pip install -U xla-serialization"
        )
    told = found.pop("checksum", None)
    if told != _safe_checksum(found):
        raise DamagedCheckpointError(f"{path}: the manifest has changed since it was written: its checksum is wrong")
    try:
        files = _adapter(dict[str, int]).validate_python(found["files"])
        tensors = _adapter(dict[str, TensorEntry]).validate_python(found["tensors"])
        name = _adapter(str).validate_python(found["id"])
    except (KeyError, ValidationError) as error:
        raise DamagedCheckpointError(f"{path}: the manifest does not follow the format: {error}") from error
    manifest = Manifest(name, files, tensors, found.get("tree"), version)
    _check(manifest, path)
    return manifest


def _safe_checksum(found: dict[str, Any]) -> str | None:
    try:
        return checksum(_canonical(found))
    except (ValueError, RecursionError):  # NaN, which no index of ours has; or nested without end
        return None


@functools.cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _check(manifest: Manifest, path: str) -> None:
    """Raise DamagedCheckpointError for names that are no plain file names, unknown dtypes, and pieces that do not make up their tensor."""
    for file, size in manifest.files.items():
        if not _FILE.fullmatch(file):
            raise DamagedCheckpointError(f"{path}: {file!r} is no plain file name")
        if size < 0:
            raise DamagedCheckpointError(f"{path}: {file} has {size} bytes")
    for name, entry in manifest.tensors.items():
        if entry.dtype not in DTYPES:
            raise DamagedCheckpointError(f"{path}: tensor {name!r} has an unknown dtype, {entry.dtype!r}")
        if any(size < 0 for size in entry.shape) or entry.nbytes >= _SIZE_LIMIT:
            raise DamagedCheckpointError(f"{path}: tensor {name!r} has the impossible shape {list(entry.shape)}")
        _check_pieces(name, entry, manifest, path)


def _check_pieces(name: str, entry: TensorEntry, manifest: Manifest, path: str) -> None:
    for piece in entry.pieces:
        if piece.file not in manifest.files:
            raise DamagedCheckpointError(f"{path}: tensor {name!r} lies in {piece.file!r}, which is no file of this checkpoint")
        if not _inside(piece, entry.shape):
            raise DamagedCheckpointError(f"{path}: a piece of tensor {name!r} lies outside it: {list(piece.shape)} at {list(piece.offset)}")
    if sum(math.prod(piece.shape) for piece in entry.pieces) != math.prod(entry.shape) or (not entry.pieces):
        raise DamagedCheckpointError(f"{path}: the pieces of tensor {name!r} do not make it up")
    if len(entry.pieces) > 1:
        _check_apart(name, entry.pieces, path)


def _inside(piece: Piece, shape: Shape) -> bool:
    if not len(piece.offset) == len(piece.shape) == len(shape):
        return False
    return all(
        0 <= start and 0 <= size and start + size <= whole for start, size, whole in zip(piece.offset, piece.shape, shape, strict=True)
    )


def _check_apart(name: str, pieces: tuple[Piece, ...], path: str) -> None:
    """Blocks of right total size cover a tensor exactly if no two of them overlap."""
    placed = sorted((piece for piece in pieces if math.prod(piece.shape)), key=lambda piece: piece.offset)
    for number, piece in enumerate(placed):
        for other in placed[number + 1 :]:
            if piece.offset and other.offset[0] >= piece.offset[0] + piece.shape[0]:
                break  # sorted: so do all that follow
            if all(a < b + m and b < a + n for a, n, b, m in zip(piece.offset, piece.shape, other.offset, other.shape, strict=True)):
                raise DamagedCheckpointError(f"{path}: pieces of tensor {name!r} overlap, at {list(piece.offset)} and {list(other.offset)}")
