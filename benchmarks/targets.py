"""Steps compiled for TPUs and GPUs that are not there: `xla` beside hand-written JAX, by the compiler's own figures. Nothing runs.

Needs the compilers: `hatch run bench:targets` has an environment with them. Times are estimates: on TPUs the compiler's cycles.
"""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import jax
import jax.numpy as jnp
import torch
from jax.sharding import SingleDeviceSharding
from rich.table import Table

import models_jax
import steps
from harness import Row, wide_console, write_results

GOALS = {"time": 1.05, "nbytes": 1.05, "memory": 1.0, "copies": 1.1}
"""Ours divided by JAX's, at most."""
DTYPES = steps.DTYPES


def ours(work: steps.Workload) -> Any:
    """What jax made of the program of a steady step. Gradients are dropped before it ends: by hand nobody returns them."""
    import torch_xla
    from xla_core.abi.graph import register_wrapper

    compiled: list[Any] = []

    def note(graph: object, program: Any) -> Any:
        compiled.append(program.compiled)
        return program

    stop = register_wrapper(note)
    step = steps.torch_step(work, torch_xla.device(), torch_xla.sync, keep_gradients=False)
    for _ in range(3):
        step()
    stop()
    return compiled[-1]


def theirs(work: steps.Workload, device: Any) -> Any:
    """The same by hand, with state and batch described only."""
    torch.manual_seed(0)
    model = work.model()
    place = SingleDeviceSharding(device)

    def described(part: Any) -> Any:
        return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), part)

    params = {name: steps.in_jax(value, work.dtype) for name, value in model.named_parameters()}
    buffers = {name: steps.in_jax(value, work.dtype) for name, value in model.named_buffers() if value.is_floating_point()}
    inputs, labels = (steps.in_jax(part, work.dtype) for part in work.batch())
    if work.rule is None:
        return models_jax.decoding_program(work.in_jax).lower(described(params), described(inputs)).compile()
    state = jax.eval_shape(work.rule.start, params, buffers)
    program = models_jax.training_program(work.in_jax, work.rule)
    return program.lower(described(params), described(state), described(inputs), described(labels)).compile()


def row_of(name: str, target: Any, precision: str, make: Callable[[], Any], kind: str) -> Row:
    """The figures of one program."""
    import time

    from xla_debug.plan.estimate import described

    begin = time.perf_counter()
    with jax.default_matmul_precision(precision):
        compiled = make()
    seconds = time.perf_counter() - begin
    plan = described(compiled, target.kind, target.devices, {}, name=name, line=None, operations=0)
    # For TPUs the compiler counts, in some programs, what it holds on the chip.
    temporaries = max(plan.schedule, default=0) if target.platform == "tpu" else plan.temporaries
    memory = plan.arguments + plan.results - plan.reused + temporaries
    figures: Row = {"time": plan.ms, "nbytes": plan.nbytes, "memory": memory, "temporaries": temporaries, "copies": plan.copies}
    return {"case": name, "target": target.name, "by": kind, **figures, "flops": plan.flops, "compile_s": seconds}


@click.command(help=__doc__)
@click.option("--targets", default="v5e,h100", show_default=True, help="Names, separated by commas.")
@click.option("--models", default="mlp,decode,cnn,resnet18,gpt", show_default=True, help="Names, separated by commas.")
@click.option("--dtype", type=click.Choice(list(DTYPES)), default="float32", show_default=True)
@click.option("--quick", is_flag=True, help="Tiny sizes.")
@click.option("--json", "path", type=click.Path(dir_okay=False, path_type=Path), default=Path("targets.json"), show_default=True)
def main(targets: str, models: str, dtype: str, quick: bool, path: Path) -> None:
    from torch_xla import target as within
    from torch_xla.backends import get_mat_mul_precision

    jnp.zeros(())  # jax's own device, before any target
    works = steps.workloads(quick, None, DTYPES[dtype])
    rows: list[Row] = []
    table = Table("step", "target", "by", "time", "bytes", "memory", "copies", "compile s", "time ×", "bytes ×", "memory ×", "copies ×")
    for name in targets.split(","):
        for model in models.split(","):
            with within(name) as target:
                mine = row_of(model, target, get_mat_mul_precision(), lambda model=model: ours(works[model]), "xla")
                other = row_of(model, target, get_mat_mul_precision(), lambda model=model: theirs(works[model], target.devices[0]), "jax")
            for key in GOALS:
                mine[f"{key}_vs_jax"] = float(mine[key] or 0) / float(other[key] or 1)
            rows += [mine, other]
            for row in (mine, other):
                ratios = [f"{row[f'{key}_vs_jax']:.2f}" if f"{key}_vs_jax" in row else "" for key in GOALS]
                figures = [f"{row['time']:.3f} ms", f"{row['nbytes'] / 1e6:,.1f} MB", f"{row['memory'] / 1e6:,.1f} MB", str(row["copies"])]  # type: ignore[operator]
                table.add_row(str(row["case"]), name, str(row["by"]), *figures, f"{row['compile_s']:.1f}", *ratios)
            wide_console().print(table.rows[-2:] and f"{model} on {name} done")
    wide_console().print(table)
    write_results(path, "targets", rows, dtype=dtype)


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()
