"""Where data is and programs run: on one device, on one device as one replica of several, or over a mesh of all devices (SPMD).

A placement is a value: nothing here asks the process for its devices. Those of a target that is not attached take no data: its buffers are
planned ones.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, TypeAlias

import jax
import numpy as np
from jax.sharding import Mesh as JaxMesh
from jax.sharding import NamedSharding, PartitionSpec, SingleDeviceSharding

from xla_core.base.private_jax import put_on_device
from xla_core.engine.graph.graph import Graph
from xla_core.engine.placement.layout import Layout, mesh_layout
from xla_core.engine.placement.manual import REPLICA_AXIS
from xla_core.engine.placement.planned import as_shard, planned
from xla_core.engine.placement.sharding import replicated_over, sharding_text, stored_shape
from xla_core.engine.placement.target import Target
from xla_core.ops.table import Context


@dataclass(frozen=True)
class OneDevice:
    """One device by itself."""

    device: jax.Device
    target: Target
    is_mesh: ClassVar[bool] = False
    manual_mesh: ClassVar[None] = None  # there are no manual regions

    @cached_property
    def sharding(self) -> SingleDeviceSharding:
        """The sharding of all buffers."""
        return SingleDeviceSharding(self.device)

    @property
    def devices(self) -> tuple[jax.Device, ...]:
        """The devices that run a program, in its order."""
        return (self.device,)

    @cached_property
    def context(self) -> Context:
        """What lowerings are told about a program."""
        return Context((), platform=self.device.platform, model=model_of(self.device))

    def key(self, buffers: Sequence[jax.Array]) -> tuple[Any, ...]:
        """The part of a program's key that comes from its buffers, besides shapes and dtypes."""
        return ()

    def texts(self, buffers: Sequence[jax.Array]) -> list[str]:
        """The same as texts, which are equal in all processes."""
        return []

    def put(self, array: np.ndarray[Any, Any] | jax.Array, sharding: jax.sharding.Sharding | None = None) -> jax.Array:
        """A buffer of `array`, whose memory the caller gives away."""
        if not self.target.attached:
            return planned(array, self.sharding)
        if isinstance(array, np.ndarray):
            return put_on_device(array, self.sharding, self.device)
        buffer: jax.Array = jax.device_put(array, self.device)
        return buffer

    def taken_in(self, buffer: jax.Array) -> jax.Array:
        """A buffer on one device in the form that programs take and return."""
        return buffer if self.target.attached else planned(buffer, self.sharding)

    def local(self, buffer: jax.Array) -> jax.Array:
        """A buffer in the form that other libraries take."""
        return buffer

    def layout(self, graph: Graph, shardings: Sequence[jax.sharding.Sharding], replicate: bool = False) -> Layout:
        """How the buffers of a program, which have these shardings, enter and leave it."""
        return Layout(self.spread, graph.parts.donated, None if graph.parts.leaves else self.sharding)

    def spread(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` as each replica runs it."""
        return function


@dataclass(frozen=True)
class Replicas:
    """One device of this process, as one replica of several: each buffer is this process's shard of an array over all of them.

    mesh: the devices of the replicas, in order of ordinals, on axis REPLICA_AXIS.
    """

    device: jax.Device
    mesh: JaxMesh
    target: Target
    is_mesh: ClassVar[bool] = False
    manual_mesh: ClassVar[None] = None  # there are no manual regions

    @cached_property
    def sharding(self) -> NamedSharding:
        """The sharding of all buffers."""
        return NamedSharding(self.mesh, PartitionSpec())

    @property
    def devices(self) -> tuple[jax.Device, ...]:
        """The devices that run a program, in its order."""
        return tuple(self.mesh.devices.flat)

    @cached_property
    def context(self) -> Context:
        """What lowerings are told about a program."""
        return Context((), platform=self.device.platform, mesh=self.mesh, model=model_of(self.device))

    def key(self, buffers: Sequence[jax.Array]) -> tuple[Any, ...]:
        """The part of a program's key that comes from its buffers, besides shapes and dtypes."""
        return ()

    def texts(self, buffers: Sequence[jax.Array]) -> list[str]:
        """The same as texts, which are equal in all processes."""
        return []

    def put(self, array: np.ndarray[Any, Any] | jax.Array, sharding: jax.sharding.Sharding | None = None) -> jax.Array:
        """A buffer of `array`, whose memory the caller gives away."""
        if not self.target.attached:
            return planned(array, self.sharding)
        return self.taken_in(jax.device_put(array, self.device))

    def taken_in(self, buffer: jax.Array) -> jax.Array:
        """A buffer on one device in the form that programs take and return."""
        if not self.target.attached:
            return planned(buffer, self.sharding)
        if buffer.sharding == self.sharding:
            return buffer
        with jax.enable_x64(True):
            return as_shard(buffer, self.sharding)

    def local(self, buffer: jax.Array) -> jax.Array:
        """A buffer in the form that other libraries take: this process's shard, an array on one device."""
        return buffer.addressable_data(0)

    def layout(self, graph: Graph, shardings: Sequence[jax.sharding.Sharding], replicate: bool = False) -> Layout:
        """How the buffers of a program, which have these shardings, enter and leave it."""
        return Layout(self.spread, graph.parts.donated, None if graph.parts.leaves else self.sharding)

    def spread(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` as each replica runs it over its own shard of the buffers; collectives inside reach the other replicas."""
        replicated = PartitionSpec()
        mapped: Callable[..., Any] = jax.shard_map(function, mesh=self.mesh, in_specs=replicated, out_specs=replicated, check_vma=False)
        return mapped


@dataclass(frozen=True)
class Mesh:
    """All devices of the job behind one: buffers are arrays of one program over all of them (SPMD).

    sharding: replicated, of buffers without a sharding of their own. local_devices: the devices of this process.
    """

    sharding: NamedSharding
    local_devices: tuple[jax.Device, ...]
    target: Target
    is_mesh: ClassVar[bool] = True

    @property
    def device(self) -> jax.Device:
        """The first device of this process."""
        return self.local_devices[0]

    @cached_property
    def devices(self) -> tuple[jax.Device, ...]:
        """The devices that run a program, in its order."""
        return tuple(self.sharding.mesh.devices.flat)

    @cached_property
    def context(self) -> Context:
        """What lowerings are told about a program."""
        mesh: Any = self.sharding.mesh  # of devices: an abstract one has none
        return Context((), platform=self.device.platform, mesh=mesh, model=model_of(self.device))

    @cached_property
    def manual_mesh(self) -> JaxMesh:
        """The mesh of manual regions, where each device has one shard of a value (manual.py)."""
        return JaxMesh(np.array(self.devices), (REPLICA_AXIS,))

    def key(self, buffers: Sequence[jax.Array]) -> tuple[Any, ...]:
        """The part of a program's key that comes from its buffers, besides shapes and dtypes."""
        return tuple([buffer.sharding for buffer in buffers])

    def texts(self, buffers: Sequence[jax.Array]) -> list[str]:
        """The same as texts, which are equal in all processes."""
        return [sharding_text(buffer.sharding) for buffer in buffers]

    def put(self, array: np.ndarray[Any, Any] | jax.Array, sharding: jax.sharding.Sharding | None = None) -> jax.Array:
        """A buffer of `array`. Dimensions that the sharding does not divide evenly are padded with zeros."""
        stored = sharding if sharding is not None and array.size else self.sharding  # programs do not shard empty arrays
        if not self.target.attached:
            return planned(array, stored, stored_shape(array.shape, stored))
        return jax.make_array_from_callback(stored_shape(array.shape, stored), stored, lambda index: _shard_of(array, index))

    def taken_in(self, buffer: jax.Array) -> jax.Array:
        """A buffer on one device in the form that programs take and return: copied to each device."""
        if not self.target.attached:
            return planned(buffer, self.sharding)
        if buffer.sharding == self.sharding:
            return buffer
        with jax.enable_x64(True):
            shards = [jax.device_put(buffer, device) for device in self.local_devices]
            return jax.make_array_from_single_device_arrays(buffer.shape, self.sharding, shards)

    def local(self, buffer: jax.Array) -> jax.Array:
        """A buffer in the form that other libraries take."""
        return buffer

    def layout(self, graph: Graph, shardings: Sequence[jax.sharding.Sharding], replicate: bool = False) -> Layout:
        """How the buffers of a program, which have these shardings, enter and leave it. replicate: see `mesh_layout`."""
        return mesh_layout(graph, shardings, self.sharding, NamedSharding(self.manual_mesh, PartitionSpec(REPLICA_AXIS)), replicate)

    def spread(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function` as it is: the compiler's partitioner spreads it over the devices."""
        return function


Placement: TypeAlias = OneDevice | Replicas | Mesh


def over_mesh(devices: np.ndarray[Any, Any], local_devices: Sequence[jax.Device], target: Target) -> Mesh:
    """The placement of SPMD mode over `devices`, in this order."""
    return Mesh(replicated_over(devices), tuple(local_devices), target)


def model_of(device: jax.Device) -> Any:
    """A device's model as jax describes it to kernels, a `jax.sharding.AbstractDevice`."""
    return JaxMesh(np.array([device]), ("",)).abstract_mesh.abstract_device


def _shard_of(array: np.ndarray[Any, Any] | jax.Array, index: Any) -> np.ndarray[Any, Any]:
    """The elements of an array at `index` in its buffer, with zeros for those beyond its end."""
    elements = np.asarray(array[index])
    missing = [
        (0, (bounds.stop or 0) - (bounds.start or 0) - size if bounds.stop else 0)
        for bounds, size in zip(index, elements.shape, strict=True)
    ]
    return np.pad(elements, missing) if any(end for _, end in missing) else elements
