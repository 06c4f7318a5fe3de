"""`xla-debug run`: any script, unchanged, and the account of it at the end."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console

from xla_debug.account import files
from xla_debug.account.merging import merge
from xla_debug.commands import outputs
from xla_debug.folders import keeping, make_folder
from xla_debug.page import page
from xla_debug.render import report


@click.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option("-m", "module", is_flag=True, help="SCRIPT is the name of a module, as for python -m.")
@click.option("--html", type=outputs.FILE, help="Write one page that needs no network.")
@click.option("--json", type=outputs.FILE, help="Write the account as JSON.")
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(module: bool, html: str | None, json: str | None, script: str, args: tuple[str, ...]) -> None:
    """Run SCRIPT with ARGS, then say where its time went and what to change.

    The exit code is the script's. All its processes are accounted for: spawned replicas, torchrun's workers.
    """
    if not module and not Path(script).is_file():
        raise click.UsageError(f"there is no script {script!r}")
    started = time.time()
    try:
        folder = make_folder(os.getpid())
    except OSError as error:
        raise outputs.Wrong(str(error)) from error
    try:
        line = [sys.executable, *(["-m"] if module else []), script, *args]
        code = _run(line, {**os.environ, **keeping(folder)})
        found = [files.read(path) for path in sorted(folder.glob("account.*.json"))]
        if not found:
            click.echo("xla-debug: the script used no XLA device: nothing to account for", err=True)
            sys.exit(code)
        account = replace(merge(found), command=[script, *args], started_s=started, seconds=time.time() - started, exit_code=code)
    finally:
        shutil.rmtree(folder)
    if html:
        outputs.write(page(account).encode(), html)
    if json:
        outputs.write(files.dumped(account), json)
    if not html and not json:
        Console(stderr=True).print(report(account))
    sys.exit(code)


def _run(line: list[str], environment: dict[str, str]) -> int:
    """Its exit code, 128 + N after signal N. An interrupt is the script's to handle: it gets the same from the terminal."""
    with subprocess.Popen(line, env=environment) as script:
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            code = script.wait()
        finally:
            signal.signal(signal.SIGINT, before)
    return code if code >= 0 else 128 - code
