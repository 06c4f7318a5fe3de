"""`xla-debug graph`: print or draw a saved program."""

from __future__ import annotations

from pathlib import Path

import click

from xla_debug.commands import file_io
from xla_debug.graphs import drawing, graph_text
from xla_debug.printable_text import printable
from xla_debug.regular_files import read_bytes
from xla_debug.run_report import files
from xla_debug.run_report.schema import RunReport


@click.command("graph")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--format", "form", type=click.Choice(["text", "dot", "svg"]), default="text", show_default=True)
@click.option("--output", "-o", type=file_io.FILE, default="-", help="Write there instead of to stdout.")
@click.option("--compile", "number", type=click.IntRange(min=0), help="Which compilation of a run report, from 0 on, over all replicas.")
def command(file: Path, form: str, output: str, number: int | None) -> None:
    """Print or draw a program.

    FILE is the text of a program, as torch_xla.debug.graph_saver saves it, or the JSON of a run report, which holds the programs that
    were compiled. A drawing as SVG needs nothing but a browser; dot is for Graphviz.
    """
    try:
        text = _text(file, number)
        graph = graph_text.parse(text)
        rendered = {"text": lambda: f"{text.rstrip()}\n", "dot": lambda: drawing.dot(graph), "svg": lambda: drawing.svg(graph)}[form]()
    except graph_text.GraphTextError as error:
        raise file_io.CommandError(f"{file}: {error}") from error
    if output == "-":
        click.echo(printable(rendered), nl=False)
    else:
        file_io.write(rendered.encode(), output)


def _text(file: Path, index: int | None) -> str:
    """Read the text of the chosen program. Raises GraphTextError, file_io.CommandError."""
    try:
        text = read_bytes(file).decode()
    except OSError as error:
        raise file_io.CommandError(f"{file}: cannot be read ({error.strerror}); give a saved graph or the JSON of a run report") from error
    except UnicodeDecodeError as error:
        raise file_io.CommandError(f"{file}: not a text; give a saved graph or the JSON of a run report") from error
    if text.lstrip().startswith("{"):
        with file_io.as_command_error():
            return _compiled(files.read(file), index)
    if index is not None:
        raise graph_text.GraphTextError("one program, not a run report: leave out --compile")
    return text


def _compiled(report: RunReport, index: int | None) -> str:
    compiles = [compiled for replica in report.replicas for compiled in replica.compiles]
    if not compiles:
        raise graph_text.GraphTextError("the report of a run that compiled nothing")
    if index is None and len(compiles) > 1:
        raise graph_text.GraphTextError(f"the report of {len(compiles)} compilations: choose one, --compile 0 to {len(compiles) - 1}")
    if index is not None and index >= len(compiles):
        raise graph_text.GraphTextError(f"no compilation {index} in this run report: it has {len(compiles)}, from 0 on")
    text = compiles[index or 0].graph
    if not text:
        raise graph_text.GraphTextError(f"the program of compilation {index or 0} was too large to be kept in the run report")
    return text
