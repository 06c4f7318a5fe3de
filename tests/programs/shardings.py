"""Steps and collectives compiled for all devices of a target, beside hand-written JAX: `shardings.py mesh|steps|collectives TARGET`.

Prints as JSON what each program exchanges and what a device holds: collectives by kind, bytes that a device sends, bytes of its arguments;
for training steps also the bytes of all parameters and of a device's batch.
"""

from __future__ import annotations

import functools
import json
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import shardings_by_hand as by_hand
import torch
import torch.distributed as dist
from jax import lax
from shardings_by_hand import AXIS, LAYERS, ROWS, shapes_of
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.distributed.spmd as xs
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.runtime as xr
from torch_xla.distributed.fsdp import XlaFullyShardedDataParallel
from torch_xla.distributed.fsdp.wrap import transformer_auto_wrap_policy
from torch_xla.experimental.spmd_fully_sharded_data_parallel import SpmdFullyShardedDataParallel
from xla_core.abi.graph import register_wrapper
from xla_debug.plan.hlo import Program
from xla_debug.plan.traffic import collective
from xla_debug.plan.work import steps

WIDTH = 512
Report = dict[str, Any]
# Of each way over a mesh: its axes for so many devices, the specs of a layer's parameters, and that of the batch.
WAYS: dict[str, tuple[Callable[[int], dict[str, int]], list[tuple[Any, ...]], tuple[Any, ...]]] = {
    "data": (lambda count: {"data": count}, [(None, None), (None,), (None, None), (None,)], ("data", None)),
    "fsdp": (lambda count: {"fsdp": count}, [("fsdp", None), ("fsdp",), (None, "fsdp"), ("fsdp",)], ("fsdp", None)),
    "tensor": (lambda count: {"tensor": count}, [("tensor", None), ("tensor",), (None, "tensor"), (None,)], (None, None)),
    "fsdp and tensor": (
        lambda count: {"fsdp": count // 4, "tensor": 4},
        [("tensor", "fsdp"), ("tensor",), ("fsdp", "tensor"), ("fsdp",)],
        ("fsdp", None),
    ),
}


def figures(compiled: Any, count: int) -> Report:
    """What a program for so many devices exchanges and holds."""
    program = Program(compiled.runtime_executable().hlo_modules()[0].as_serialized_hlo_module_proto())
    kinds: Counter[str] = Counter()
    sent = 0.0
    for step in steps(program):
        if step.exchange is not None and step.exchange.begins:
            exchanged = collective(program, step.instruction, step.exchange.collective, count)
            kinds[exchanged.kind] += step.times
            sent += step.times * exchanged.sent
    return {"kinds": kinds, "sent": sent, "arguments": compiled.memory_analysis().argument_size_in_bytes}


@contextmanager
def noted() -> Iterator[list[Any]]:
    """The programs that are compiled within."""
    compiled: list[Any] = []

    def note(graph: object, program: Any) -> Any:
        compiled.append(program.compiled)
        return program

    stop = register_wrapper(note)
    yield compiled
    stop()


class Mlp(nn.Module):
    def __init__(self, inner: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(WIDTH, inner), nn.GELU(), nn.Linear(inner, WIDTH)) for _ in range(LAYERS))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def trained(model: nn.Module, x: torch.Tensor) -> Any:
    """The program of a steady training step."""
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    torch_xla.sync()
    with noted() as programs:
        for _ in range(3):
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            torch_xla.sync()
    return programs[-1]


def row(ours: Any, expected: Any, count: int, inner: int, rows: int = ROWS) -> Report:
    """A way to train, and the same by hand."""
    nbytes = 4 * sum(map(math.prod, shapes_of(WIDTH, inner)))
    return {"ours": figures(ours, count), "jax": figures(expected, count), "parameters": nbytes, "batch": 4 * rows * WIDTH}


def inner_of(count: int) -> int:
    """So much that what is whole on each device does not count."""
    return 2048 if count <= 8 else 8192


def over_meshes(target: Any) -> Report:
    """The ways of WAYS by `mark_sharding`, and FSDPv2."""
    xr.use_spmd()
    count, found = len(target.devices), {}
    inner = inner_of(count)
    for way, (axes_of, specs, batch) in WAYS.items():
        axes = axes_of(count)
        expected = by_hand.over_mesh(target.devices, axes, specs * LAYERS, batch, shapes_of(WIDTH, inner), WIDTH)
        mesh = xs.Mesh(np.arange(count), tuple(axes.values()), tuple(axes))
        x = torch.zeros(ROWS * count, WIDTH, device="xla")
        xs.mark_sharding(x, mesh, batch)
        found[way] = row(marked(Mlp(inner), mesh, specs, batch, x), expected, count, inner)
        if way == "fsdp":
            policy = functools.partial(transformer_auto_wrap_policy, transformer_layer_cls={nn.Sequential})
            model = SpmdFullyShardedDataParallel(Mlp(inner).to("xla"), mesh=mesh, auto_wrap_policy=policy)
            found["FSDPv2"] = row(trained(model, x), expected, count, inner)
    return found


def marked(model: Mlp, mesh: xs.Mesh, specs: list[tuple[Any, ...]], batch: tuple[Any, ...], x: torch.Tensor) -> Any:
    model = model.to("xla")
    for parameter, spec in zip(model.parameters(), specs * LAYERS, strict=True):
        xs.mark_sharding(parameter, mesh, spec)
    for layer in model.layers:
        layer.register_forward_hook(lambda module, args, output: xs.mark_sharding(output, mesh, batch))
    return trained(model, x)


