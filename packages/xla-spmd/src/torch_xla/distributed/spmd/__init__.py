"""One program over many devices (alias `xs`)."""

from __future__ import annotations

from typing import Any

from torch_xla.distributed.spmd import debugging, xla_sharding
from xla_spmd.constraints import annotate_custom_sharding, mark_sharding_with_gradients, shard_as
from xla_spmd.hybrid import HybridMesh
from xla_spmd.inputs import ShardingSpec
from xla_spmd.linear import (
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
from xla_spmd.tensor import XLAShardedTensor, unwrap_sharded_tensor, wrap_as_sharded_tensor

__all__ = [
    "HybridMesh",
    "Mesh",
    "ShardingSpec",
    "ShardingType",
    "XLAPatchedLinear",
    "XLAShard",
    "XLAShardedTensor",
    "_mark_manual_sharding",
    "annotate_custom_sharding",
    "apply_backward_optimization_barrier",
    "apply_xla_patch_to_nn_linear",
    "clear_sharding",
    "debugging",
    "disable_manual_sharding",
    "enable_manual_sharding",
    "get_1d_mesh",
    "get_global_mesh",
    "mark_sharding",
    "mark_sharding_with_gradients",
    "set_global_mesh",
    "shard_as",
    "unwrap_sharded_tensor",
    "wrap_as_sharded_tensor",
    "wrap_if_sharded",
    "xla_patched_nn_linear_forward",
    "xla_sharding",
]

_WITH_DTENSOR = ("auto_policy", "xla_distribute_module", "xla_distribute_tensor")
__all__ += ["api", *_WITH_DTENSOR]


def __getattr__(name: str) -> Any:
    """Load what needs torch.distributed.tensor, which takes seconds, at its first use."""
    if name == "api" or name in _WITH_DTENSOR:
        import torch_xla.distributed.spmd.api as api

        return api if name == "api" else getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
