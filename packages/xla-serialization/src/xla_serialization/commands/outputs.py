"""Output of the subcommands: errors of files as one line on stderr and exit code 2; sizes as people read them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.filesize import decimal

from xla_serialization.errors import CheckpointError

PATH = click.Path(path_type=Path)


class Wrong(click.ClickException):
    """An error that click prints as one line on stderr; the exit code is 2."""

    exit_code = 2


@contextmanager
def one_line_errors() -> Iterator[None]:
    """Turn errors of checkpoints and files into one line on stderr and exit code 2."""
    try:
        yield
    except (CheckpointError, OSError) as error:
        raise Wrong(" ".join(str(error).split())) from error


def amount(tensors: int, nbytes: int) -> str:
    """Write counts, as in `3 tensors, 1.2 GB`."""
    return f"{tensors:,} tensor{'' if tensors == 1 else 's'}, {decimal(nbytes)}"
