"""`xla-debug operators`: show a profile's device time by operator, module and line."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console, Group

from xla_debug.commands import file_io
from xla_debug.rendering.formatting import counted, duration, number, percent
from xla_debug.rendering.tables import heading, plain, table

if TYPE_CHECKING:
    from xla_debug.profiling.operator_times import OperatorTime


@click.command("operators")
@click.argument("profile", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="All of them as JSON, milliseconds in `ms`.")
@click.option("--most", type=click.IntRange(min=1), default=30, show_default=True, help="Rows of the table.")
def command(profile: Path, as_json: bool, most: int) -> None:
    """Show the device time of each operator in a profile, with its module and the line that recorded it.

    PROFILE is a folder that torch_xla.debug.profiler.start_trace or trace wrote to, or a .xplane.pb file in it. Kernels into which several
    operators are fused count for the costliest; `fused` says how many others are in them, whose names --json has.
    """
    # Imported here, since these need jax.
    from xla_debug.profiling.operator_times import operator_times
    from xla_debug.profiling.profile_file import ProfileFileError

    try:
        times = operator_times(profile)
    except ProfileFileError as error:
        raise file_io.CommandError(str(error)) from error
    if as_json:
        click.echo(json.dumps([dataclasses.asdict(operator) for operator in times], indent=2))
    else:
        Console().print(_table(times, most))


def _table(times: Sequence[OperatorTime], most: int) -> Group:
    total = sum(time.ms for time in times)
    rows = [
        [
            time.operator,
            time.module,
            time.line or "",
            duration(time.ms),
            percent(time.ms / total if total else 0.0),
            number(time.count),
            number(len(time.fused)) if time.fused else "",
        ]
        for time in times[:most]
    ]
    note = f"{duration(total)} on the devices, in {counted(sum(time.count for time in times), 'kernel')}"
    body = table(["operator", "module", "line", ">time", ">share", ">kernels", ">fused"], rows)
    rest = [plain(f"and {len(times) - most} more: --most, or --json for all", "dim")] if len(times) > most else []
    return Group(heading("Device time by operator", note), body, *rest)
