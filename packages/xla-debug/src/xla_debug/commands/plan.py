"""`xla-debug plan`: compile a script for devices that this machine has not, and say what it needs and how long a step takes."""

from __future__ import annotations

import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import click
from rich.console import Console

from xla_debug.commands import file_io
from xla_debug.plan.schema import Plan, from_json, to_json
from xla_debug.plan.search import candidate, meshes, ranked
from xla_debug.rendering.plan_limits import broken, parse_bytes, parse_seconds
from xla_debug.script_process import run_script


@click.command("plan", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": True})
@click.option("--target", required=True, metavar="NAME", help="Devices to compile for: v5e:4x4, v5p-16, h100, h100x8, …")
@click.option("--steps", type=click.IntRange(min=1), default=3, show_default=True, help="End the script after so many steps.")
@click.option("-m", "module", is_flag=True, help="SCRIPT is the name of a module, as for python -m.")
@click.option("--json", type=file_io.FILE, help="Write the plan as JSON.")
@click.option("--html", type=file_io.FILE, help="Write one page that needs no network.")
@click.option(
    "--cache",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Keep the programs, for processes that have the devices.",
)
@click.option("--search", is_flag=True, help="Try every mesh of the target's devices with the axes of the script's, and rank them.")
@click.option("--fits", is_flag=True, help="Exit with 1 unless all compiles and fits into the devices' memory.")
@click.option("--memory", metavar="SIZE", help="Exit with 1 if a device needs more, such as 30GiB.")
@click.option("--step-time", metavar="TIME", help="Exit with 1 if a step is estimated to take longer, such as 2s or 150ms.")
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(
    target: str,
    steps: int,
    module: bool,
    json: str | None,
    html: str | None,
    cache: Path | None,
    search: bool,
    fits: bool,
    memory: str | None,
    step_time: str | None,
    script: str,
    args: tuple[str, ...],
) -> None:
    """Compile SCRIPT with ARGS for devices that are not here, and say what it needs there.

    Nothing runs on a device: every time is an estimate. Options of the script follow `--`. The exit code is 1 if a program does not compile
    or a limit is broken, and the script's if that fails.
    """
    if not module and not Path(script).is_file():
        raise click.UsageError(f"there is no script {script!r}")
    try:
        limits = (None if memory is None else parse_bytes(memory), None if step_time is None else parse_seconds(step_time))
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    plan, exit_code = _planned(target, steps, cache, module, script, args)
    if search:
        plan = _searched(plan, target, steps, module, script, args)
    problems = broken(plan, fits, *limits)
    if json:
        file_io.write(to_json(plan), json)
    if html:
        from xla_debug.rendering.plan_page import plan_page

        file_io.write(plan_page(plan).encode(), html)
    if not json and not html:
        from xla_debug.rendering.plan_view import plan_view

        Console().print(plan_view(plan))
    for problem in problems:
        click.echo(f"xla-debug: {problem}", err=True)
    sys.exit(exit_code or (1 if problems else 0))


def _searched(plan: Plan, target: str, steps: int, module: bool, script: str, args: tuple[str, ...]) -> Plan:
    """The plan, with those of all other meshes in short. Raises CommandError for a script that shards over no mesh with named axes."""
    if not plan.mesh or not all(isinstance(name, str) and not name.isdigit() for name in plan.mesh):
        raise file_io.CommandError("--search is for scripts that shard over a mesh with names for its axes (xs.Mesh(ids, shape, names))")
    candidates = []
    for mesh in meshes(plan.devices, list(plan.mesh)):
        sizes = ",".join(f"{name}={size}" for name, size in mesh.items())
        click.echo(f"xla-debug: planning with {sizes}", err=True)
        other = plan if mesh == plan.mesh else _planned(target, steps, None, module, script, args, XLA_PLANNED_MESH=sizes)[0]
        candidates.append(candidate(mesh, other))
    return replace(plan, searched=ranked(candidates))


def _planned(
    target: str, steps: int, cache: Path | None, module: bool, script: str, args: tuple[str, ...], **variables: str
) -> tuple[Plan, int]:
    """The plan that a process of its own makes, and its exit code. A crash of the compiler ends that process only."""
    with tempfile.TemporaryDirectory(prefix="xla-debug-plan-") as folder:
        file = Path(folder) / "plan.json"
        command_line = [
            sys.executable,
            "-m",
            "xla_debug.plan.script",
            str(file),
            target,
            str(steps),
            "module" if module else "file",
            script,
            *args,
        ]
        environment = {**os.environ, "XLA_TARGET": target, **variables}
        if cache is not None:
            environment["XLA_PERSISTENT_CACHE_PATH"] = str(cache.absolute())
        # Nothing here may look for devices, of which another plugin has perhaps none.
        environment.setdefault("JAX_PLATFORMS", "cpu")
        exit_code = run_script(command_line, environment)
        if not file.is_file():
            raise file_io.CommandError(f"the script was not planned: its process ended with exit code {exit_code}")
        plan = from_json(file.read_bytes())
    if exit_code > 128 and plan.error is None:
        error = f"the compiler ended the process with signal {exit_code - 128}, in the program after the last one below"
        plan = replace(plan, error=error)
    return plan, exit_code
