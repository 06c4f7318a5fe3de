"""A file of an exported step: a description, and the bytes that it names. Written atomically, and checked when it is read.

Format: 8 bytes that say what kind of file it is (`XLA_STEP`); 8 bytes, the size of the description, little-endian; 32 bytes, its SHA-256;
the description, JSON; the parts in sequence.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, BinaryIO, Generic, TypeVar

from xla_core.base.errors import StepFileError
from xla_core.base.files import atomic_write, name_errors

_MAGIC_SIZE = 8
_PREFIX = _MAGIC_SIZE + 8 + hashlib.sha256().digest_size

_Described = TypeVar("_Described")


@dataclass(frozen=True, slots=True)
class Part:
    """A range of bytes in the file, with its checksum. offset: from the end of the description."""

    offset: int
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Format(Generic[_Described]):
    """A kind of file. magic: its first 8 bytes; title: for messages; parts: of a description, a dataclass.

    from_json: reads a description, or raises StepFileError.
    """

    magic: bytes
    title: str
    from_json: Callable[[Any], _Described]
    parts: Callable[[_Described], Sequence[Part]]


def write(
    path: str | os.PathLike[str],
    file_format: Format[_Described],
    sizes: Sequence[int],
    contents: Iterable[bytes | memoryview],
    describe: Callable[[Sequence[Part]], _Described],
    mode: int = 0o666,
) -> None:
    """Replace a file by one with these parts, with one part in memory at a time. describe: makes the description from the parts.

    mode: of the file, as far as the umask lets it. Readers find the old file or the new one. Raises OSError.
    """
    offsets = [sum(sizes[:index]) for index in range(len(sizes))]
    blank = "0" * 64
    unknown = [Part(offset, size, blank) for offset, size in zip(offsets, sizes, strict=True)]
    room = len(_text(describe(unknown)))  # all checksums have the same length, so this is the final size
    with atomic_write(path, mode=mode, durable=True) as temporary, name_errors(temporary), open(temporary, "r+b") as file:
        file.seek(_PREFIX + room)
        parts = [
            Part(part.offset, file.write(content), hashlib.sha256(content).hexdigest())
            for part, content in zip(unknown, contents, strict=True)
        ]
        text = _text(describe(parts))
        file.seek(0)
        file.write(file_format.magic + len(text).to_bytes(8, "little") + hashlib.sha256(text).digest() + text)


def _text(description: Any) -> bytes:
    return json.dumps(dataclasses.asdict(description), allow_nan=False, separators=(",", ":")).encode()


class Reader(Generic[_Described]):
    """Reads an open file. Raises StepFileError, with the path, for files of another kind, damaged, or of a newer version; OSError."""

    def __init__(self, file: BinaryIO, path: str, file_format: Format[_Described]) -> None:
        self._file, self._path, self._format = file, path, file_format
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise self.error("is no file")
        prefix = file.read(_PREFIX)
        if prefix[:_MAGIC_SIZE] != file_format.magic:
            raise self.error(f"is no {file_format.title}: it does not begin with {file_format.magic.decode()}")
        size = int.from_bytes(prefix[_MAGIC_SIZE : _MAGIC_SIZE + 8], "little")
        if len(prefix) < _PREFIX or size > status.st_size - _PREFIX:
            raise self.error(f"is cut off, or damaged: it has {status.st_size} bytes, and a description of {size} should be in it")
        text = file.read(size)
        if hashlib.sha256(text).digest() != prefix[-hashlib.sha256().digest_size :]:
            raise self.error("is damaged: its description has another checksum")
        self._start = _PREFIX + size
        try:
            self.description = file_format.from_json(json.loads(text, parse_constant=_refuse))
        except (StepFileError, ValueError, RecursionError) as error:
            raise self.error(f"cannot be read: {error}") from error
        self._check_parts(status.st_size - self._start)

    def error(self, problem: str) -> StepFileError:
        """An error with the file's path."""
        return StepFileError(f"{self._path} {problem}")

    def _check_parts(self, size: int) -> None:
        end = 0
        for part in sorted(self._format.parts(self.description), key=lambda part: (part.offset, part.size)):
            if part.offset != end:
                raise self.error(f"cannot be read: a part begins at {part.offset}, the one before ends at {end}")
            end += part.size
        if end != size:
            raise self.error(f"is cut off, or damaged: its parts have {end} bytes, and {size} are there")

    def part(self, part: Part, name: str) -> bytearray:
        """Read the bytes of a part. name: of the part, for messages."""
        self._file.seek(self._start + part.offset)
        content = bytearray(part.size)
        if self._file.readinto(content) != part.size:  # type: ignore[attr-defined]
            raise self.error(f"is cut off in {name}")
        if hashlib.sha256(content).hexdigest() != part.sha256:
            raise self.error(f"is damaged: {name} has another checksum")
        return content


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


@contextmanager
def open_file(path: str | os.PathLike[str], file_format: Format[_Described]) -> Iterator[Reader[_Described]]:
    """Open a file, and yield a reader. Raises as Reader."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # does not wait for pipes
    with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as file:
        yield Reader(file, str(path), file_format)
