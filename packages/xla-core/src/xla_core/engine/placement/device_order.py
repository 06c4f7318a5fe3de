"""Buffers over a program's devices in another order than the program's (SPMD): a mesh may order its devices unlike the first mesh.

A program runs over one order of devices. Such a buffer is relabelled as an array over that order when it enters; the program then sends the
shards to the devices where it wants them. A result goes the other way. No device ever holds more than its shard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding

from xla_core.engine.placement.planned import PlannedBuffer


def in_order_of(sharding: Any, default: Any) -> Any:
    """The sharding with its mesh over the program's devices in their order; unchanged if it has that order. default: of the program."""
    if not isinstance(sharding, NamedSharding) or not isinstance(default, NamedSharding):
        return sharding
    mesh, devices = sharding.mesh, default.mesh.devices.reshape(-1)
    if all(mine is theirs for mine, theirs in zip(mesh.devices.flat, devices, strict=True)):
        return sharding
    return NamedSharding(Mesh(devices.reshape(mesh.devices.shape), mesh.axis_names), sharding.spec)


def relabelled(buffer: jax.Array, sharding: NamedSharding) -> jax.Array:
    """The same shards on the same devices, as an array over another order of them: its values change, nothing is copied."""
    if isinstance(buffer, PlannedBuffer):
        return buffer.resharded(sharding)
    return jax.make_array_from_single_device_arrays(buffer.shape, sharding, [shard.data for shard in buffer.addressable_shards])


def entered(array: jax.Array, sharding: Any, default: Any) -> jax.Array:
    """In a program, the values of a buffer of this sharding that was relabelled."""
    return _sent(array, sharding, default, lambda inside, outside: (inside, outside))


def left(array: jax.Array, sharding: Any, default: Any) -> jax.Array:
    """In a program, a result in the order from which it can be relabelled to a buffer of this sharding."""
    return _sent(array, sharding, default, lambda inside, outside: (outside, inside))


def _sent(array: jax.Array, sharding: Any, default: Any, route: Callable[[int, int], tuple[int, int]]) -> jax.Array:
    inside = in_order_of(sharding, default)
    if inside is sharding:
        return array
    indices = {device: index for index, device in enumerate(sharding.mesh.devices.flat)}
    routes = [route(position, indices[device]) for position, device in enumerate(inside.mesh.devices.flat)]
    send = partial(jax.lax.ppermute, axis_name=inside.mesh.axis_names, perm=routes)
    sent: jax.Array = jax.shard_map(send, mesh=inside.mesh, in_specs=inside.spec, out_specs=inside.spec, check_vma=False)(array)
    return sent


def relabelling(function: Callable[..., Any], taken: Sequence[Any], returned: Sequence[Any], default: Any) -> Callable[..., Any]:
    """Make a program over buffers in its own order take buffers of the shardings `taken` and return those of the shardings `returned`."""
    relabelled_arguments = [
        (index, inside) for index, sharding in enumerate(taken) if (inside := in_order_of(sharding, default)) is not sharding
    ]
    relabelled_results = [(index, sharding) for index, sharding in enumerate(returned) if in_order_of(sharding, default) is not sharding]
    if not relabelled_arguments and not relabelled_results:
        return function

    def run(*arguments: Any) -> list[Any]:
        inside = list(arguments)
        for index, sharding in relabelled_arguments:
            inside[index] = relabelled(arguments[index], sharding)
        outside = list(function(*inside))
        for index, sharding in relabelled_results:
            outside[index] = relabelled(outside[index], sharding)
        return outside

    return run
