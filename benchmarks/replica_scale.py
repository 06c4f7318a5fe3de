"""Training steps of far more replicas than the machine has, compiled and not run: what each needs, and which collectives it calls.

One process records the step of replica 0 of many, and compiles it for as many virtual CPU devices as there are replicas. Its shards of the
parameters are all that is ever on a device.
"""

import json
import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from harness import Row, wide_console, write_results

WAYS = ("FSDP", "FSDP2 and tensor")
COUNTS, QUICK_COUNTS = (256, 1024), (8,)
TENSOR = 8  # replicas along the axis of tensor parallelism


class LoweredError(Exception):
    """Ends a step when it has been compiled, before it runs."""


def as_one_of(count: int) -> None:
    """Let this process be replica 0 of `count`, with a device for each in JAX, of which it uses the first."""
    import jax

    import torch_xla
    from xla_core.abi.job import Topology, set_topology
    from xla_distributed.job import connection

    jax.config.update("jax_num_cpu_devices", count)
    torch_xla.device()
    torch_xla.sync()  # the client runs, over one device: from here on only the programs know of the others
    set_topology(Topology(0, count, replicas=True))
    connection._State.job_client = SimpleNamespace()  # collectives are recorded in jobs only; nobody is asked anything


def compile_for_all(found: Row, count: int) -> None:
    """From now on compile each program for all replicas, note what it is, and do not run it."""
    import jax
    import numpy as np
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    from xla_core.abi.operators import REPLICA_AXIS
    from xla_core.engine.compile import build
    from xla_core.engine.compile.compiler import jitted

    everyone = NamedSharding(Mesh(np.array(jax.devices()[:count]), (REPLICA_AXIS,)), PartitionSpec())

    def compile_program(target: Any, graph: Any, program: Any, given: Any, arguments: list[Any], name: str) -> Any:
        structs = [jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=everyone) for each in arguments]
        start = time.perf_counter()
        compiled = jitted(graph, program.constants, everyone, name).lower(*structs).compile()
        memory = compiled.memory_analysis()
        found.update(
            seconds=time.perf_counter() - start,
            operations=sum(type(entry) is tuple for entry in graph.entries),
            collectives=", ".join(f"{number} {kind}" for kind, number in collectives(compiled.as_text()).items()),
            held_bytes=memory.argument_size_in_bytes,
            temporary_bytes=memory.temp_size_in_bytes,
        )
        raise LoweredError

    build._compile = compile_program


def collectives(text: str) -> dict[str, int]:
    """How often a compiled program calls each collective."""
    kinds = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
    return dict(Counter(kind for line in text.splitlines() for kind in kinds if f" {kind}(" in line or f" {kind}-start(" in line))


def fsdp(model: Any, count: int) -> Any:
    """The model with each block, and itself, wrapped by torch_xla's FSDP."""
    from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel

    for number, block in enumerate(model.blocks):
        model.blocks[number] = XlaFullyShardedDataParallel(block, flatten_parameters=True)
    return XlaFullyShardedDataParallel(model, flatten_parameters=True)


def fsdp2_and_tensor(model: Any, count: int) -> Any:
    """The model by torch's own `parallelize_module` and `fully_shard` over a mesh of two axes."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from torch.testing._internal.distributed.fake_pg import FakeStore

    from torch_xla.distributed.xla_backend import ProcessGroupXla

    dist.init_process_group("xla", store=FakeStore(), rank=0, world_size=count)
    together = ("xla", ProcessGroupXla.Options())
    override = {"data": together, "tensor": together}
    tensor = min(TENSOR, count // 2)
    mesh = init_device_mesh("xla", (count // tensor, tensor), mesh_dim_names=("data", "tensor"), backend_override=override)
    model = model.to("xla")
    columns = dict.fromkeys(("query", "key", "value", "up"), ColwiseParallel())
    for block in model.blocks:
        parallelize_module(block, mesh["tensor"], {**columns, "out": RowwiseParallel(), "down": RowwiseParallel()}, src_data_rank=None)
        fully_shard(block, mesh=mesh["data"])
    fully_shard(model, mesh=mesh["data"])
    return model


def compile_step(way: str, count: int, quick: bool) -> Row:
    """The step of a GPT of two layers on replica 0, compiled for all."""
    import torch
    import torch.nn.functional as F

    import models_replicas
    import torch_xla

    as_one_of(count)
    size = models_replicas.Size(width=64, heads=8, tokens=16) if quick else models_replicas.Size(width=1024, heads=16, tokens=256)
    whole = models_replicas.GPT(size)
    found: Row = {"way": way, "replicas": count, "weight_bytes": sum(parameter.nbytes for parameter in whole.parameters())}
    model = {WAYS[0]: fsdp, WAYS[1]: fsdp2_and_tensor}[way](whole, count)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    tokens = torch.zeros(1, size.tokens, dtype=torch.int64).to("xla")
    torch_xla.sync()
    compile_for_all(found, count)
    try:
        F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
        optimizer.step()
        torch_xla.sync()
    except LoweredError:
        pass
    return found


def row(way: str, count: int, quick: bool) -> Row:
    """`compile_step` in a process of its own."""
    command = [sys.executable, __file__, "--way", way, "--count", str(count), *(["--quick"] if quick else [])]
    environment = {**os.environ, "PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise click.ClickException(f"{way}, {count}: {done.stderr}")
    found: Row = json.loads(done.stdout.splitlines()[-1])
    return found


def show(rows: list[Row], console: Console) -> None:
    """One table."""
    table = Table(title="Steps of many replicas, compiled and not run")
    for heading in ("way", "replicas", "operations", "collectives", "weights, bytes", "held by each", "temporary", "s"):
        table.add_column(heading, justify="left" if heading in ("way", "collectives") else "right")
    for each in rows:
        numbers = [f"{each[key]:,}" for key in ("weight_bytes", "held_bytes", "temporary_bytes")]
        cells = [str(each[key]) for key in ("way", "replicas", "operations", "collectives")]
        table.add_row(*cells, *numbers, f"{each['seconds']:.1f}")
    console.print(table)


@click.command(help=__doc__)
@click.option("--json", "target", type=click.Path(dir_okay=False, path_type=Path), help="Write the numbers to this file too.")
@click.option("--quick", is_flag=True, help="Tiny sizes: does it run at all?")
@click.option("--way", hidden=True, help="Compile one step and print it as JSON.")
@click.option("--count", type=int, default=8, hidden=True)
def main(target: Path | None, quick: bool, way: str | None, count: int) -> None:
    if way is not None:
        click.echo(json.dumps(compile_step(way, count, quick)))
        return
    rows = [row(way, count, quick) for way in WAYS for count in (QUICK_COUNTS if quick else COUNTS)]
    show(rows, wide_console())
    if target is not None:
        write_results(target, "replica-scale", rows)


if __name__ == "__main__":
    main()