def as_replicas(index: int, target: Any, found: Report) -> None:
    """Training steps of replicas."""
    count, devices = xr.world_size(), target.devices
    inner = inner_of(count)
    shapes = shapes_of(WIDTH, inner)
    dist.init_process_group("xla", init_method="xla://")

    def fsdp(flatten: bool) -> nn.Module:
        model = Mlp(inner)
        for number, layer in enumerate(model.layers):
            model.layers[number] = XlaFullyShardedDataParallel(layer, flatten_parameters=flatten)
        return XlaFullyShardedDataParallel(model, flatten_parameters=flatten)

    def fsdp2() -> nn.Module:
        mesh, model = init_device_mesh("xla", (count,)), Mlp(inner).to("xla")
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        return fully_shard(model, mesh=mesh)

    def tensors() -> nn.Module:
        mesh, model = init_device_mesh("xla", (count,)), Mlp(inner).to("xla")
        for layer in model.layers:
            parallelize_module(layer, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()}, src_data_rank=None)
        return model

    models: dict[str, tuple[Callable[[], nn.Module], int]] = {
        "DDP": (lambda: nn.parallel.DistributedDataParallel(Mlp(inner).to("xla")), ROWS),
        "FSDP": (lambda: fsdp(flatten=False), ROWS),
        "FSDP, flat": (lambda: fsdp(flatten=True), ROWS),
        "fully_shard": (fsdp2, ROWS),
        "tensor": (tensors, ROWS * count),
    }
    summed = by_hand.of_replicas(devices, by_hand.alone, lambda g: lax.psum(g, AXIS), shapes, (), WIDTH)
    sharded = by_hand.of_replicas(devices, by_hand.gathering, lambda g: g / count, shapes, (AXIS,), WIDTH)
    of_layer = shapes[: len(shapes) // LAYERS]
    size = -(-sum(map(math.prod, of_layer)) // (128 * count)) * 128 * count
    at_once = functools.partial(by_hand.gathering_at_once, of_layer)
    flat = by_hand.of_replicas(devices, at_once, lambda g: g / count, [(size,)] * LAYERS, (AXIS,), WIDTH)
    axes_of, specs, batch = WAYS["tensor"]
    divided = by_hand.over_mesh(devices, axes_of(count), specs * LAYERS, batch, shapes, WIDTH)
    for way, (make, rows) in models.items():
        expected = {"DDP": summed, "FSDP": sharded, "tensor": divided}.get(way, flat)
        found[way] = row(trained(make(), torch.zeros(rows, WIDTH, device="xla")), expected, count, inner)


def collectives(index: int, target: Any, found: Report) -> None:
    """Each collective of `xm` by itself."""
    count, shape = xr.world_size(), (256, 512)
    halves = [list(range(start, start + count // 2)) for start in (0, count // 2)]
    ring = [(place, (place + 1) % count) for place in range(count)]
    flat = (count * 4096,)
    Pair = tuple[Callable[[torch.Tensor], Any], Callable[[jax.Array], jax.Array], tuple[int, ...]]
    cases: dict[str, Pair] = {
        "all_reduce": (lambda x: xm.all_reduce("sum", x), lambda x: lax.psum(x, AXIS), shape),
        "all_reduce in groups": (
            lambda x: xm.all_reduce("sum", x, groups=halves),
            lambda x: lax.psum(x, AXIS, axis_index_groups=halves),
            shape,
        ),
        "all_reduce max": (lambda x: xm.all_reduce("max", x), lambda x: lax.pmax(x, AXIS), shape),
        "all_gather": (xm.all_gather, lambda x: lax.all_gather(x, AXIS, tiled=True), shape),
        "all_gather of columns": (lambda x: xm.all_gather(x, dim=1), lambda x: lax.all_gather(x, AXIS, axis=1, tiled=True), shape),
        "reduce_scatter": (
            lambda x: xm.reduce_scatter("sum", x, 1.0, 0, count),
            lambda x: lax.psum_scatter(x, AXIS, tiled=True),
            (count * 256, 512),
        ),
        "reduce_scatter, flat": (
            lambda x: xm.reduce_scatter("sum", x, 1.0, 0, count),
            lambda x: lax.psum_scatter(x, AXIS, tiled=True),
            flat,
        ),
        "all_to_all": (lambda x: xm.all_to_all(x, 0, 1, count), lambda x: lax.all_to_all(x, AXIS, 0, 1, tiled=True), shape),
        "collective_permute": (lambda x: xm.collective_permute(x, ring), lambda x: lax.ppermute(x, AXIS, ring), shape),
        "collective_broadcast": (
            lambda x: xm.collective_broadcast([x]),
            lambda x: lax.psum(jnp.where(lax.axis_index(AXIS) == 0, x, 0), AXIS),
            shape,
        ),
    }
    for name, (mine, theirs, size) in cases.items():
        x = torch.zeros(size, device="xla")
        torch_xla.sync()
        with noted() as programs:
            kept = mine(x)
            torch_xla.sync()
        del kept
        found[name] = {"ours": figures(programs[-1], count), "jax": figures(by_hand.collective(target.devices, theirs, size), count)}


if __name__ == "__main__":
    which, name = sys.argv[1:]
    report: Report = {}
    with torch_xla.target(name) as chosen:
        if which == "mesh":
            report = over_meshes(chosen)
        else:
            xmp.spawn({"steps": as_replicas, "collectives": collectives}[which], args=(chosen, report))
    print(json.dumps(report))
