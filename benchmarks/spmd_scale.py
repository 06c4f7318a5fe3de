"""Meshes larger than the machine: shardings over 4,096 devices, and a transformer block compiled, not run, for up to 1,024 virtual ones.

The first part needs no device at all. The second starts a process with that many CPU devices, uploads the parts of the weights, and reads
out of the compiled step which collectives it calls and how many bytes each device needs.
"""

import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from harness import Row, wide_console, write_results

GOAL_S = 1.0
DEVICES = 4096
SHAPES = {"one axis": (4096,), "two axes": (64, 64), "three axes": (16, 16, 16), "four axes": (4, 8, 16, 8)}
MESHES = {
    "data=16, tensor=16": (16, 1, 16),
    "fsdp=256": (1, 256, 1),
    "data=4, fsdp=8, tensor=8": (4, 8, 8),
    "data=8, fsdp=16, tensor=8": (8, 16, 8),
}
QUICK_MESHES = {"data=2, fsdp=2, tensor=2": (2, 2, 2)}


class LoweredError(Exception):
    """Ends a step when it has been compiled, before it runs."""


def shardings(name: str, shape: tuple[int, ...]) -> Row:
    """Seconds to build a mesh and all shardings of matrices with one axis or two on it, with their texts and the shard of each device."""
    import torch_xla.distributed.spmd as xs
    from xla_spmd.shards import shard_indices

    start = time.perf_counter()
    mesh = xs.Mesh(range(DEVICES), shape, tuple(f"axis{number}" for number in range(len(shape))))
    entries = [None, *mesh.axis_names, mesh.axis_names] if mesh.axis_names else [None]
    specs = [(rows, columns) for rows in entries for columns in entries if not used(rows) & used(columns)]
    texts = [str(mesh.get_op_sharding(spec)) for spec in specs]
    built = time.perf_counter() - start
    found = shard_indices(mesh.get_op_sharding(specs[-1]), (DEVICES, DEVICES), range(DEVICES))
    return {
        "mesh": name, "shape": " × ".join(map(str, shape)), "shardings": len(set(texts)), "parts": len(found),
        "seconds": built, "parts_seconds": time.perf_counter() - start - built, "met": built <= GOAL_S,
    }  # fmt: skip


def used(entry: Any) -> set[str]:
    """The axes of an entry of a spec."""
    return set() if entry is None else {entry} if isinstance(entry, str) else set(entry)


def compile_block(axes: dict[str, int], quick: bool) -> Row:
    """The step of a one-layer GPT over the devices of this process, compiled but not run."""
    import torch
    from torch import nn

    import models_spmd
    import models_torch
    import torch_xla
    import torch_xla.distributed.spmd as xs
    import torch_xla.runtime as xr
    from xla_core.abi.graph import Graph, register_wrapper

    size = models_spmd.Size(1, 64, 8, 16, 8) if quick else models_spmd.Size(layers=1, width=1024, heads=16, tokens=256, batch=256)
    xr.use_spmd()
    torch_xla.device()
    mesh = xs.Mesh(range(math.prod(axes.values())), tuple(axes.values()), tuple(axes))
    model, inputs, labels = models_spmd.start(size)
    for name, parameter in list(model.named_parameters()):
        owner = model.get_submodule(name.rpartition(".")[0])
        spec = xs.ShardingSpec(mesh, models_spmd.partition_spec_of(name))
        setattr(owner, name.rpartition(".")[2], nn.Parameter(spec.upload(parameter.detach())))
    models_spmd.shard_parameters(model, mesh)
    rows = xs.ShardingSpec(mesh, (models_spmd.BATCH_AXES, None))
    optimizer = torch.optim.Adam(model.parameters(), lr=models_spmd.RATE)
    found: Row = {}

    def wrapper(graph: Graph, executable: Any) -> Any:
        def run(*arguments: Any) -> Any:
            compiled = executable.lower(*arguments).compile()
            counts = models_spmd.collectives(compiled.as_text())
            memory = compiled.memory_analysis()
            found.update(
                operations=sum(type(entry) is tuple for entry in graph.entries),
                collectives=", ".join(f"{count} {kind}" for kind, count in counts.items()),
                held_bytes=memory.argument_size_in_bytes,
                temporary_bytes=memory.temp_size_in_bytes,
            )
            raise LoweredError

        return run

    step = models_torch.training_step(model, optimizer, rows.upload(inputs), rows.upload(labels), torch_xla.sync)
    start = time.perf_counter()
    register_wrapper(wrapper)
    try:
        step()
    except LoweredError:
        found["seconds"] = time.perf_counter() - start
    found["weight_bytes"] = sum(parameter.nbytes for parameter in model.parameters())
    return found


def block(name: str, shape: tuple[int, ...], quick: bool) -> Row:
    """`compile_block` in a process of its own, with as many devices as the mesh has."""
    environment = {**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(math.prod(shape))}
    command = [sys.executable, __file__, "--block", ",".join(map(str, shape)), *(["--quick"] if quick else [])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"{name}: {done.stderr}")
    found: Row = json.loads(done.stdout.splitlines()[-1])
    return {"mesh": name, "devices": math.prod(shape), **found}


def show(rows: list[Row], console: Console) -> None:
    """A table for each part."""
    table = Table(title=f"Meshes and shardings of {DEVICES:,} devices (goal ≤ {GOAL_S:.0f} s)")
    for heading in ("mesh", "shape", "shardings", "s", "parts of a matrix", "s", ""):
        table.add_column(heading, justify="left" if heading in ("mesh", "shape") else "right")
    blocks = Table(title="A transformer block, compiled and not run")
    for heading in ("mesh", "devices", "operations", "collectives", "weights, bytes", "held per device", "temporary", "s"):
        blocks.add_column(heading, justify="left" if heading in ("mesh", "collectives") else "right")
    for row in rows:
        if "shardings" in row:
            met = "[green]met[/]" if row["met"] else "[red]missed[/]"
            cells = [f"{row['seconds']:.3f}", f"{row['parts']:,}", f"{row['parts_seconds']:.3f}", met]
            table.add_row(str(row["mesh"]), str(row["shape"]), str(row["shardings"]), *cells)
        else:
            numbers = [f"{row[key]:,}" for key in ("weight_bytes", "held_bytes", "temporary_bytes")]
            blocks.add_row(
                str(row["mesh"]), str(row["devices"]), str(row["operations"]), str(row["collectives"]), *numbers, f"{row['seconds']:.1f}"
            )
    console.print(table)
    console.print(blocks)


@click.command(help=__doc__)
@click.option("--json", "target", type=click.Path(dir_okay=False, path_type=Path), help="Write the numbers to this file too.")
@click.option("--quick", is_flag=True, help="Tiny sizes: does it run at all?")
@click.option("--block", "axes", hidden=True, help="Compile one block over this mesh and print it as JSON.")
def main(target: Path | None, quick: bool, axes: str | None) -> None:
    if axes is not None:
        import models_spmd

        sizes = dict(zip(models_spmd.AXES, map(int, axes.split(",")), strict=True))
        click.echo(json.dumps(compile_block(sizes, quick)))
        return
    rows = [shardings(name, shape) for name, shape in SHAPES.items()]
    rows += [block(name, shape, quick) for name, shape in (QUICK_MESHES if quick else MESHES).items()]
    show(rows, wide_console())
    if target is not None:
        write_results(target, "spmd-scale", rows)


if __name__ == "__main__":
    main()
