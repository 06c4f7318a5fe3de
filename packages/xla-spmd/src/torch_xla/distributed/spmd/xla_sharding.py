"""Meshes, partition specs, the shardings they stand for, and tensors that are sharded by them."""

from __future__ import annotations

from xla_spmd.constraints import MarkShardingFunction, annotate_custom_sharding, mark_sharding_with_gradients, shard_as
from xla_spmd.hybrid import HybridMesh
from xla_spmd.inputs import ShardingSpec
from xla_spmd.jax_use import maybe_get_jax, maybe_get_torchax, requires_jax
from xla_spmd.linear import (
    EinsumLinear,
    XLAPatchedLinear,
    apply_backward_optimization_barrier,
    apply_xla_patch_to_nn_linear,
    xla_patched_nn_linear_forward,
)
from xla_spmd.local_shards import XLAShard
from xla_spmd.manual import disable_manual_sharding, enable_manual_sharding
from xla_spmd.manual import mark_manual_sharding as _mark_manual_sharding
from xla_spmd.marking import clear_sharding, mark_sharding, wrap_if_sharded
from xla_spmd.mesh import Mesh, get_1d_mesh, get_global_mesh, set_global_mesh
from xla_spmd.op_sharding import ShardingType
from xla_spmd.specs import PartitionSpec
from xla_spmd.specs import group_assignment as _get_group_assignment
from xla_spmd.specs import sharding_type as _get_sharding_type
from xla_spmd.specs import tile_assignment as _get_tile_assignment
from xla_spmd.specs import translate_named_partition_spec as _translate_named_partition_spec
from xla_spmd.tensor import XLAShardedTensor, unwrap_sharded_tensor, wrap_as_sharded_tensor

__all__ = [
    "EinsumLinear",
    "HybridMesh",
    "MarkShardingFunction",
    "Mesh",
    "PartitionSpec",
    "ShardingSpec",
    "ShardingType",
    "XLAPatchedLinear",
    "XLAShard",
    "XLAShardedTensor",
    "_get_group_assignment",
    "_get_sharding_type",
    "_get_tile_assignment",
    "_mark_manual_sharding",
    "_translate_named_partition_spec",
    "annotate_custom_sharding",
    "apply_backward_optimization_barrier",
    "apply_xla_patch_to_nn_linear",
    "clear_sharding",
    "disable_manual_sharding",
    "enable_manual_sharding",
    "get_1d_mesh",
    "get_global_mesh",
    "mark_sharding",
    "mark_sharding_with_gradients",
    "maybe_get_jax",
    "maybe_get_torchax",
    "requires_jax",
    "set_global_mesh",
    "shard_as",
    "unwrap_sharded_tensor",
    "wrap_as_sharded_tensor",
    "wrap_if_sharded",
    "xla_patched_nn_linear_forward",
]
