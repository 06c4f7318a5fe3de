"""Convert a sharding to JAX's NamedSharding, over the devices in the order in which programs run."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from xla_core.abi.process import client
from xla_spmd.mesh import physical_devices
from xla_spmd.op_sharding import Ids, OpSharding, ShardingType


def device_order() -> Ids:
    """The device ids of this job, in the order in which programs run over them."""
    ids = {device: index for index, device in enumerate(physical_devices())}
    return np.array([ids[device] for device in _devices().flat], np.int64)


def _devices() -> np.ndarray[Any, Any]:
    devices: np.ndarray[Any, Any] = replicated().mesh.devices
    return devices


def replicated() -> NamedSharding:
    """The sharding of data that every device holds all of."""
    default: Any = client().default_shardings[0]
    named: NamedSharding = default
    return named


def named_sharding(sharding: OpSharding) -> NamedSharding | None:
    """The JAX sharding over the devices in program order; None if the sharding needs another order."""
    return replicated() if sharding.effective_type is ShardingType.REPLICATED else _over_programs(sharding, replicated())


@lru_cache(maxsize=1024)
def in_own_order(sharding: OpSharding) -> NamedSharding:
    """The JAX sharding over the devices in the order of its tiles."""
    tiles = sharding.tiles
    names = [f"axis{index}" for index in range(tiles.ndim)]
    devices = np.array(physical_devices(), object)[tiles]
    return NamedSharding(jax.sharding.Mesh(devices, names), PartitionSpec(*names[:-1]))


@lru_cache(maxsize=1024)  # marking activations asks in each step
def _over_programs(sharding: OpSharding, default: NamedSharding) -> NamedSharding | None:
    devices = default.mesh.devices.reshape(-1)
    positions = np.sort(np.argsort(device_order())[sharding.tiles], axis=-1)  # replicas hold the same, in whatever order
    strides = _strides(positions)
    if strides is None:
        return None
    outermost_first = sorted({stride for steps in strides for _, stride in steps}, reverse=True)
    sizes = {stride: size for steps in strides for size, stride in steps}
    names = {stride: f"axis{index}" for index, stride in enumerate(outermost_first)}
    mesh = jax.sharding.Mesh(devices.reshape([sizes[stride] for stride in outermost_first]), tuple(names.values()))
    spec = [tuple(names[stride] for _, stride in steps) or None for steps in strides[:-1]]
    return NamedSharding(mesh, PartitionSpec(*spec))


def _strides(positions: Ids) -> list[list[tuple[int, int]]] | None:
    """For each dimension of an array of positions 0 … n-1 the (size, stride) of the axes that it runs along, outermost first.

    None if the positions are no transposition of a box in row-major order.
    """
    steps_by_dim: list[list[tuple[int, int]]] = []
    for dim, size in enumerate(positions.shape):
        line = np.moveaxis(positions, dim, 0).reshape(size, -1)[:, 0]
        steps_by_dim.append(_axes(line - line[0]))
    flat = np.zeros((), np.int64)
    for steps in steps_by_dim:
        digits = np.zeros(1, np.int64)
        for size, stride in steps:
            digits = (digits[:, None] + stride * np.arange(size)).reshape(-1)
        flat = flat[..., None] + digits
    return steps_by_dim if np.array_equal(flat, positions) else None


def _axes(line: Ids) -> list[tuple[int, int]]:
    """(size, stride) of the nested regular runs of a line of positions, outermost first; stride -1 if the line is irregular."""
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
