"""`python -m xla_serialization inspect`: list the contents of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from xla_serialization.commands import outputs
from xla_serialization.format.dtypes import name_of
from xla_serialization.format.leaves import TreeLeaf
from xla_serialization.tools.sources import Source, open_source

_SHOWN = 40
_WIDEST = 80


@click.command("inspect")
@click.argument("path", type=outputs.PATH)
@click.option("--json", "as_json", is_flag=True, help="As JSON, with every plain value.")
def command(path: Path, as_json: bool) -> None:
    """List the tensors and plain values of the checkpoint at PATH, without reading the tensors.

    PATH is a folder that xla_serialization.save wrote, a folder of safetensors files, a .safetensors file, or a file of torch.save,
    xm.save or xser.save.
    """
    with outputs.one_line_errors():
        source = open_source(path)
        plain = [leaf for leaf in source.leaves() if leaf.tensor is None]
    if as_json:
        click.echo(json.dumps(_as_json(source, plain), indent=2))
    else:
        _print(source, plain)


def _as_json(source: Source, plain: list[TreeLeaf]) -> dict[str, object]:
    tensors = {
        name: {
            "dtype": name_of(tensor.dtype),
            "shape": list(tensor.shape),
            "bytes": tensor.nbytes,
            "files": list(tensor.files),
            "pieces": tensor.pieces,
        }
        for name, tensor in source.tensors.items()
    }
    return {
        "path": str(source.path),
        "kind": source.kind.value,
        "bytes": source.nbytes,
        "tensors": tensors,
        "values": [{"keys": list(leaf.keys), "value": leaf.text} for leaf in plain],
    }


def _print(source: Source, plain: list[TreeLeaf]) -> None:
    console = Console()
    table = Table(title=Text(f"{source.path}: {source.kind.value}"), title_justify="left")
    for heading in ("tensor", "dtype", "shape", "bytes", "shard", "pieces"):
        table.add_column(heading, justify="right" if heading in ("bytes", "pieces") else "left", overflow="fold")
    shards = sorted({file for tensor in source.tensors.values() for file in tensor.files})
    for name, tensor in source.tensors.items():
        shape = "×".join(map(str, tensor.shape)) or "scalar"
        shard_numbers = ", ".join(str(1 + shards.index(file)) for file in tensor.files)
        cells = (name, name_of(tensor.dtype) or "", shape, f"{tensor.nbytes:,}", shard_numbers, str(tensor.pieces))
        table.add_row(*map(Text, cells))
    console.print(table)
    for number, file in enumerate(shards, 1):
        click.echo(f"shard {number}: {file}")
    if plain:
        values = Table(title="Plain values", show_header=False, title_justify="left")
        for leaf in plain[:_SHOWN]:
            text = leaf.text if len(leaf.text) <= _WIDEST else f"{leaf.text[: _WIDEST - 1]}…"
            values.add_row(Text(" → ".join(leaf.keys)), Text(text))
        console.print(values)
        if len(plain) > _SHOWN:
            console.print(f"… and {len(plain) - _SHOWN:,} more plain values: --json has all")
    click.echo(outputs.amount(len(source.tensors), source.nbytes))
