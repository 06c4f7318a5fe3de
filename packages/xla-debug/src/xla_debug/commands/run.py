"""`xla-debug run`: run any script, unchanged, and show its run report at the end."""

from __future__ import annotations

import os
import shutil
import sys
import time
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console

from xla_debug import optional_libraries
from xla_debug.commands import file_io
from xla_debug.recording_folder import files_in, make_folder, recording_environment
from xla_debug.rendering.html_page import html_page
from xla_debug.rendering.terminal import full_view
from xla_debug.run_report import files
from xla_debug.run_report.excerpts import with_excerpts
from xla_debug.run_report.merging import merge
from xla_debug.script_process import run_script
from xla_debug.secret_values import hide_in_arguments


@click.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-m", "module", is_flag=True, help="SCRIPT is the name of a module, as for python -m.")
@click.option("--html", type=file_io.FILE, help="Write one page that needs no network.")
@click.option("--json", type=file_io.FILE, help="Write the run report as JSON.")
@click.option("--opentelemetry/--no-opentelemetry", default=None, help="Make spans; unless said, if the environment names an exporter.")
@click.option("--tensorboard", metavar="FOLDER", type=click.Path(file_okay=False, path_type=Path), help="Write each step's scalars.")
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(
    module: bool,
    html: str | None,
    json: str | None,
    opentelemetry: bool | None,
    tensorboard: Path | None,
    script: str,
    args: tuple[str, ...],
) -> None:
    """Run SCRIPT with ARGS, then say where its time went and what to change.

    The exit code is the script's. All its processes are recorded: spawned replicas, torchrun's workers.
    """
    if not module and not Path(script).is_file():
        raise click.UsageError(f"there is no script {script!r}")
    try:
        if opentelemetry:
            optional_libraries.require(optional_libraries.OPENTELEMETRY, "--opentelemetry")
        if tensorboard:
            optional_libraries.require(optional_libraries.TENSORBOARD, "--tensorboard")
    except ImportError as error:
        raise file_io.CommandError(str(error)) from error
    started = time.time()
    try:
        folder = make_folder(os.getpid())
    except OSError as error:
        raise file_io.CommandError(str(error)) from error
    try:
        command_line = [sys.executable, *(["-m"] if module else []), script, *args]
        exit_code = run_script(command_line, {**os.environ, **recording_environment(folder, opentelemetry, tensorboard)})
        reports = file_io.read_reports(files_in(folder))
        if not reports:
            click.echo("xla-debug: the script used no XLA device: nothing was recorded", err=True)
            sys.exit(exit_code)
        report = merge(reports)
        findings = with_excerpts(report.findings)  # those among replicas have none yet
        seconds = max(time.time() - started, 0.0)
        masked = hide_in_arguments([script, *args])
        report = replace(report, command=masked, started_s=started, seconds=seconds, exit_code=exit_code, findings=findings)
    finally:
        shutil.rmtree(folder)
    if tensorboard:
        click.echo(f"xla-debug: scalars for TensorBoard are in {tensorboard.absolute()}", err=True)
    if html:
        file_io.write(html_page(report).encode(), html)
    if json:
        file_io.write(files.to_json(report), json)
    if not html and not json:
        Console(stderr=True).print(full_view(report))
    sys.exit(exit_code)
