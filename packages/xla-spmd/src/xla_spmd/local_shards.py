"""The shards of a tensor that the devices of this process hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import EllipsisType

import jax
import torch

from xla_core.abi.process import client
from xla_core.abi.sharding import DeviceShard, device_shards, sharding_of, tensor_from_shards
from xla_spmd.annotations import Annotation, annotation_of, check_not_manual
from xla_spmd.errors import AnnotationError
from xla_spmd.mesh import physical_devices
from xla_spmd.op_sharding import OpSharding, ShardingType
from xla_spmd.shards import ShardIndex, shard_indices, shard_shape


@dataclass
class XLAShard:
    """A snapshot of what one device holds of a tensor.

    data: on the CPU, with zeros at the end of sharded dimensions that are not evenly divisible. indices: which elements of the
    tensor without padding these are, a slice(start, stop, 1) per dimension, or `...` for all of it. shard_device: `CPU:0` and so on.
    replica_id: which copy.
    """

    data: torch.Tensor
    indices: list[slice] | EllipsisType
    shard_device: str
    replica_id: int

    @property
    def unpadded_data(self) -> torch.Tensor:
        """`data` without padding."""
        return self.data[self._inside()]

    @unpadded_data.setter
    def unpadded_data(self, t: torch.Tensor) -> None:
        self.data[self._inside()] = t

    def _inside(self) -> tuple[slice, ...]:
        if isinstance(self.indices, EllipsisType):
            return (slice(None),) * self.data.dim()
        return tuple(slice(0, index.stop - index.start) for index in self.indices)


def required_annotation(t: torch.Tensor) -> Annotation:
    """The annotation of `t`. Raises AnnotationError if it has none, or is a shard, in a manual region."""
    check_not_manual(t)
    annotation = annotation_of(t)
    if annotation is None:
        raise AnnotationError(f"the tensor of shape {tuple(t.shape)} is not sharded: call mark_sharding on it first")
    return annotation


def local_shards(t: torch.Tensor) -> list[XLAShard]:
    """One shard for each device of this process, in their order. Raises AnnotationError if `t` has no sharding, or is manual."""
    sharding = required_annotation(t).sharding
    padded = shard_shape(sharding, tuple(t.shape))
    ids = _ids()
    stored = device_shards(t)
    return [
        XLAShard(_cut(stored_shard, index, padded), index.indices, f"{client().kind}:{ids[stored_shard.device]}", index.replica_id)
        for stored_shard, index in zip(stored, _local_indices(t, sharding), strict=True)
    ]


def _ids() -> dict[jax.Device, int]:
    return {device: index for index, device in enumerate(physical_devices())}


def _local_indices(t: torch.Tensor, sharding: OpSharding) -> list[ShardIndex]:
    """The shards that the devices of this process hold by the sharding."""
    ids = _ids()
    return shard_indices(sharding, tuple(t.shape), [ids[device] for device in client().devices])


def _cut(stored: DeviceShard, shard_index: ShardIndex, padded: tuple[int, ...]) -> torch.Tensor:
    """Cut the shard that the sharding asks for out of what the device holds, which may be more, and pad it."""
    if isinstance(shard_index.indices, EllipsisType):
        return stored.data
    inside = [slice(cut.start - own.start, cut.stop - own.start) for cut, own in zip(shard_index.indices, stored.index, strict=True)]
    data = stored.data[tuple(inside)]
    # `pad` takes (start, end) pairs from the last dimension on: this list, read backwards.
    padding = [end for size, present in zip(padded, data.shape, strict=True) for end in (size - present, 0)]
    return torch.nn.functional.pad(data, padding[::-1]) if any(padding) else data.clone()


def load_local_shards(t: torch.Tensor, shards: Sequence[XLAShard]) -> None:
    """Overwrite `t` with one shard for each device of this process, in their order.

    Raises AnnotationError (a RuntimeError) for a tensor that is replicated, and if number or shapes of the shards do not fit.
    """
    sharding = required_annotation(t).sharding
    if sharding.effective_type is ShardingType.REPLICATED:
        raise AnnotationError(f"the tensor of shape {tuple(t.shape)} is replicated, it has no shards to load: use copy_")
    indices = _local_indices(t, sharding)
    if len(shards) != len(indices):
        raise AnnotationError(f"{len(shards)} shards were given for the {len(indices)} devices of this process: give one for each")
    padded = shard_shape(sharding, tuple(t.shape))
    wrong = next((shard for shard in shards if tuple(shard.data.shape) != padded), None)
    if wrong is not None:
        raise AnnotationError(
            f"shards of a tensor of shape {tuple(t.shape)} under {sharding} have shape {padded}, padding included, "
            f"got {tuple(wrong.data.shape)}"
        )
    stored = sharding_of(t)
    if stored is None:
        raise AnnotationError(f"the tensor of shape {tuple(t.shape)} is not sharded: call mark_sharding on it first")
    with torch.no_grad():
        # The shards become the buffer: no host holds the whole tensor.
        t.copy_(tensor_from_shards([shard.data.to(t.dtype) for shard in shards], stored.named, tuple(t.shape)))
