"""Meshes, partition specs and the shardings they stand for."""

from __future__ import annotations

from xla_spmd.hybrid import HybridMesh
from xla_spmd.mesh import Mesh, get_1d_mesh, get_global_mesh, set_global_mesh
from xla_spmd.op_sharding import ShardingType
from xla_spmd.specs import PartitionSpec
from xla_spmd.specs import group_assignment as _get_group_assignment
from xla_spmd.specs import sharding_type as _get_sharding_type
from xla_spmd.specs import tile_assignment as _get_tile_assignment
from xla_spmd.specs import translate_named_partition_spec as _translate_named_partition_spec

__all__ = [
    "HybridMesh",
    "Mesh",
    "PartitionSpec",
    "ShardingType",
    "_get_group_assignment",
    "_get_sharding_type",
    "_get_tile_assignment",
    "_translate_named_partition_spec",
    "get_1d_mesh",
    "get_global_mesh",
    "set_global_mesh",
]
