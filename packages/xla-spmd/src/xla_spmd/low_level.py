"""Shardings as the core asks for them: this module is a `xla_core.abi.plugins.ShardingBackend`.

Its functions are those of `torch_xla._XLAC`, without their first underscore, over the functions of this package.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import EllipsisType

import torch

from xla_core.abi.job import device_count
from xla_core.abi.metrics import counter_add
from xla_core.abi.process import client
from xla_core.abi.sharding import enter_manual, leave_manual, upload_sharded
from xla_spmd import local_shards
from xla_spmd.annotations import Annotation, annotate, annotation_of, sharding_for_programs, sharding_text
from xla_spmd.auto_sharding import sharding_of_upload as sharding_of_upload
from xla_spmd.errors import AnnotationError, DeviceCountError
from xla_spmd.manual import check_is_shard, region_sharding
from xla_spmd.manual import mark_manual_sharding as _mark_manual
from xla_spmd.marking import check_mode, clear_sharding
from xla_spmd.op_sharding import OpSharding as OpSharding
from xla_spmd.op_sharding import ShardingType
from xla_spmd.shards import shard_shape, tile_counts
from xla_spmd.tensor import unwrap_sharded_tensor


@dataclass(frozen=True, slots=True)
class XlaShardingSpec:
    """The sharding of an input of this shape (dtype); minibatch: the tensor is this process's block of dimension 0."""

    tensor: torch.Tensor
    tile_assignment: list[object]
    group_assignment: list[object]
    replication_groups: list[list[int]]
    sharding_type: int
    minibatch: bool = False


def xla_mark_sharding(t: torch.Tensor, sharding: OpSharding) -> None:
    """Set the sharding of `t`, in place. Raises as `mark_sharding`, ShardingError for a sharding of another rank."""
    check_mode("_xla_mark_sharding")
    annotate(unwrap_sharded_tensor(t), _checked(sharding, t.shape))
    counter_add("XlaMarkSharding")


def _checked(sharding: OpSharding, shape: Sequence[int]) -> Annotation:
    """Check an annotation against a tensor of this shape and this job, and return it."""
    tile_counts(sharding, len(shape))
    count = device_count()
    if sharding.tiles.size not in (0, count):
        raise DeviceCountError(f"the sharding {sharding} is over {sharding.tiles.size} devices, the job has {count}")
    return Annotation(sharding)


def xla_clear_sharding(t: torch.Tensor) -> None:
    """Clear the sharding of `t`, in place."""
    clear_sharding(t)


def mark_manual_sharding(t: torch.Tensor) -> None:
    """Make a pending result a manual value that each device has all of, in place."""
    _mark_manual(t)


def get_xla_sharding_spec(t: torch.Tensor) -> str:
    """The text of the sharding; `''` if it has none."""
    return sharding_text(unwrap_sharded_tensor(t))


def get_xla_op_sharding(t: torch.Tensor) -> OpSharding | None:
    """The sharding; None if it has none."""
    annotation = annotation_of(unwrap_sharded_tensor(t))
    return None if annotation is None else annotation.sharding


def get_xla_sharding_type(t: torch.Tensor) -> int | None:
    """The type of the sharding; None if it has none."""
    sharding = get_xla_op_sharding(t)
    return None if sharding is None else int(sharding.effective_type)


def get_local_shards(tensors: Sequence[torch.Tensor]) -> list[list[tuple[torch.Tensor, str]]]:
    """For each tensor, data (padded, on the CPU) and device of each shard of this process."""
    shards_by_tensor = [local_shards.local_shards(unwrap_sharded_tensor(t)) for t in tensors]
    return [[(shard.data, shard.shard_device) for shard in shards] for shards in shards_by_tensor]


def get_local_shard_replica_and_indices(tensors: Sequence[torch.Tensor]) -> list[list[tuple[int, list[slice] | EllipsisType]]]:
    """For each tensor, the replica id and the indices of each shard of this process."""
    shards_by_tensor = [local_shards.local_shards(unwrap_sharded_tensor(t)) for t in tensors]
    return [[(shard.replica_id, shard.indices) for shard in shards] for shards in shards_by_tensor]


def load_local_shards(t: torch.Tensor, shards: Sequence[torch.Tensor], devices: Sequence[str]) -> None:
    """Overwrite `t` with padded shards, one for each of this process's devices (`CPU:0`, …). Raises as `load_local_shards_`."""
    inner = unwrap_sharded_tensor(t)
    present = local_shards.local_shards(inner)
    expected = [shard.shard_device for shard in present]
    if sorted(devices) != sorted(expected) or len(shards) != len(devices):
        raise AnnotationError(f"there is one shard for each of the devices {expected}, got {len(shards)} shards for {list(devices)}")
    data_by_device = dict(zip(devices, shards, strict=True))
    local_shards.load_local_shards(inner, [replace(shard, data=data_by_device[shard.shard_device]) for shard in present])


def global_tensor_from_cpu_shards(
    shards: Sequence[torch.Tensor], sharding: OpSharding, global_shape: Sequence[int] | None = None
) -> torch.Tensor:
    """Make the tensor of `global_shape` out of the padded shards of this process's devices; None: the shards have no padding.

    Raises RuntimeError for shards that do not fit.
    """
    check_mode("_global_tensor_from_cpu_shards")
    if len(shards) != len(client().devices):
        raise AnnotationError(f"{len(shards)} shards were given for the {len(client().devices)} devices of this process: give one for each")
    tiles = tile_counts(sharding, shards[0].dim())
    shape = tuple(map(operator.mul, shards[0].shape, tiles)) if global_shape is None else tuple(global_shape)
    annotation = _checked(sharding, shape)
    padded = shard_shape(sharding, shape)
    if any(tuple(shard.shape) != padded for shard in shards):
        raise AnnotationError(
            f"shards of shape {shape} under {sharding} have shape {padded}, got {[tuple(shard.shape) for shard in shards]}"
        )
    initial = shards[0] if sharding.effective_type is ShardingType.REPLICATED else torch.zeros(shape, dtype=shards[0].dtype)
    tensor = upload_sharded(initial, sharding_for_programs(annotation))
    annotate(tensor, annotation)
    # Replicated: the first shard is all of it, and uploaded.
    if initial is shards[0]:
        return tensor
    own_shards = local_shards.local_shards(tensor)
    local_shards.load_local_shards(tensor, [replace(shard, data=data) for data, shard in zip(shards, own_shards, strict=True)])
    return tensor


def spmd_full_to_shard_shape(t: torch.Tensor) -> torch.Tensor:
    """Each device's shard of a tensor. Raises RuntimeError if it has no sharding."""
    inner = unwrap_sharded_tensor(t)
    return enter_manual(inner, region_sharding(local_shards.required_annotation(inner)))


def spmd_shard_to_full_shape(
    t: torch.Tensor, sharding: OpSharding, full_shape: Sequence[int], dtype: torch.dtype | None = None
) -> torch.Tensor:
    """The tensor of `full_shape` with this sharding, whose shards the devices hold. Raises as `disable_manual_sharding`."""
    inner = unwrap_sharded_tensor(t)
    annotation = _checked(sharding, full_shape)
    check_is_shard(inner, sharding, full_shape)
    full = leave_manual(inner, region_sharding(annotation), tuple(full_shape))
    full = full if dtype is None else full.to(dtype)
    annotate(full, annotation)
    return full
