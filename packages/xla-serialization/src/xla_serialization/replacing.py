"""Write a file beside its place and put it there when it is whole."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from xla_serialization.format.files import held, naming, remove_abandoned, sync_file, sync_folder


@contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Gives a path to write to; readers of `path` see the old file or the new one, whole. What is no file (a pipe) is written to directly.

    What a killed program left beside `path` is removed. Raises OSError; then the old file is as it was.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        yield target
        return
    prefix = f".{target.name[:100]}."
    with naming(target), ExitStack() as stack:
        beside = _made(target, prefix, stack)
        try:
            yield beside
            sync_file(beside)
            beside.replace(target)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
    sync_folder(target.parent)
    leftover = re.compile(re.escape(prefix) + "[0-9a-f]{16}")
    for other in target.parent.iterdir():
        if leftover.fullmatch(other.name):
            remove_abandoned(other)


def _made(target: Path, prefix: str, stack: ExitStack) -> Path:
    """A new file, held."""
    while True:
        beside = target.with_name(prefix + secrets.token_hex(8))
        os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
        with suppress(FileNotFoundError):  # taken for a leftover before it was held
            stack.enter_context(held(beside, wait=True))
            return beside
