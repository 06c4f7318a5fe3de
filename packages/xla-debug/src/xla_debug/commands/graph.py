"""`xla-debug graph`: print or draw a saved program."""

from __future__ import annotations

from pathlib import Path

import click

from xla_debug import drawing, graphs
from xla_debug.account import files
from xla_debug.account.schema import Account
from xla_debug.errors import AccountFileError


class _Unusable(click.ClickException):
    """A file that holds no program that can be shown."""

    exit_code = 2


@click.command("graph")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--format", "form", type=click.Choice(["text", "dot", "svg"]), default="text", show_default=True)
@click.option("--output", "-o", type=click.Path(path_type=Path), help="Write there instead of to standard output.")
@click.option("--compile", "number", type=click.IntRange(min=0), help="Which compilation of an account, from 0 on, over all replicas.")
def command(file: Path, form: str, output: Path | None, number: int | None) -> None:
    """Print or draw a program.

    FILE is the text of a program, as torch_xla.debug.graph_saver saves it, or the JSON of an account, which holds the programs that
    were compiled. A drawing as SVG needs nothing but a browser; dot is for Graphviz.
    """
    try:
        text = _text(file, number)
        graph = graphs.parse(text)
    except graphs.GraphTextError as error:
        raise _Unusable(f"{file}: {error}") from error
    except AccountFileError as error:
        raise _Unusable(str(error)) from error
    shown = {"text": lambda: f"{text.rstrip()}\n", "dot": lambda: drawing.dot(graph), "svg": lambda: drawing.svg(graph)}[form]()
    try:
        click.echo(shown, nl=False) if output is None else output.write_text(shown, encoding="utf-8")
    except OSError as error:
        raise _Unusable(f"{output}: cannot be written ({error.strerror})") from error


def _text(file: Path, number: int | None) -> str:
    """The text of the program that is asked for. Raises GraphTextError, AccountFileError."""
    try:
        text = file.read_bytes().decode()
    except OSError as error:
        raise graphs.GraphTextError(f"cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise graphs.GraphTextError("not a text: give a saved graph or the JSON of an account") from error
    if text.lstrip().startswith("{"):
        return _compiled(files.read(file), number)
    if number is not None:
        raise graphs.GraphTextError("holds one program: leave out --compile, which chooses from an account")
    return text


def _compiled(account: Account, number: int | None) -> str:
    compiles = [compiled for replica in account.replicas for compiled in replica.compiles]
    if not compiles:
        raise graphs.GraphTextError("the account of a run that compiled nothing")
    if number is None and len(compiles) == 1:
        number = 0
    if number is None or number >= len(compiles):
        asked = "" if number is None else f", not {number}"
        raise graphs.GraphTextError(f"the account of {len(compiles)} compilations: choose with --compile 0 to {len(compiles) - 1}{asked}")
    if not compiles[number].graph:
        raise graphs.GraphTextError(f"the program of compilation {number} was too large to be kept: save it with torch_xla.debug.graph_saver")
    return compiles[number].graph
