"""The shards of a tensor that the devices of this process hold."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import EllipsisType

import jax
import torch

from xla_core import abi
from xla_spmd.annotations import Annotation, annotation_of, check_whole
from xla_spmd.axes import named_sharding
from xla_spmd.errors import AnnotationError
from xla_spmd.mesh import physical_devices
from xla_spmd.op_sharding import OpSharding, ShardingType
from xla_spmd.shards import Part, parts, shard_shape


@dataclass
class XLAShard:
    """A snapshot of what one device holds of a tensor.

    data: on the CPU, with zeros at the end of split dimensions that are not evenly divided. indices: which part of the tensor
    without padding that is, a slice(start, stop, 1) per dimension, or `...` for all of it. shard_device: `CPU:0` and so on.
    replica_id: which copy.
    """

    data: torch.Tensor
    indices: list[slice] | EllipsisType
    shard_device: str
    replica_id: int

    @property
    def unpadded_data(self) -> torch.Tensor:
        """The part of `data` that is of the tensor."""
        return self.data[self._inside()]

    @unpadded_data.setter
    def unpadded_data(self, t: torch.Tensor) -> None:
        self.data[self._inside()] = t

    def _inside(self) -> tuple[slice, ...]:
        if isinstance(self.indices, EllipsisType):
            return (slice(None),) * self.data.dim()
        return tuple(slice(0, index.stop - index.start) for index in self.indices)


def annotated(t: torch.Tensor) -> Annotation:
    """The annotation of `t`. Raises AnnotationError if it has none, or is a part, in a manual region."""
    check_whole(t)
    found = annotation_of(t)
    if found is None:
        raise AnnotationError(f"the tensor of shape {tuple(t.shape)} is not divided: call mark_sharding on it first")
    return found


def local_shards(t: torch.Tensor) -> list[XLAShard]:
    """One shard for each device of this process, in their order. Raises AnnotationError if none was told of `t`, or it is manual."""
    sharding = annotated(t).sharding
    padded = shard_shape(sharding, tuple(t.shape))
    ids = _ids()
    held = abi.device_parts(t)
    return [
        XLAShard(_cut(one, part, padded), part.indices, f"{abi.client().kind}:{ids[one.device]}", part.replica_id)
        for one, part in zip(held, _parts(t, sharding), strict=True)
    ]


def _ids() -> dict[jax.Device, int]:
    return {device: number for number, device in enumerate(physical_devices())}


def _parts(t: torch.Tensor, sharding: OpSharding) -> list[Part]:
    """The parts that the devices of this process hold by the sharding."""
    ids = _ids()
    return parts(sharding, tuple(t.shape), [ids[device] for device in abi.client().devices])


def _cut(held: abi.DevicePart, part: Part, padded: tuple[int, ...]) -> torch.Tensor:
    """A part by the sharding, out of what the device holds, which may be more."""
    if isinstance(part.indices, EllipsisType):
        return held.data
    inside = [slice(wanted.start - have.start, wanted.stop - have.start) for wanted, have in zip(part.indices, held.index, strict=True)]
    found = held.data[tuple(inside)]
    missing = [end for size, got in zip(padded, found.shape, strict=True) for end in (size - got, 0)]
    return torch.nn.functional.pad(found, missing[::-1]) if any(missing) else found.clone()


def load_local_shards(t: torch.Tensor, given: Sequence[XLAShard]) -> None:
    """Overwrite `t` with one shard for each device of this process, in their order.

    Raises AnnotationError (a RuntimeError) for a tensor that is replicated, and if number or shapes of the shards do not fit.
    """
    sharding = annotated(t).sharding
    if sharding.effective_type is ShardingType.REPLICATED:
        raise AnnotationError(f"the tensor of shape {tuple(t.shape)} is replicated, it has no shards to load: use copy_")
    places = _parts(t, sharding)
    if len(given) != len(places):
        raise AnnotationError(f"{len(given)} shards were given for the {len(places)} devices of this process: give one for each")
    wanted = shard_shape(sharding, tuple(t.shape))
    wrong = next((shard for shard in given if tuple(shard.data.shape) != wanted), None)
    if wrong is not None:
        raise AnnotationError(
            f"shards of a tensor of shape {tuple(t.shape)} under {sharding} have shape {wanted}, padding included, "
            f"got {tuple(wrong.data.shape)}"
        )
    with torch.no_grad():
        t.copy_(_assembled(t, sharding, given, places))


def _assembled(t: torch.Tensor, sharding: OpSharding, given: Sequence[XLAShard], places: Sequence[Part]) -> torch.Tensor:
    layout = abi.layout(t)
    if layout is not None and layout.stored(tuple(t.shape)) is layout and named_sharding(sharding) is not None:
        return abi.tensor_from_parts([shard.data.to(t.dtype) for shard in given], layout.sharding, tuple(t.shape))
    if len(abi.client().devices) != len(physical_devices()):
        raise AnnotationError(
            f"programs cannot hold the sharding {sharding} of shape {tuple(t.shape)}, so that every process holds all of it: "
            "the shards of one process cannot be loaded; copy the whole tensor with copy_"
        )
    whole = torch.empty(t.shape, dtype=t.dtype)
    for shard, part in zip(given, places, strict=True):
        if not isinstance(part.indices, EllipsisType):
            whole[tuple(part.indices)] = XLAShard(shard.data, part.indices, "", 0).unpadded_data.to(t.dtype)
    return whole.to(t.device)
