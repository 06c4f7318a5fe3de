"""`xla-debug warm`: compile all that a script records, and keep it on disk for the processes that will run it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import click

from xla_debug.script_process import run_script


@click.command("warm", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True})
@click.option(
    "--cache",
    metavar="DIR",
    envvar="XLA_PERSISTENT_CACHE_PATH",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the programs there; without it, XLA_PERSISTENT_CACHE_PATH.",
)
@click.option(
    "--shapes", multiple=True, metavar="SHAPES", help="Call FUNCTION with zeros of these shapes, as 8x128:int64,8; give it often."
)
@click.option("--steps", type=click.IntRange(min=1), help="End the script after so many steps.")
@click.option("--target", metavar="NAME", help="Devices to compile for, if they are not here: v5e:4x4, h100, …")
@click.option("-m", "module", is_flag=True, help="SCRIPT is the name of a module, as for python -m.")
@click.argument("script", metavar="SCRIPT[:FUNCTION]")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(
    cache: Path, shapes: tuple[str, ...], steps: int | None, target: str | None, module: bool, script: str, args: tuple[str, ...]
) -> None:
    """Compile what SCRIPT with ARGS records, in threads, and run none of it.

    With FUNCTION the script is imported, not run, and the function is called with zeros of each of the --shapes. Options of the script
    follow `--`. The exit code is the script's, 1 if a program does not compile.
    """
    script, _, function = script.partition(":")
    if not module and not Path(script).is_file():
        raise click.UsageError(f"there is no script {script!r}")
    if bool(function) != bool(shapes):
        raise click.UsageError("--shapes are for a function, which is named behind the script: train.py:step --shapes 8x128:int64")
    from xla_debug.warm_script import parsed_shapes  # torch takes long to import

    try:
        calls = [parsed_shapes(text) for text in shapes]
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    options = {"target": target, "steps": steps, "module": module, "function": function, "calls": calls}
    command_line = [sys.executable, "-m", "xla_debug.warm_script", json.dumps(options), script, *args]
    sys.exit(run_script(command_line, {**os.environ, "XLA_PERSISTENT_CACHE_PATH": str(cache.absolute())}))
