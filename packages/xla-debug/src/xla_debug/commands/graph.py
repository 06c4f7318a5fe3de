"""`xla-debug graph`: print or draw a saved program."""

from __future__ import annotations

from pathlib import Path

import click

from xla_debug import drawing, graphs
from xla_debug.account import files
from xla_debug.account.schema import Account
from xla_debug.commands import outputs


@click.command("graph")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--format", "form", type=click.Choice(["text", "dot", "svg"]), default="text", show_default=True)
@click.option("--output", "-o", type=outputs.FILE, default="-", help="Write there instead of to stdout.")
@click.option("--compile", "number", type=click.IntRange(min=0), help="Which compilation of an account, from 0 on, over all replicas.")
def command(file: Path, form: str, output: str, number: int | None) -> None:
    """Print or draw a program.

    FILE is the text of a program, as torch_xla.debug.graph_saver saves it, or the JSON of an account, which holds the programs that
    were compiled. A drawing as SVG needs nothing but a browser; dot is for Graphviz.
    """
    try:
        text = _text(file, number)
        graph = graphs.parse(text)
        shown = {"text": lambda: f"{text.rstrip()}\n", "dot": lambda: drawing.dot(graph), "svg": lambda: drawing.svg(graph)}[form]()
    except graphs.GraphTextError as error:
        raise outputs.Wrong(f"{file}: {error}") from error
    if output == "-":
        click.echo(shown, nl=False)
    else:
        outputs.write(shown.encode(), output)


def _text(file: Path, number: int | None) -> str:
    """The text of the program that is asked for. Raises GraphTextError, outputs.Wrong."""
    try:
        text = file.read_bytes().decode()
    except OSError as error:
        raise outputs.Wrong(f"{file}: cannot be read ({error.strerror}); give a saved graph or the JSON of an account") from error
    except UnicodeDecodeError as error:
        raise outputs.Wrong(f"{file}: not a text; give a saved graph or the JSON of an account") from error
    if text.lstrip().startswith("{"):
        with outputs.told():
            return _compiled(files.read(file), number)
    if number is not None:
        raise graphs.GraphTextError("one program, not an account: leave out --compile")
    return text


def _compiled(account: Account, number: int | None) -> str:
    compiles = [compiled for replica in account.replicas for compiled in replica.compiles]
    if not compiles:
        raise graphs.GraphTextError("the account of a run that compiled nothing")
    if number is None and len(compiles) > 1:
        raise graphs.GraphTextError(f"the account of {len(compiles)} compilations: choose one, --compile 0 to {len(compiles) - 1}")
    if number is not None and number >= len(compiles):
        raise graphs.GraphTextError(f"no compilation {number} in this account: it has {len(compiles)}, from 0 on")
    text = compiles[number or 0].graph
    if not text:
        raise graphs.GraphTextError(f"the program of compilation {number or 0} was too large to be kept in the account")
    return text
