"""Meshes, partition specs, the shardings they stand for, and tensors that are sharded by them."""

from __future__ import annotations

from torch_xla._internal.jax_workarounds import maybe_get_jax, maybe_get_torchax, requires_jax
from xla_spmd.constraints import MarkShardingFunction, annotate_custom_sharding, mark_sharding_with_gradients, shard_as
from xla_spmd.hybrid import HybridMesh
from xla_spmd.inputs import ShardingSpec
from xla_spmd.linear import (
    EinsumLinear,
    XLAPatchedLinear,
    apply_backward_optimization_barrier,
    apply_xla_patch_to_nn_linear,
    xla_patched_nn_linear_forward,
)
from xla_spmd.linear import linear_gradients as _einsum_linear_backward_operation
from xla_spmd.linear import linear_gradients_without_values as _einsum_linear_backward_fake
from xla_spmd.linear import linear_without_values as _einsum_linear_forward_fake
from xla_spmd.local_shards import XLAShard
from xla_spmd.manual import disable_manual_sharding, enable_manual_sharding
from xla_spmd.manual import mark_manual_sharding as _mark_manual_sharding
from xla_spmd.marking import clear_sharding, mark_sharding, wrap_if_sharded
from xla_spmd.mesh import Mesh, get_1d_mesh, get_global_mesh, set_global_mesh
from xla_spmd.op_sharding import ShardingType
from xla_spmd.operators import marked_without_values as aot_mark_sharding_fake
from xla_spmd.specs import PartitionSpec
from xla_spmd.specs import group_assignment as _get_group_assignment
from xla_spmd.specs import sharding_type as _get_sharding_type
from xla_spmd.specs import tile_assignment as _get_tile_assignment
from xla_spmd.specs import translate_named_partition_spec as _translate_named_partition_spec
from xla_spmd.tensor import XLAShardedTensor, unwrap_sharded_tensor, wrap_as_sharded_tensor
from xla_spmd.torus import feasible_assignments as _enumerate_feasible_logical_axis_assignments
from xla_spmd.torus import logical_mesh as _generate_logical_mesh
from xla_spmd.torus import mesh_in_parts as _create_device_mesh_for_nd_torus_splitting_axes
from xla_spmd.torus import mesh_of_torus as _create_device_mesh_for_nd_torus
from xla_spmd.torus import prefers_first as _prefer_first_logical_axis_assignment
from xla_spmd.torus import prime_factors as _get_prime_factors

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
    "_create_device_mesh_for_nd_torus",
    "_create_device_mesh_for_nd_torus_splitting_axes",
    "_einsum_linear_backward_fake",
    "_einsum_linear_backward_operation",
    "_einsum_linear_forward_fake",
    "_enumerate_feasible_logical_axis_assignments",
    "_generate_logical_mesh",
    "_get_group_assignment",
    "_get_prime_factors",
    "_get_sharding_type",
    "_get_tile_assignment",
    "_mark_manual_sharding",
    "_prefer_first_logical_axis_assignment",
    "_translate_named_partition_spec",
    "annotate_custom_sharding",
    "aot_mark_sharding_fake",
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
