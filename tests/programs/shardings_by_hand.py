"""The steps of `shardings.py` in hand-written JAX, under the same shardings: one program over a mesh, or that of each replica."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

LAYERS, ROWS = 2, 128  # rows of a device
AXIS = "replica"
Shapes = Sequence[tuple[int, ...]]
Spec = tuple[Any, ...]


def shapes_of(width: int, inner: int) -> list[tuple[int, ...]]:
    """Of the parameters of all layers, as torch has them."""
    return [(inner, width), (inner,), (width, inner), (width,)] * LAYERS


def layer(parameters: Sequence[jax.Array], x: jax.Array) -> jax.Array:
    up, up_bias, down, down_bias = parameters
    return jax.nn.gelu(x @ up.T + up_bias, approximate=False) @ down.T + down_bias


def adam(parameters: Any, gradients: Any, state: Any) -> tuple[Any, Any]:
    count = state["count"] + 1
    first = [0.9 * m + 0.1 * g for m, g in zip(state["first"], gradients, strict=True)]
    second = [0.999 * v + 0.001 * g * g for v, g in zip(state["second"], gradients, strict=True)]
    sizes = [1e-3 / (1 - 0.9**count), 1 - 0.999**count]
    moved = [p - sizes[0] * m / (jnp.sqrt(v / sizes[1]) + 1e-8) for p, m, v in zip(parameters, first, second, strict=True)]
    return moved, {"first": first, "second": second, "count": count}


def over_mesh(devices: Sequence[Any], axes: dict[str, int], specs: Sequence[Spec], batch: Spec, shapes: Shapes, width: int) -> Any:
    """One program for all devices, divided by the compiler."""
    mesh = Mesh(np.array(devices).reshape(tuple(axes.values())), tuple(axes))

    def over(spec: Spec) -> NamedSharding:
        return NamedSharding(mesh, PartitionSpec(*spec))

    def loss_of(parameters: Any, x: jax.Array) -> jax.Array:
        for number in range(LAYERS):
            x = lax.with_sharding_constraint(layer(parameters[4 * number : 4 * number + 4], x), over(batch))
        return (x * x).mean()

    def step(parameters: Any, state: Any, x: jax.Array) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(parameters, x)
        return (*adam(parameters, gradients, state), loss)

    shardings = [over(spec) for spec in specs]
    parameters = [_described(shape, sharding) for shape, sharding in zip(shapes, shardings, strict=True)]
    state = {"first": parameters, "second": parameters, "count": _described((), over(()))}
    kept = {"first": shardings, "second": shardings, "count": over(())}
    program = jax.jit(step, donate_argnums=(0, 1), out_shardings=(shardings, kept, over(())))
    return program.lower(parameters, state, _described((ROWS * len(devices), width), over(batch))).compile()


def of_replicas(
    devices: Sequence[Any], loss_of: Callable[[Any, jax.Array], jax.Array], reduce: Any, shapes: Shapes, spec: Spec, width: int
) -> Any:
    """The program of each replica: its own loss, and gradients as `reduce` makes them those of all. spec: of parameters."""
    mesh = Mesh(np.array(devices), (AXIS,))
    held, everywhere, rows = PartitionSpec(*spec), PartitionSpec(), PartitionSpec(AXIS)

    def step(parameters: Any, state: Any, x: jax.Array) -> Any:
        loss, gradients = jax.value_and_grad(loss_of)(parameters, x)
        return (*adam(parameters, [reduce(g) for g in gradients], state), loss)

    state_specs = {"first": held, "second": held, "count": everywhere}
    mapped = jax.shard_map(step, mesh=mesh, in_specs=(held, state_specs, rows), out_specs=(held, state_specs, everywhere), check_vma=False)
    parameters = [_described(shape, NamedSharding(mesh, held)) for shape in shapes]
    state = {"first": parameters, "second": parameters, "count": _described((), NamedSharding(mesh, everywhere))}
    x = _described((ROWS * len(devices), width), NamedSharding(mesh, rows))
    return jax.jit(mapped, donate_argnums=(0, 1)).lower(parameters, state, x).compile()


def alone(parameters: Any, x: jax.Array) -> jax.Array:
    """The loss of whole parameters."""
    for number in range(LAYERS):
        x = layer(parameters[4 * number : 4 * number + 4], x)
    return (x * x).mean()


def gathering(parameters: Any, x: jax.Array) -> jax.Array:
    """The loss of parameters that are sharded by rows: each layer gathers its own, and once more in its backward pass."""

    def gathered(parts: Any, x: jax.Array) -> jax.Array:
        return layer([lax.all_gather(part, AXIS, tiled=True) for part in parts], x)

    for number in range(LAYERS):
        x = jax.checkpoint(gathered)(parameters[4 * number : 4 * number + 4], x)
    return (x * x).mean()


def gathering_at_once(shapes: Shapes, parts: Any, x: jax.Array) -> jax.Array:
    """As `gathering`, the parameters of a layer as one flat array, of which a device has its part; shapes: of one layer's parameters."""
    sizes = [math.prod(shape) for shape in shapes]

    def gathered(part: jax.Array, x: jax.Array) -> jax.Array:
        whole = lax.all_gather(part, AXIS, tiled=True)
        places = itertools.accumulate(sizes, initial=0)
        return layer([whole[place : place + size].reshape(shape) for place, size, shape in zip(places, sizes, shapes, strict=False)], x)

    for part in parts:
        x = jax.checkpoint(gathered)(part, x)
    return (x * x).mean()


def collective(devices: Sequence[Any], function: Callable[[jax.Array], jax.Array], shape: tuple[int, ...]) -> Any:
    """One collective over an array of each replica."""
    mesh = Mesh(np.array(devices), (AXIS,))
    rows = PartitionSpec(AXIS)
    mapped = jax.shard_map(function, mesh=mesh, in_specs=rows, out_specs=rows, check_vma=False)
    return jax.jit(mapped).lower(_described((shape[0] * len(devices), *shape[1:]), NamedSharding(mesh, rows))).compile()


def _described(shape: tuple[int, ...], sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.dtype(np.float32), sharding=sharding)
