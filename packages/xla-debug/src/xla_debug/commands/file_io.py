"""Input and output of the subcommands: run reports and results in files; an error is one line on stderr and exit code 2."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import click

from xla_debug.run_report import files
from xla_debug.run_report.errors import RunReportFileError
from xla_debug.run_report.schema import RunReport

FILE = click.Path(dir_okay=False, allow_dash=True)
"""A file to write; `-` is stdout."""


class CommandError(click.ClickException):
    """An error that click prints as one line on stderr; the exit code is 2."""

    exit_code = 2


@contextmanager
def as_command_error() -> Iterator[None]:
    """Turn RunReportFileError into one line on stderr and exit code 2."""
    try:
        yield
    except RunReportFileError as error:
        raise CommandError(str(error)) from error


def read_reports(paths: Sequence[str | os.PathLike[str]]) -> list[RunReport]:
    """Read the run reports in files."""
    with as_command_error():
        return [files.read(path) for path in paths]


def write(data: bytes, path: str) -> None:
    """Write a result to stdout, or to a file whose path is then printed on stderr."""
    if path == "-":
        click.echo(data)
        return
    try:
        files.replace_file(path, data)
    except OSError as error:
        raise CommandError(f"{path}: cannot be written ({error.strerror}); give another file") from error
    click.echo(f"xla-debug: written to {os.path.abspath(path)}", err=True)
