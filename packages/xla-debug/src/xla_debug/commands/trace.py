"""`xla-debug trace`: write the last steps of a run as a trace for Perfetto."""

from __future__ import annotations

from pathlib import Path

import click

from xla_debug.commands import file_io
from xla_debug.run_report.merging import merge


@click.command("trace")
@click.argument("paths", metavar="FILE...", nargs=-1, required=True)
@click.option("--output", "-o", type=file_io.FILE, required=True, help="Write the trace there; - is stdout.")
@click.option("--profile", type=click.Path(path_type=Path), help="Show the kernels of this profile too: a folder of start_trace.")
def command(paths: tuple[str, ...], output: str, profile: Path | None) -> None:
    """Write the last steps of a run as a trace, which ui.perfetto.dev and chrome://tracing open.

    FILE is what `xla-debug run --json FILE` wrote; several are the processes of one run. The trace has the host (recording, waiting,
    compiling, loading, reads), the devices and the copies, each with the user's line.
    """
    report = merge(file_io.read_reports(paths))
    # Imported here, since these need jax.
    from xla_debug.profiling.chrome_trace import encoded, trace_of_run
    from xla_debug.profiling.profile_file import ProfileFileError, kernels

    if not any(replica.spans for replica in report.replicas):
        raise file_io.CommandError("the run report holds no steps to show: record the run again with this xla-debug")
    try:
        profiled = list(kernels(profile)) if profile is not None else []
    except ProfileFileError as error:
        raise file_io.CommandError(str(error)) from error
    file_io.write(encoded(trace_of_run(report.replicas, profiled)), output)
