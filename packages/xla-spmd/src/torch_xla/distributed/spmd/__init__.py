"""One program over many devices (alias `xs`)."""

from __future__ import annotations

from torch_xla.distributed.spmd import debugging, xla_sharding
from xla_spmd.held import XLAShard
from xla_spmd.hybrid import HybridMesh
from xla_spmd.inputs import ShardingSpec
from xla_spmd.manual import disable_manual_sharding, enable_manual_sharding
from xla_spmd.marking import clear_sharding, mark_sharding, wrap_if_sharded
from xla_spmd.mesh import Mesh, get_1d_mesh, get_global_mesh, set_global_mesh
from xla_spmd.op_sharding import ShardingType
from xla_spmd.tensor import XLAShardedTensor, unwrap_sharded_tensor, wrap_as_sharded_tensor

__all__ = [
    "HybridMesh",
    "Mesh",
    "ShardingSpec",
    "ShardingType",
    "XLAShard",
    "XLAShardedTensor",
    "clear_sharding",
    "debugging",
    "disable_manual_sharding",
    "enable_manual_sharding",
    "get_1d_mesh",
    "get_global_mesh",
    "mark_sharding",
    "set_global_mesh",
    "unwrap_sharded_tensor",
    "wrap_as_sharded_tensor",
    "wrap_if_sharded",
    "xla_sharding",
]
