"""What an extra costs: training steps of two processes of the same script, one of which has it, in turns.

recording: `xla-debug` records the run. checks: programs test what only data shows to be wrong (XLA_CHECKS).
"""

import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from harness import STEADY, Row, rerun_with, wide_console, write_results
from steps import build, names_of, turn, workloads

GOAL = 1.02
MODELS = ("mlp", "cnn", "gpt")
EXTRAS = {"recording": ({}, {"XLA_DEBUG_ACCOUNT_DIR": "{folder}"}), "checks": ({"XLA_CHECKS": "0"}, {"XLA_CHECKS": "1"})}
"""The environment without and with it; {folder} is a temporary one."""
WARM_UP = 30
"""Steps before the clock starts: compilations, and where the recorder counts buffers."""


def work(model: str, quick: bool) -> None:
    """A process under test: for each line on stdin, seconds of steps, it prints how long one took, in ms."""
    contender = build("xla", workloads(quick)[model], "cpu")
    for _ in range(WARM_UP):
        contender.step()
    contender.finish()
    print("ready", flush=True)
    for line in sys.stdin:
        turn(contender, float(line))
        print(contender.wall_ms[-1], flush=True)


@contextmanager
def worker(model: str, quick: bool, settings: dict[str, str]) -> Iterator[subprocess.Popen[str]]:
    """Such a process, ready."""
    command = [sys.executable, __file__, "recording", "--worker", model, *(["--quick"] if quick else [])]
    with subprocess.Popen(command, env={**os.environ, **settings}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        if ask(process, None) != "ready":
            raise RuntimeError(f"the process for {model} did not get ready: it ended with exit code {process.wait()}")
        yield process
        process.communicate()


def ask(process: subprocess.Popen[str], line: str | None) -> str:
    """The next line of a process, after it was told one."""
    assert process.stdin is not None and process.stdout is not None
    if line is not None:
        print(line, file=process.stdin, flush=True)
    return process.stdout.readline().strip()


def measure(extra: str, model: str, quick: bool, rounds: int, budget_s: float) -> Row:
    """Both processes in turns."""
    times: dict[bool, list[float]] = {False: [], True: []}
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        processes = {}
        for on, settings in enumerate(EXTRAS[extra]):
            named = {name: value.format(folder=folder) for name, value in settings.items()}
            processes[bool(on)] = stack.enter_context(worker(model, quick, named))
        for place in range(rounds):
            for on in (False, True) if place % 2 else (True, False):
                times[on].append(float(ask(processes[on], str(budget_s))))
    cost = statistics.median(on / off for off, on in zip(times[False], times[True], strict=True))
    return {
        "model": model,
        "ms": statistics.median(times[False]),
        "with_ms": statistics.median(times[True]),
        "with_vs_without": cost,
        "goal": f"≤ {GOAL:.2f}",
        "met": cost <= GOAL,
    }


def show(extra: str, rows: list[Row], console: Console) -> None:
    """The rich table."""
    table = Table(title=f"Median training step, without and with: {extra}")
    for heading in ("model", "ms", "with, ms", "×", f"≤ {GOAL:.2f}"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for row in rows:
        numbers = [f"{row[key]:.3f}" for key in ("ms", "with_ms", "with_vs_without")]
        table.add_row(str(row["model"]), *numbers, "[green]met[/]" if row["met"] else "[red]missed[/]")
    console.print(table)


@click.command(help=__doc__)
@click.argument("extra", type=click.Choice(list(EXTRAS)))
@click.option("--json", "target", type=click.Path(dir_okay=False, path_type=Path), help="Write the numbers to this file too.")
@click.option("--models", help=f"Comma-separated: {', '.join(MODELS)}.")
@click.option("--rounds", type=click.IntRange(1), default=9, show_default=True)
@click.option("--budget", type=click.FloatRange(0.0), default=1.0, show_default=True, help="Seconds of steps per turn.")
@click.option("--quick", is_flag=True, help="Tiny sizes: does it run at all?")
@click.option("--worker", "worked", hidden=True)
def main(extra: str, target: Path | None, models: str | None, rounds: int, budget: float, quick: bool, worked: str | None) -> None:
    if worked is not None:
        work(worked, quick)
        return
    chosen = names_of(MODELS, models, "--models")
    rerun_with({**STEADY, "JAX_PLATFORMS": "cpu", "PJRT_DEVICE": "CPU"})
    rows = [measure(extra, model, quick, 2 if quick else rounds, 0.1 if quick else budget) for model in chosen]
    show(extra, rows, wide_console())
    if target is not None:
        write_results(target, extra, rows, rounds=rounds, passive=os.environ["OMP_WAIT_POLICY"])


if __name__ == "__main__":
    main()
