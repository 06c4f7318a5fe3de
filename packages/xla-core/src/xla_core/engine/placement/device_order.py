"""Buffers over the devices of a program in another order than its own (SPMD): a mesh may have one beside that of the first mesh.

A program runs over one order of devices. Such a buffer enters it under another name, as an array over that order, whose shards are then
sent to where the program wants them; a result goes the other way. No device ever holds more than its shard.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding


def in_order_of(sharding: Any, default: Any) -> Any:
    """The sharding with its mesh over a program's devices, in their order; itself if it is over that order. default: the program's."""
    if not isinstance(sharding, NamedSharding) or not isinstance(default, NamedSharding):
        return sharding
    mesh, devices = sharding.mesh, default.mesh.devices.reshape(-1)
    if all(mine is theirs for mine, theirs in zip(mesh.devices.flat, devices, strict=True)):
        return sharding
    return NamedSharding(Mesh(devices.reshape(mesh.devices.shape), mesh.axis_names), sharding.spec)


def relabelled(buffer: jax.Array, sharding: NamedSharding) -> jax.Array:
    """The same shards on the same devices as an array over these in another order: its values are other ones, nothing is copied."""
    return jax.make_array_from_single_device_arrays(buffer.shape, sharding, [shard.data for shard in buffer.addressable_shards])


def entered(array: jax.Array, sharding: Any, default: Any) -> jax.Array:
    """In a program, what a relabelled buffer of this sharding holds."""
    return _sent(array, sharding, default, lambda held, place: (held, place))


def left(array: jax.Array, sharding: Any, default: Any) -> jax.Array:
    """In a program, a result to be relabelled to a buffer of this sharding."""
    return _sent(array, sharding, default, lambda held, place: (place, held))


def _sent(array: jax.Array, sharding: Any, default: Any, route: Callable[[int, int], tuple[int, int]]) -> jax.Array:
    inside = in_order_of(sharding, default)
    if inside is sharding:
        return array
    places = {device: place for place, device in enumerate(sharding.mesh.devices.flat)}
    routes = [route(held, places[device]) for held, device in enumerate(inside.mesh.devices.flat)]
    send = partial(jax.lax.ppermute, axis_name=inside.mesh.axis_names, perm=routes)
    sent: jax.Array = jax.shard_map(send, mesh=inside.mesh, in_specs=inside.spec, out_specs=inside.spec, check_vma=False)(array)
    return sent


def relabelling(function: Callable[..., Any], given: Sequence[Any], made: Sequence[Any], default: Any) -> Callable[..., Any]:
    """`function`, a program over buffers in its order, called with those of the shardings `given`, for results of the shardings `made`."""
    taken = [(number, inside) for number, sharding in enumerate(given) if (inside := in_order_of(sharding, default)) is not sharding]
    results = [(number, sharding) for number, sharding in enumerate(made) if in_order_of(sharding, default) is not sharding]
    if not taken and not results:
        return function

    def run(*arguments: Any) -> list[Any]:
        inside = list(arguments)
        for number, sharding in taken:
            inside[number] = relabelled(arguments[number], sharding)
        outside = list(function(*inside))
        for number, sharding in results:
            outside[number] = relabelled(outside[number], sharding)
        return outside

    return run
