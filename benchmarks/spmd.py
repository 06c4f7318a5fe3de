"""A training step of the GPT of `examples/gpt_spmd.py` over eight devices, for each kind of parallelism, beside hand-written JAX.

Both start from the same weights on the same batch, under the same shardings of weights, Adam's moments, inputs and activations. Their first
losses must agree before the clock starts. The collectives are counted in the compiled programs.
"""

import os
import statistics
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

import models_spmd
from harness import STEADY, Row, rerun_with, wide_console, write_results
from models_spmd import AXES, Size
from steps import Contender, check, names_of, ratio, turn

DEVICES = 8
GOAL = 1.10
TOLERANCE = 1e-3
MESHES = {
    "data": (8, 1, 1),
    "fsdp": (1, 8, 1),
    "tensor": (1, 1, 8),
    "fsdp-tensor": (1, 4, 2),
    "data-fsdp-tensor": (2, 2, 2),
}


class Watch:
    """While it is held, notes the collectives of the largest program that is compiled on `xla`: the step."""

    def __init__(self) -> None:
        from xla_core.abi.graph import register_wrapper

        self.used: dict[str, int] = {}
        self.size = 0
        self._remove = register_wrapper(self._wrapped)

    def _wrapped(self, graph: Any, executable: Any) -> Any:
        def run(*arguments: Any) -> Any:
            if len(graph.entries) > self.size:
                self.size = len(graph.entries)
                self.used = models_spmd.collectives(executable.lower(*arguments).compile().as_text())
            return executable(*arguments)

        return run

    def end(self) -> None:
        """Watch no longer."""
        self._remove()


def measure(name: str, size: Size, rounds: int, budget_s: float) -> list[Row]:
    """Checks, then times all in turns."""
    import torch_xla.core.xla_model as xm

    axes = dict(zip(AXES, MESHES[name], strict=True))
    watch = Watch()
    xla = Contender("xla", models_spmd.on_xla(size, axes), xm.wait_device_ops)
    *steps, used = models_spmd.in_jax(size, axes)
    captured = Contender("captured", models_spmd.on_xla(size, axes, captured=True), xm.wait_device_ops)
    contenders = [xla, captured, Contender("jax", *steps)]
    check(name, contenders, TOLERANCE)
    watch.end()
    for place in range(rounds):
        for contender in contenders[:: 1 if place % 2 else -1]:
            turn(contender, budget_s)
    return [row_of(name, each, contenders[-1], used if each is contenders[-1] else watch.used, used) for each in contenders]


def row_of(name: str, contender: Contender, yardstick: Contender, used: dict[str, int], wanted: dict[str, int]) -> Row:
    """Numbers of one contender."""
    row: Row = {
        "parallelism": name,
        "on": contender.name,
        "wall_ms": statistics.median(contender.wall_ms),
        "blocked_ms": statistics.median(contender.blocked_ms),
        "wall_vs_jax": ratio(contender.wall_ms, yardstick.wall_ms),
        "blocked_vs_jax": ratio(contender.blocked_ms, yardstick.blocked_ms),
        "first_s": contender.first_s,
        "steps": contender.steps,
        "late_compiles": contender.late_compiles,
        "collectives": ", ".join(f"{count} {kind}" for kind, count in used.items()),
    }
    if contender is not yardstick:
        row |= {"goal": f"≤ {GOAL:.2f}", "met": ratio(contender.wall_ms, yardstick.wall_ms) <= GOAL, "same_collectives": used == wanted}
    return row


def show(rows: list[Row], console: Console) -> None:
    """The rich table."""
    table = Table(title=f"Median training step over {DEVICES} virtual devices")
    for heading in ("parallelism", "on", "ms", "blocked", "× jax", "blocked", "first s", "collectives", f"≤ {GOAL:.2f}"):
        table.add_column(heading, justify="left" if heading in ("parallelism", "on", "collectives") else "right")
    for row in rows:
        numbers = [f"{row[key]:,.2f}" for key in ("wall_ms", "blocked_ms", "wall_vs_jax", "blocked_vs_jax", "first_s")]
        met = {None: "", True: "[green]met[/]", False: "[red]missed[/]"}[row.get("met")]  # type: ignore[index]
        table.add_row(str(row["parallelism"]), str(row["on"]), *numbers, str(row["collectives"]), met, end_section=row["on"] == "jax")
    console.print(table)


@click.command(help=__doc__)
@click.option("--json", "target", type=click.Path(dir_okay=False, path_type=Path), help="Write the numbers to this file too.")
@click.option("--parallelism", help=f"Comma-separated: {', '.join(MESHES)}.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True)
@click.option("--budget", type=click.FloatRange(0.0), default=1.0, show_default=True, help="Seconds of steps per turn.")
@click.option("--quick", is_flag=True, help="Tiny sizes: does it run at all?")
def main(target: Path | None, parallelism: str | None, rounds: int, budget: float, quick: bool) -> None:
    chosen = names_of(tuple(MESHES), parallelism, "--parallelism")
    rerun_with({**STEADY, "JAX_PLATFORMS": "cpu", "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(DEVICES)})
    import torch_xla
    import torch_xla.runtime as xr

    xr.use_spmd()
    torch_xla.device()
    size = Size(layers=1, width=32, heads=8, tokens=16, batch=8) if quick else Size(heads=8)
    rows: list[Row] = []
    for name in chosen:
        rows += measure(name, size, rounds, 0.02 if quick else budget)
    show(rows, wide_console())
    if target is not None:
        write_results(target, "spmd", rows, devices=DEVICES, rounds=rounds, passive=os.environ["OMP_WAIT_POLICY"])


if __name__ == "__main__":
    main()
