"""Replace one file atomically: through links, and what is no file is written to directly."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from xla_serialization.core import files


@contextmanager
def locked_atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a path to write to; readers of `path` see the old file or the new one, whole. What is no file (a pipe) is written to directly.

    Several programs may do so at once, and what killed ones left beside `path` is removed. Raises OSError; then the old file is as it was.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        yield target
        return
    with files.name_errors(target), files.atomic_write(target, durable=True) as temporary:
        yield temporary
