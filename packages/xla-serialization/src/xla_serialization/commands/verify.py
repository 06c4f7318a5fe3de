"""`python -m xla_serialization verify`: check that all tensors are as they were written."""

from __future__ import annotations

from pathlib import Path

import click

from xla_serialization.commands import outputs
from xla_serialization.errors import DamagedCheckpointError
from xla_serialization.progress import progress_bar
from xla_serialization.tools.sources import is_foreign
from xla_serialization.tools.verification import find_damage


@click.command("verify")
@click.argument("path", type=outputs.PATH)
@click.pass_context
def command(context: click.Context, path: Path) -> None:
    """Read every tensor of the checkpoint in folder PATH, and compare checksums.

    Names each damaged tensor and its file. Exit code 1 if there is one, 2 if PATH is no checkpoint of xla_serialization.
    """
    with outputs.one_line_errors():
        if is_foreign(path):
            raise outputs.Wrong(f"{path}: holds no checksums: only a folder that xla_serialization.save wrote does; convert makes one")
        try:
            with progress_bar("verifying") as progress:
                manifest, damages = find_damage(path, progress)
        except DamagedCheckpointError as error:
            click.echo(str(error))
            context.exit(1)
    for damage in damages:
        click.echo(f"{damage.tensor}: {damage.what}")
    count = len({damage.tensor for damage in damages})
    verdict = f"{count:,} damaged" if count else "all as they were written"
    click.echo(f"{path}: {outputs.amount(len(manifest.tensors), manifest.nbytes)}, {verdict}")
    context.exit(1 if damages else 0)
