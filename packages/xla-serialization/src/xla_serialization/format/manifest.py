"""The index of a checkpoint: JSON, checked for sense before anything that it names is opened (FORMAT.md §1, §2, §3, §7)."""

from __future__ import annotations

import functools
import io
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Annotated, Any

import xxhash
from pydantic import ConfigDict, FailFast, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass as checked

from xla_serialization.errors import DamagedCheckpointError, NewerCheckpointError
from xla_serialization.format.dtypes import DTYPES
from xla_serialization.format.limits import MOST_DIMS, is_file_name, parsed, shown

INDEX = "model.safetensors.index.json"
VERSION = 1
MANIFEST_KEY = "xla_checkpoint"
_OURS = frozenset({"version", "id", "files", "tensors", "tree", "checksum"})
"""The keys of a manifest."""
_BYTES_LIMIT = 1 << 63
_LENIENT = ConfigDict(extra="ignore")


class ForeignIndexError(DamagedCheckpointError):
    """An index that another program wrote."""


# FailFast: a damaged index of a million numbers makes one error, not a million.
Shape = Annotated[tuple[int, ...], FailFast()]
Tree = Any
"""The JSON that describes a nesting (FORMAT.md §5)."""


@checked(frozen=True, slots=True, config=_LENIENT)
class Piece:
    """The block of a tensor of `shape` whose first element is at `offset`: stored as `name` in `file`."""

    file: str
    name: str
    offset: Shape
    shape: Shape
    checksum: str


@checked(frozen=True, slots=True, config=_LENIENT)
class TensorEntry:
    """A tensor: its dtype by torch's name, and the pieces that cover it."""

    dtype: str
    shape: Shape
    pieces: Annotated[tuple[Piece, ...], FailFast()]

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.shape) * DTYPES[self.dtype].itemsize


@dataclass(frozen=True)
class Manifest:
    """The index of a checkpoint. files: sizes in bytes by name. id: of the save, "" for a folder that another program wrote."""

    id: str
    files: dict[str, int]
    tensors: dict[str, TensorEntry]
    tree: Tree = None
    version: int = VERSION

    @property
    def nbytes(self) -> int:
        """Bytes of all tensors."""
        return sum(entry.nbytes for entry in self.tensors.values())


def checksum(data: Any) -> str:
    """Compute the 64-bit XXH3 of any object with a buffer."""
    return xxhash.xxh3_64_hexdigest(data)


def dump(manifest: Manifest) -> bytes:
    """Write a manifest as the text of an index file."""
    plain = {
        "version": manifest.version,
        "id": manifest.id,
        "files": manifest.files,
        "tensors": manifest.tensors,
        "tree": manifest.tree,
    }
    document = {**_for_others(manifest), MANIFEST_KEY: {**plain, "checksum": _checksum_of(plain)}}
    # Into a file of bytes: `dumps` would keep thousands of short texts until all are there.
    text = io.BytesIO()
    with io.TextIOWrapper(text, encoding="ascii", write_through=True) as file:
        json.dump(document, file, indent=1, allow_nan=False, default=_fields)
        return text.getvalue()


def _for_others(manifest: Manifest) -> dict[str, Any]:
    """Make the part of the index that other programs read."""
    weights = {piece.name: piece.file for entry in manifest.tensors.values() for piece in entry.pieces}
    return {"metadata": {"total_size": manifest.nbytes}, "weight_map": weights}


def canonical(plain: Any) -> bytes:
    """Write JSON that is the same for equal values, whatever the order of their keys."""
    # Checksums are of this, not of the file's text, which contains the checksum itself.
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False, default=_fields).encode()


def _fields(entry: Any) -> dict[str, Any]:
    """Turn a tensor's entry, or a piece, into the dict that JSON holds."""
    return {field.name: getattr(entry, field.name) for field in fields(entry)}


def _checksum_of(plain: dict[str, Any]) -> str:
    """Compute the checksum of a manifest's canonical JSON, which is made a tensor at a time."""
    digest = xxhash.xxh3_64()
    for part in _parts(plain, 2):
        digest.update(part)
    return digest.hexdigest()


def _parts(value: Any, depth: int) -> Iterator[bytes]:
    """Yield the canonical JSON of a value in parts: value by value for objects down to `depth`, deeper values whole."""
    if not depth or not isinstance(value, dict):
        yield canonical(value)
        return
    for index, key in enumerate(sorted(value)):
        yield (b"," if index else b"{") + canonical(key) + b":"
        yield from _parts(value[key], depth - 1)
    yield b"}" if value else b"{}"


