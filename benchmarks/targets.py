"""Steps compiled for TPUs and GPUs that are not there: `xla` beside hand-written JAX, by the compiler's own figures. Nothing runs.

Needs the compilers: `hatch run bench:targets` has an environment with them. Times are estimates: on TPUs the compiler's cycles.
"""

import os
import time
from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import jax
import jax.numpy as jnp
import torch
from jax.sharding import SingleDeviceSharding
from rich.table import Table
from torch import Tensor, nn

import models_jax
import models_large
import steps
from harness import Row, wide_console, write_results

GOALS = {"time": 1.05, "nbytes": 1.05, "memory": 1.0, "copies": 1.1, "compile_s": 1.5}
"""Ours divided by JAX's, at most."""
DTYPES = steps.DTYPES


def ours(work: steps.Workload) -> tuple[Any, float]:
    """What jax made of the program of a steady step, and the seconds it took. Gradients are dropped before it ends, as by hand."""
    import torch_xla
    from xla_core.abi.events import CompileEvent, subscribe
    from xla_core.abi.graph import register_wrapper

    compiled: list[Any] = []
    seconds: list[float] = []

    def note(graph: object, program: Any) -> Any:
        compiled.append(program.compiled)
        return program

    stop = register_wrapper(note)
    end = subscribe(lambda event: seconds.append(event.duration_ns / 1e9), CompileEvent)
    step = steps.torch_step(work, torch_xla.device(), torch_xla.sync, keep_gradients=False)
    for _ in range(3):
        step()
    stop(), end()
    return compiled[-1], seconds[-1]


def theirs(work: steps.Workload, device: Any) -> tuple[Any, float]:
    """The same by hand, with state and batch described only."""
    model = work.model()
    place = SingleDeviceSharding(device)

    def described(part: Tensor) -> jax.ShapeDtypeStruct:
        dtype = work.dtype if part.is_floating_point() else torch.int32  # as jax has integers
        return jax.ShapeDtypeStruct(part.shape, str(dtype).removeprefix("torch."), sharding=place)

    params = {name: described(value) for name, value in model.named_parameters()}
    buffers = {name: described(value) for name, value in model.named_buffers() if value.is_floating_point()}
    inputs, labels = map(described, work.batch())
    if work.rule is None:
        return timed(models_jax.decoding_program(work.in_jax), params, inputs)
    state = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=place), jax.eval_shape(work.rule.start, params, buffers)
    )
    return timed(models_jax.training_program(work.in_jax, work.rule), params, state, inputs, labels)


def timed(program: Any, *arguments: Any) -> tuple[Any, float]:
    """A jitted function compiled, and the seconds it took."""
    begin = time.perf_counter()
    compiled = program.lower(*arguments).compile()
    return compiled, time.perf_counter() - begin


def on_meta(make: Callable[[], nn.Module]) -> nn.Module:
    """A model without weights: a target takes none."""
    with torch.device("meta"):
        return make()


def large_works(quick: bool) -> dict[str, steps.Workload]:
    """ResNet-50 with 128 images, and a layer of Llama-3-8B with its embedding and head over 4,096 tokens, both in bfloat16."""
    stages = (1, 1) if quick else models_large.STAGES
    size = models_large.LlamaSize(64, 128, 4, 2, 32, 64) if quick else models_large.LlamaSize()
    images, edge = (2, 32) if quick else (128, 224)
    sgd, adamw = partial(torch.optim.SGD, lr=0.1, momentum=0.9), partial(torch.optim.AdamW, lr=3e-4, weight_decay=0.01)
    half = {"goals": (), "captured_goals": (), "dtype": torch.bfloat16}
    rows = [
        steps.Workload(
            "resnet50", lambda: on_meta(partial(models_large.ResNet50, stages=stages)), partial(steps.images, images, 3, edge),
            models_large.resnet50(stages), optimizer=sgd, rule=models_jax.sgd(0.1, 0.9), **half,
        ),
        steps.Workload(
            "llama", lambda: on_meta(partial(models_large.Llama, size)), lambda: (torch.randint(size.words, (1, size.tokens)),) * 2,
            models_large.llama(size), optimizer=adamw, rule=models_jax.adam(3e-4, 0.01), **half,
        ),
    ]  # fmt: skip
    return {row.name: row for row in rows}


def row_of(name: str, target: Any, precision: str, make: Callable[[], tuple[Any, float]], kind: str) -> Row:
    """The figures of one program."""
    from xla_debug.plan.estimate import described

    with jax.default_matmul_precision(precision):
        compiled, seconds = make()
    plan = described(compiled, target.kind, target.devices, {}, name=name, line=None, operations=0)
    # For TPUs the compiler counts, in some programs, what it holds on the chip.
    temporaries = max(plan.schedule, default=0) if target.platform == "tpu" else plan.temporaries
    memory = plan.arguments + plan.results - plan.reused + temporaries
    figures: Row = {"time": plan.ms, "nbytes": plan.nbytes, "memory": memory, "temporaries": temporaries, "copies": plan.copies}
    return {"case": name, "target": target.name, "by": kind, **figures, "flops": plan.flops, "compile_s": seconds}


@click.command(help=__doc__)
@click.option("--targets", default="v5e,h100", show_default=True, help="Names, separated by commas.")
@click.option("--models", default="mlp,decode,cnn,resnet18,gpt,resnet50,llama", show_default=True, help="Names, separated by commas.")
@click.option("--dtype", type=click.Choice(list(DTYPES)), default="float32", show_default=True, help="But for resnet50 and llama.")
@click.option("--quick", is_flag=True, help="Tiny sizes.")
@click.option("--json", "path", type=click.Path(dir_okay=False, path_type=Path), default=Path("targets.json"), show_default=True)
def main(targets: str, models: str, dtype: str, quick: bool, path: Path) -> None:
    from torch_xla import target as within
    from torch_xla.backends import get_mat_mul_precision

    jnp.zeros(())  # jax's own device, before any target
    works = {**steps.workloads(quick, None, DTYPES[dtype]), **large_works(quick)}
    unknown = set(models.split(",")) - works.keys()
    if unknown:
        raise click.UsageError(f"there is no model {', '.join(sorted(unknown))}; known are {', '.join(works)}")
    rows: list[Row] = []
    table = Table("step", "target", "by", "time", "bytes", "memory", "copies", "compile s", *(f"{key} ×" for key in GOALS))
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
    versions = {name: version(name) for name in ("libtpu", "jax-cuda13-plugin")}
    write_results(path, "targets", rows, dtype=dtype, goals=GOALS, **versions)


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    main()
