"""Replace one file atomically where several programs may write to it, and remove what those that were killed have left.

The core's `atomic_write` does the replacing. The temporary file is made here, because it is locked before anything is written to it:
only so can a leftover of a killed program be distinguished from a file that another program is writing.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from xla_serialization.core import files
from xla_serialization.format.files import locked, remove_if_stale


@contextmanager
def locked_atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a path to write to; readers of `path` see the old file or the new one, whole. What is no file (a pipe) is written to directly.

    What a killed program left beside `path` is removed. Raises OSError; then the old file is as it was.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        yield target
        return
    prefix = f".{target.name[:100]}."
    with files.name_errors(target), ExitStack() as stack:
        with files.atomic_write(target, _locked_new_file(target, prefix, stack), durable=True) as temporary:
            yield temporary
    leftover = re.compile(re.escape(prefix) + "[0-9a-f]{16}")
    for other in target.parent.iterdir():
        if leftover.fullmatch(other.name):
            remove_if_stale(other)


def _locked_new_file(target: Path, prefix: str, stack: ExitStack) -> Path:
    """A new file beside the target, locked."""
    while True:
        temporary = target.with_name(prefix + secrets.token_hex(8))
        os.close(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        with suppress(FileNotFoundError):  # taken for a leftover before it was locked
            stack.enter_context(locked(temporary, wait=True))
            return temporary