def parse(data: bytes, path: str) -> Manifest:
    """Read the manifest in an index file. Raises DamagedCheckpointError or NewerCheckpointError; `path` is for their text."""
    try:
        document = parsed(data)
    except (ValueError, RecursionError) as error:
        raise DamagedCheckpointError(f"{path}: not JSON within our limits, or cut off after {len(data)} bytes ({error})") from error
    if not isinstance(document, dict) or not isinstance(document.get(MANIFEST_KEY), dict):
        if isinstance(document, dict) and any(isinstance(part, dict) and part.keys() >= _OURS for part in document.values()):
            raise DamagedCheckpointError(f"{path}: the manifest has changed since it was written: it is not under {MANIFEST_KEY!r}")
        raise ForeignIndexError(f"{path}: the index of another program's checkpoint: it has no {MANIFEST_KEY!r}")
    recorded: dict[str, Any] = document[MANIFEST_KEY]
    version = recorded.get("version")
    if type(version) is not int or version < 1:
        raise DamagedCheckpointError(f"{path}: a checkpoint of version {shown(version)}, which never was")
    # Before the checksum, which a newer version may compute over other fields.
    if version > VERSION:
        raise NewerCheckpointError(
            f"{path}: a checkpoint of version {version}, this xla-serialization reads up to {VERSION}: pip install -U xla-serialization"
        )
    recorded_checksum = recorded.pop("checksum", None)
    if recorded_checksum is None or recorded_checksum != _safe_checksum(recorded):
        raise DamagedCheckpointError(f"{path}: the manifest has changed since it was written: its checksum is wrong")
    try:
        files, tensors = _validated(recorded["files"], int), _validated(recorded["tensors"], TensorEntry)
        (save_id,) = _validated({"id": recorded["id"]}, str).values()
    except KeyError as error:
        raise DamagedCheckpointError(f"{path}: the manifest does not follow the format: it has no {error}") from error
    except ValueError as error:
        raise DamagedCheckpointError(f"{path}: the manifest does not follow the format: {error}") from error
    if not save_id:
        raise DamagedCheckpointError(f"{path}: the manifest does not follow the format: its id is empty")
    manifest = Manifest(save_id, files, tensors, recorded.get("tree"), version)
    check_sense(manifest, path)
    for key, value in _for_others(manifest).items():
        if document.get(key) != value:
            raise DamagedCheckpointError(f"{path}: {key!r}, which other programs read, does not say what the manifest says")
    return manifest


def _validated(entries: Any, expected: Any) -> dict[str, Any]:
    """Convert the entries of a JSON object to the expected type. Raises ValueError for the first that does not fit."""
    if not isinstance(entries, dict):
        raise ValueError(f"{shown(entries)} is no object")
    values = {}
    for name, value in entries.items():
        try:
            values[name] = _adapter(expected).validate_python(value)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            location = ".".join(map(str, first["loc"]))
            raise ValueError(f"{shown(name)[1:-1]}{location and '.'}{location}: {first['msg']}") from None
    return values


def _safe_checksum(plain: dict[str, Any]) -> str | None:
    try:
        return _checksum_of(plain)
    except (ValueError, RecursionError):  # a number beyond floats, which no index of ours has, or too deep a nesting
        return None


@functools.cache
def _adapter(expected: Any) -> TypeAdapter[Any]:
    return TypeAdapter(expected)


def check_sense(manifest: Manifest, path: str) -> None:
    """Raise DamagedCheckpointError for names that are no plain file names, unknown dtypes, and pieces that do not make up their tensor."""
    for file, size in manifest.files.items():
        if not is_file_name(file):
            raise DamagedCheckpointError(f"{path}: {shown(file)}, of {len(file)} characters, is no plain file name")
        if size < 0:
            raise DamagedCheckpointError(f"{path}: {file} has {size} bytes")
    stored: set[tuple[str, str]] = set()
    for name, entry in manifest.tensors.items():
        tensor = f"tensor {shown(name)}"
        if entry.dtype not in DTYPES:
            raise DamagedCheckpointError(f"{path}: {tensor} has an unknown dtype, {shown(entry.dtype)}")
        if len(entry.shape) > MOST_DIMS or not _is_possible(entry.shape, DTYPES[entry.dtype].itemsize):
            problem = f"an impossible shape of {len(entry.shape)} dimensions, of {MOST_DIMS} at most"
            raise DamagedCheckpointError(f"{path}: {tensor} has {problem}: {str(list(entry.shape[:8]))[:80]}")
        _check_pieces(tensor, entry, manifest, path)
        for piece in entry.pieces:
            if (piece.file, piece.name) in stored:  # so that a small file cannot fill a large memory
                raise DamagedCheckpointError(f"{path}: the piece {shown(piece.name)} of {tensor} is part of two")
            stored.add((piece.file, piece.name))


def _is_possible(shape: Shape, itemsize: int) -> bool:
    """Whether a tensor may have this shape: no size is negative, and the sizes other than 0 make fewer than 2^63 bytes."""
    nbytes = itemsize
    for size in shape:
        nbytes *= max(size, 1)
        if size < 0 or nbytes >= _BYTES_LIMIT:
            return False
    return True


def _check_pieces(tensor: str, entry: TensorEntry, manifest: Manifest, path: str) -> None:
    for piece in entry.pieces:
        if piece.file not in manifest.files:
            raise DamagedCheckpointError(f"{path}: {tensor} is in {shown(piece.file)}, which is no file of this checkpoint")
        if not _inside(piece, entry.shape):
            extent = f"{shown(list(piece.shape))} at {shown(list(piece.offset))}"
            raise DamagedCheckpointError(f"{path}: a piece of {tensor} is outside it: {extent}")
    if not _is_covered(entry):
        raise DamagedCheckpointError(f"{path}: the pieces of {tensor} overlap, or do not make it up")


def _inside(piece: Piece, shape: Shape) -> bool:
    if not len(piece.offset) == len(piece.shape) == len(shape):
        return False
    return all(
        0 <= start and 0 <= size and start + size <= length for start, size, length in zip(piece.offset, piece.shape, shape, strict=True)
    )


def _is_covered(entry: TensorEntry) -> bool:
    """Whether the pieces form a grid that fills the tensor."""
    nonempty = [piece for piece in entry.pieces if math.prod(piece.shape)]
    # There is nothing to cover, but readers take even an empty tensor from a piece.
    if not math.prod(entry.shape):
        return len(entry.pieces) > 0
    count = 1
    for dim, length in enumerate(entry.shape):
        end = 0
        spans = sorted({(piece.offset[dim], piece.offset[dim] + piece.shape[dim]) for piece in nonempty})
        for start, stop in spans:
            if start != end:
                return False
            end = stop
        if end != length:
            return False
        count *= len(spans)
    # As many pieces as the grid has cells, each in a cell of its own.
    return len(nonempty) == count == len({piece.offset for piece in nonempty})
