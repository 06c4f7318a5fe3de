"""Write a file beside its place and put it there when it is whole."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from xla_serialization.format.folder import sync_folder


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Gives a path to write to; readers of `path` see the old file or the new one, whole. What is no file (a pipe) is written to directly.

    Raises OSError.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        yield target
        return
    beside = target.with_name(f".{target.name[:200]}.{secrets.token_hex(8)}")
    try:
        yield beside
        sync_file(beside)
        beside.replace(target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    sync_folder(target.parent)


def sync_file(path: Path) -> None:
    """Make a file's contents last."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
