"""Input and output of the subcommands: accounts and results in files; what is wrong is one line on stderr and exit code 2."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

from xla_debug.account import files
from xla_debug.account.schema import Account
from xla_debug.errors import AccountFileError

FILE = click.Path(dir_okay=False, allow_dash=True)
"""A file to write; `-` is stdout."""


class Wrong(click.ClickException):
    """One line on stderr and exit code 2."""

    exit_code = 2


@contextmanager
def told() -> Iterator[None]:
    """Turn AccountFileError into one line on stderr and exit code 2."""
    try:
        yield
    except AccountFileError as error:
        raise Wrong(str(error)) from error


def accounts(paths: Sequence[str]) -> list[Account]:
    """The accounts in files."""
    with told():
        return [files.read(path) for path in paths]


def write(data: bytes, path: str) -> None:
    """Write a result to a file, or to stdout."""
    if path == "-":
        click.echo(data)
        return
    try:
        files.write_whole(data, path)
    except OSError as error:
        raise Wrong(f"{path}: cannot be written ({error.strerror}); give another file") from error
