"""Replace one file atomically, also through a link; a pipe or a device is written to directly."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from xla_serialization.core import files


@contextmanager
def locked_atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a path to write to; readers of `path` see the whole old file or the whole new one. What is no file (a pipe) is written directly.

    Several programs may do so at once, and files that killed ones left beside `path` are removed. On OSError the old file stays as it was.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        yield target
        return
    with files.name_errors(target), files.atomic_write(target, durable=True) as temporary:
        yield temporary
