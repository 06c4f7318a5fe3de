"""The sharding of tensors over several devices (SPMD), and the operation that constrains a pending result to a sharding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from xla_core.engine.graph.aval import Aval
from xla_core.engine.graph.entries import Entry, operation_at
from xla_core.engine.graph.signature import PLACEHOLDER, Signature

_NAME = "xla.sharding_constraint"
_AXIS = "xla_device"  # and a number: axes of the mesh over which tensors without a sharding are replicated


def replicated_over(devices: np.ndarray[Any, Any]) -> NamedSharding:
    """A replicated sharding over devices. Its mesh has an axis for each prime factor, so that jax can describe any sharding XLA chooses."""
    sizes, remaining, factor = [], devices.size, 2
    while remaining > 1:
        if remaining % factor == 0:
            sizes.append(factor)
            remaining //= factor
        else:
            factor += 1
    names = tuple(f"{_AXIS}{index}" for index in range(max(1, len(sizes))))
    return NamedSharding(Mesh(devices.reshape(sizes or [1]), names), PartitionSpec())


@dataclass(frozen=True, slots=True)
class Sharding:
    """The sharding that was requested for one tensor; its text is the same in every process. note: an object of the caller's, kept with it.

    in_program: the same sharding over the devices in the order of programs, if that differs (engine/placement/device_order.py).
    """

    named: NamedSharding
    note: Any = field(default=None, compare=False)
    in_program: NamedSharding | None = None

    def for_shape(self, shape: tuple[int, ...]) -> Sharding:
        """The sharding without the dimensions of `shape` that it does not divide evenly."""
        mesh, spec = self.named.mesh, self.named.spec
        kept = [entry if size % shard_count(mesh.shape, entry) == 0 else None for entry, size in zip(spec, shape, strict=False)]
        return self if kept == [*spec] else Sharding(NamedSharding(mesh, PartitionSpec(*kept)))

    def indices(self, shape: Sequence[int]) -> dict[jax.Device, tuple[slice, ...]]:
        """The elements of a tensor of `shape` that each device holds, a slice for each dimension, perhaps empty."""
        stored = self.named.devices_indices_map(stored_shape(shape, self.named))
        return {device: inside(index, shape) for device, index in stored.items()}

    def __repr__(self) -> str:
        return sharding_text(self.named)


def stored_shape(shape: Sequence[int], sharding: Any) -> tuple[int, ...]:
    """The shape of a buffer with values of `shape`: dimensions that the sharding does not divide evenly are padded at the end."""
    if not isinstance(sharding, NamedSharding):
        return tuple(shape)
    counts = [shard_count(sharding.mesh.shape, entry) for entry in sharding.spec]
    counts += [1] * (len(shape) - len(counts))
    return tuple(-(-size // count) * count for size, count in zip(shape, counts, strict=True))


def inside(index: Sequence[slice], shape: Sequence[int]) -> tuple[slice, ...]:
    """The indices of a shard in its buffer, without the padding."""
    bounds = [
        (dimension.start or 0, size if dimension.stop is None else dimension.stop, size)
        for dimension, size in zip(index, shape, strict=True)
    ]
    return tuple(slice(min(start, size), min(stop, size)) for start, stop, size in bounds)


def unpadded(array: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """In a program, the values of `shape` in a buffer: without its padding."""
    return array if array.shape == shape else jax.lax.slice(array, [0] * len(shape), shape)


def padded(array: jax.Array, sharding: Any) -> jax.Array:
    """In a program, the contents of a buffer with these values: with padding."""
    ends = [stored - size for stored, size in zip(stored_shape(array.shape, sharding), array.shape, strict=True)]
    return jax.lax.pad(array, np.zeros((), array.dtype), [(0, end, 0) for end in ends]) if any(ends) else array


def shard_count(sizes: Any, entry: Any) -> int:
    """The number of shards into which an entry of a partition spec divides its dimension. sizes: of the mesh axes, by name."""
    names = () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
    return int(np.prod([sizes[name] for name in names], dtype=np.int64))


def sharding_text(sharding: Any) -> str:
    """The full text of a sharding: the mesh's sizes, names and devices in order, and the partition spec."""
    if not isinstance(sharding, NamedSharding):
        return repr(sharding)
    mesh = sharding.mesh
    return f"<{dict(mesh.shape)} {[device.id for device in mesh.devices.flat]} {sharding.spec}>"


_signatures: dict[Any, Signature] = {}


def sharding_constraint(avals: Sequence[Aval], shardings: Sequence[Sharding]) -> Signature:
    """The operation that returns each of its operands with its sharding of `shardings`."""
    key = (tuple(avals), tuple(shardings))
    signature = _signatures.get(key)
    if signature is None:
        placeholders = [PLACEHOLDER] * len(avals)
        signature = _signatures[key] = Signature(_NAME, _lower, (placeholders,), {"shardings": tuple(shardings)}, tuple(avals))
    return signature


def _lower(context: Any, operands: list[jax.Array], shardings: tuple[Sharding, ...]) -> list[jax.Array]:
    return [
        jax.lax.with_sharding_constraint(x, sharding.in_program or sharding.named) for x, sharding in zip(operands, shardings, strict=True)
    ]


def sharding_at(entries: Sequence[Entry], slot: int) -> Sharding | None:
    """The sharding to which the result at `slot` is constrained, if any."""
    start = operation_at(entries, slot)
    entry = entries[start]
    if type(entry) is not tuple or entry[0].name != _NAME:
        return None
    shardings: tuple[Sharding, ...] = entry[0].kwargs["shardings"]
    return shardings[0] if len(shardings) == 1 else shardings[slot - start - 1]
