"""The file of an exported step: a description, and the bytes that it names. Written atomically, and checked when it is read.

Format: 8 bytes `XLA_STEP`; 8 bytes, the size of the description, little-endian; 32 bytes, its SHA-256; the description, JSON; the parts in
sequence.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO

from xla_core.base.errors import StepFileError
from xla_core.base.files import atomic_write, name_errors
from xla_core.features.export.steps.step_description import Description, Part, as_json, from_json

MAGIC = b"XLA_STEP"
_PREFIX = len(MAGIC) + 8 + hashlib.sha256().digest_size
_BLOCK = 1 << 24


def write(
    path: str | os.PathLike[str],
    sizes: Sequence[int],
    contents: Iterable[bytes | memoryview],
    describe: Callable[[Sequence[Part]], Description],
) -> None:
    """Replace a file by one with these parts, with one part in memory at a time. describe: makes the description from the parts.

    Readers find the old file or the new one. Raises OSError.
    """
    offsets = [sum(sizes[:index]) for index in range(len(sizes))]
    blank = "0" * 64
    unknown = [Part(offset, size, blank) for offset, size in zip(offsets, sizes, strict=True)]
    room = len(_text(describe(unknown)))  # all checksums have the same length, so this is the final size
    with atomic_write(path, durable=True) as temporary, name_errors(temporary), open(temporary, "r+b") as file:
        file.seek(_PREFIX + room)
        parts = [
            Part(part.offset, file.write(content), hashlib.sha256(content).hexdigest())
            for part, content in zip(unknown, contents, strict=True)
        ]
        text = _text(describe(parts))
        file.seek(0)
        file.write(MAGIC + len(text).to_bytes(8, "little") + hashlib.sha256(text).digest() + text)


def _text(description: Description) -> bytes:
    return json.dumps(as_json(description), allow_nan=False, separators=(",", ":")).encode()


class Reader:
    """Reads an open file. Raises StepFileError, with the path, for files that are no step, damaged, or of a newer version; OSError."""

    def __init__(self, file: BinaryIO, path: str) -> None:
        self._file, self._path = file, path
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise self.error("is no file")
        prefix = file.read(_PREFIX)
        if prefix[: len(MAGIC)] != MAGIC:
            raise self.error("is no exported step: it does not begin with XLA_STEP")
        size = int.from_bytes(prefix[len(MAGIC) : len(MAGIC) + 8], "little")
        if len(prefix) < _PREFIX or size > status.st_size - _PREFIX:
            raise self.error(f"is cut off, or damaged: it has {status.st_size} bytes, and a description of {size} should be in it")
        text = file.read(size)
        if hashlib.sha256(text).digest() != prefix[-hashlib.sha256().digest_size :]:
            raise self.error("is damaged: its description has another checksum")
        self._start = _PREFIX + size
        try:
            self.description = from_json(json.loads(text, parse_constant=_refuse))
        except (StepFileError, ValueError, RecursionError) as error:
            raise self.error(f"cannot be read: {error}") from error
        self._check_parts(status.st_size - self._start)

    def error(self, problem: str) -> StepFileError:
        """An error with the file's path."""
        return StepFileError(f"{self._path} {problem}")

    def _check_parts(self, size: int) -> None:
        end = 0
        parts = [state.value for state in self.description.state.values()] + [program.code for program in self.description.programs]
        for part in sorted(parts, key=lambda part: (part.offset, part.size)):
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
def open_step(path: str | os.PathLike[str]) -> Iterator[Reader]:
    """Open a file, and yield a reader. Raises as Reader."""
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # does not wait for pipes
    with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as file:
        yield Reader(file, str(path))
