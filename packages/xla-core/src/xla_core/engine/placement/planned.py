"""Buffers on devices that this process has not: their shape, dtype and sharding, and no memory."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import jax
import numpy as np
from jax.sharding import SingleDeviceSharding

MOST_KNOWN = 1 << 16
"""Bytes: integers of so many the host remembers, since they may be lengths by which a script goes on."""


@dataclass(frozen=True, slots=True)
class PlannedShard:
    """Stands for a `jax.Shard`: what one device has of a buffer."""

    device: jax.Device
    index: tuple[slice, ...]
    replica_id: int
    data: PlannedBuffer


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class PlannedBuffer:
    """Stands for a `jax.Array` on a target's devices, where the engine asks for one.

    known: its elements, where the host has given or computed them; exact: from others such alone, not from values that nobody has, as 0.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    sharding: jax.sharding.Sharding
    known: np.ndarray[Any, Any] | None = None
    exact: bool = True

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The size in bytes over all devices, each element counted once."""
        return self.size * self.dtype.itemsize

    @property
    def spec(self) -> jax.ShapeDtypeStruct:
        """What jax lowers a program over."""
        return jax.ShapeDtypeStruct(self.shape, self.dtype, sharding=self.sharding)

    @property
    def is_fully_replicated(self) -> bool:
        """Whether each device has all of it."""
        return self.sharding.is_fully_replicated

    @property
    def addressable_shards(self) -> list[PlannedShard]:
        """A shard for each device."""
        shape = self.sharding.shard_shape(self.shape)
        seen: Counter[str] = Counter()
        shards = []
        for device, index in self.sharding.devices_indices_map(self.shape).items():
            data = PlannedBuffer(shape, self.dtype, SingleDeviceSharding(device))
            shards.append(PlannedShard(device, index, seen[repr(index)], data))
            seen[repr(index)] += 1
        return shards

    def addressable_data(self, index: int) -> PlannedBuffer:
        """What the device at `index` has."""
        return self.addressable_shards[index].data

    def devices(self) -> set[jax.Device]:
        """The devices that have a part of it."""
        return self.sharding.device_set

    def copy(self) -> PlannedBuffer:
        """Another buffer like this one."""
        return replace(self)

    def with_elements(self, known: np.ndarray[Any, Any], exact: bool = True) -> PlannedBuffer:
        """Another buffer like this one, with its elements known; without where padding gives it another shape."""
        return replace(self, known=known, exact=exact) if known.shape == self.shape else self

    def resharded(self, sharding: jax.sharding.Sharding, shape: Sequence[int] | None = None) -> PlannedBuffer:
        """Another buffer with this sharding, and of this shape where padding differs."""
        stored = self.shape if shape is None else tuple(shape)
        return replace(self, sharding=sharding, shape=stored, known=self.known if stored == self.shape else None)

    def is_deleted(self) -> bool:
        """Never: there is no memory to give back."""
        return False

    def is_ready(self) -> bool:
        """Always: nothing computes it."""
        return True

    def block_until_ready(self) -> PlannedBuffer:
        """This buffer, at once."""
        return self


def planned_like(buffer: jax.Array | PlannedBuffer) -> PlannedBuffer:
    """A planned buffer of the shape, dtype and sharding of another one, whose memory it does not hold."""
    return PlannedBuffer(tuple(buffer.shape), np.dtype(buffer.dtype), buffer.sharding)


def planned(array: Any, sharding: jax.sharding.Sharding, shape: Sequence[int] | None = None) -> jax.Array:
    """A buffer like `array`, typed as what it stands for. shape: with padding; None: that of `array`."""
    return cast(jax.Array, PlannedBuffer(tuple(array.shape if shape is None else shape), np.dtype(array.dtype), sharding))


def as_shard(buffer: jax.Array, sharding: jax.sharding.Sharding) -> jax.Array:
    """A buffer of one device as this process's shard of an array over several."""
    if isinstance(buffer, PlannedBuffer):
        return planned(buffer, sharding)
    return jax.make_array_from_single_device_arrays(buffer.shape, sharding, [buffer])


def stand_in(shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """What is read from a planned buffer: NaN where the dtype has one, else 0; read-only, of one element's memory."""
    number: Any = np.nan if np.issubdtype(dtype, np.inexact) or dtype.kind == "V" else 0
    return np.broadcast_to(np.asarray(number).astype(dtype), tuple(shape))
