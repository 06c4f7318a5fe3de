"""One program over many devices (alias `xs`)."""

from __future__ import annotations

from torch_xla.distributed.spmd import debugging, xla_sharding
from xla_spmd.hybrid import HybridMesh
from xla_spmd.mesh import Mesh, get_1d_mesh, get_global_mesh, set_global_mesh
from xla_spmd.op_sharding import ShardingType

__all__ = [
    "HybridMesh",
    "Mesh",
    "ShardingType",
    "debugging",
    "get_1d_mesh",
    "get_global_mesh",
    "set_global_mesh",
    "xla_sharding",
]
