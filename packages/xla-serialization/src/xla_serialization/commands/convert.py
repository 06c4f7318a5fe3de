"""`python -m xla_serialization convert`: from one format to another."""

from __future__ import annotations

from pathlib import Path

import click

from xla_serialization.commands import outputs
from xla_serialization.format.leaves import TreeLeaf
from xla_serialization.progress import progress_bar
from xla_serialization.tools import conversion
from xla_serialization.tools.sources import open_source


@click.command("convert")
@click.argument("path", metavar="SOURCE", type=outputs.PATH)
@click.argument("target", metavar="TARGET", type=outputs.PATH)
@click.option("--tensors-only", is_flag=True, help="Leave out plain values: a flat dict of tensors, named by their keys with dots between.")
def command(path: Path, target: Path, tensors_only: bool) -> None:
    """Write what SOURCE holds, a path as for inspect, to TARGET, in the format of its ending.

    .safetensors: one file with tensors only. .pt, .pth, .bin: for torch.load(weights_only=True). Any other: a folder, as
    xla_serialization.save writes. What the format cannot keep is refused, and TARGET stays as it was.
    """
    with outputs.one_line_errors():
        if target.exists() and target.samefile(path):
            raise outputs.Wrong(f"{target}: is SOURCE itself; give another TARGET")
        source = open_source(path)
        left_out: list[TreeLeaf] = []
        if tensors_only:
            source, left_out = conversion.tensors_only(source)
        with progress_bar("converting") as progress:
            conversion.convert(source, target, progress)
    if left_out:
        click.echo(f"left out: {conversion.described(left_out)}", err=True)
    click.echo(f"{target}: {outputs.amount(len(source.tensors), source.nbytes)}")
