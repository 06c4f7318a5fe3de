"""Meshes, partition specs, the shardings they stand for, and tensors that are sharded by them."""

from torch_xla._internal.jax_workarounds import maybe_get_jax as maybe_get_jax
from torch_xla._internal.jax_workarounds import maybe_get_torchax as maybe_get_torchax
from torch_xla._internal.jax_workarounds import requires_jax as requires_jax
from xla_spmd import linear, manual, operators, specs, torus
from xla_spmd.constraints import MarkShardingFunction as MarkShardingFunction
from xla_spmd.constraints import annotate_custom_sharding as annotate_custom_sharding
from xla_spmd.constraints import mark_sharding_with_gradients as mark_sharding_with_gradients
from xla_spmd.constraints import shard_as as shard_as
from xla_spmd.hybrid import HybridMesh as HybridMesh
from xla_spmd.inputs import ShardingSpec as ShardingSpec
from xla_spmd.linear import EinsumLinear as EinsumLinear
from xla_spmd.linear import XLAPatchedLinear as XLAPatchedLinear
from xla_spmd.linear import apply_backward_optimization_barrier as apply_backward_optimization_barrier
from xla_spmd.linear import apply_xla_patch_to_nn_linear as apply_xla_patch_to_nn_linear
from xla_spmd.linear import xla_patched_nn_linear_forward as xla_patched_nn_linear_forward
from xla_spmd.local_shards import XLAShard as XLAShard
from xla_spmd.manual import disable_manual_sharding as disable_manual_sharding
from xla_spmd.manual import enable_manual_sharding as enable_manual_sharding
from xla_spmd.marking import clear_sharding as clear_sharding
from xla_spmd.marking import mark_sharding as mark_sharding
from xla_spmd.marking import wrap_if_sharded as wrap_if_sharded
from xla_spmd.mesh import Mesh as Mesh
from xla_spmd.mesh import get_1d_mesh as get_1d_mesh
from xla_spmd.mesh import get_global_mesh as get_global_mesh
from xla_spmd.mesh import set_global_mesh as set_global_mesh
from xla_spmd.op_sharding import ShardingType as ShardingType
from xla_spmd.specs import PartitionSpec as PartitionSpec
from xla_spmd.tensor import XLAShardedTensor as XLAShardedTensor
from xla_spmd.tensor import unwrap_sharded_tensor as unwrap_sharded_tensor
from xla_spmd.tensor import wrap_as_sharded_tensor as wrap_as_sharded_tensor

_create_device_mesh_for_nd_torus = torus.mesh_of_torus
_create_device_mesh_for_nd_torus_splitting_axes = torus.mesh_in_parts
_einsum_linear_backward_fake = linear.linear_gradients_without_values
_einsum_linear_backward_operation = linear.linear_gradients
_einsum_linear_forward_fake = linear.linear_without_values
_enumerate_feasible_logical_axis_assignments = torus.feasible_assignments
_generate_logical_mesh = torus.logical_mesh
_get_group_assignment = specs.group_assignment
_get_prime_factors = torus.prime_factors
_get_sharding_type = specs.sharding_type
_get_tile_assignment = specs.tile_assignment
_mark_manual_sharding = manual.mark_manual_sharding
_prefer_first_logical_axis_assignment = torus.prefers_first
_translate_named_partition_spec = specs.translate_named_partition_spec
aot_mark_sharding_fake = operators.marked_without_values
del linear, manual, operators, specs, torus

__all__ = [name for name in dir() if not name.startswith("__")]
