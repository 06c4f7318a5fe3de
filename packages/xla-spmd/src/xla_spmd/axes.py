"""A sharding as JAX's, over the devices in the order in which programs run."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from xla_core.abi import client
from xla_spmd.mesh import physical_devices
from xla_spmd.op_sharding import Ids, OpSharding, ShardingType


def order_of_programs() -> Ids:
    """The device ids of this job, in the order in which programs run over them."""
    ids = {device: number for number, device in enumerate(physical_devices())}
    return np.array([ids[device] for device in _devices().flat], np.int64)


def _devices() -> np.ndarray[Any, Any]:
    home: Any = client().homes[0]
    devices: np.ndarray[Any, Any] = home.mesh.devices
    return devices


def everywhere() -> NamedSharding:
    """All on every device."""
    home: Any = client().homes[0]
    found: NamedSharding = home
    return found


def named_sharding(sharding: OpSharding) -> NamedSharding | None:
    """The same sharding for programs; None where only another order of devices could say it."""
    return everywhere() if sharding.effective_type is ShardingType.REPLICATED else _over_programs(sharding, everywhere())


@lru_cache(maxsize=1024)  # a mark of activations asks in each step
def _over_programs(sharding: OpSharding, home: NamedSharding) -> NamedSharding | None:
    devices = home.mesh.devices.reshape(-1)
    places = np.sort(np.argsort(order_of_programs())[sharding.tiles], axis=-1)  # replicas hold the same, in whatever order
    strides = _strides(places)
    if strides is None:
        return None
    outermost_first = sorted({stride for steps in strides for _, stride in steps}, reverse=True)
    sizes = {stride: size for steps in strides for size, stride in steps}
    names = {stride: f"axis{number}" for number, stride in enumerate(outermost_first)}
    mesh = jax.sharding.Mesh(devices.reshape([sizes[stride] for stride in outermost_first]), tuple(names.values()))
    spec = [tuple(names[stride] for _, stride in steps) or None for steps in strides[:-1]]
    return NamedSharding(mesh, PartitionSpec(*spec))


def _strides(places: Ids) -> list[list[tuple[int, int]]] | None:
    """For each dimension of an array of places 0 … n-1 the (size, stride) of the axes that it runs along, outermost first.

    None if the places are no transposition of a box in row-major order.
    """
    found: list[list[tuple[int, int]]] = []
    for dim, size in enumerate(places.shape):
        line = np.moveaxis(places, dim, 0).reshape(size, -1)[:, 0]
        found.append(_axes(line - line[0]))
    flat = np.zeros((), np.int64)
    for steps in found:
        digits = np.zeros(1, np.int64)
        for size, stride in steps:
            digits = (digits[:, None] + stride * np.arange(size)).reshape(-1)
        flat = flat[..., None] + digits
    return found if np.array_equal(flat, places) else None


def _axes(line: Ids) -> list[tuple[int, int]]:
    """(size, stride) of the nested regular runs of a line of places, outermost first; what is irregular shows when put together."""
    steps: list[tuple[int, int]] = []
    while len(line) > 1:
        stride = int(line[1])
        regular = np.arange(len(line)) * stride
        count = int(np.argmin(line == regular)) if not np.array_equal(line, regular) else len(line)
        if stride <= 0 or count < 2 or len(line) % count:
            return [(len(line), -1)]
        steps.append((count, stride))
        line = line[::count]
    return steps[::-1]
