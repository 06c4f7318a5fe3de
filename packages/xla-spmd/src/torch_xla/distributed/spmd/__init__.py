"""One program over many devices (alias `xs`)."""

from typing import Any

from torch_xla.distributed.spmd import debugging as debugging
from torch_xla.distributed.spmd import xla_sharding as xla_sharding
from xla_spmd import manual
from xla_spmd.constraints import annotate_custom_sharding as annotate_custom_sharding
from xla_spmd.constraints import mark_sharding_with_gradients as mark_sharding_with_gradients
from xla_spmd.constraints import shard_as as shard_as
from xla_spmd.hybrid import HybridMesh as HybridMesh
from xla_spmd.inputs import ShardingSpec as ShardingSpec
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
from xla_spmd.tensor import XLAShardedTensor as XLAShardedTensor
from xla_spmd.tensor import unwrap_sharded_tensor as unwrap_sharded_tensor
from xla_spmd.tensor import wrap_as_sharded_tensor as wrap_as_sharded_tensor

_mark_manual_sharding = manual.mark_manual_sharding
del manual

__all__ = [name for name in dir() if not name.startswith("__") and name != "Any"]

_WITH_DTENSOR = ("auto_policy", "xla_distribute_module", "xla_distribute_tensor")
__all__ += ["api", *_WITH_DTENSOR]


def __getattr__(name: str) -> Any:
    """Load what needs torch.distributed.tensor, which takes seconds, at its first use."""
    if name == "api" or name in _WITH_DTENSOR:
        import torch_xla.distributed.spmd.api as api

        return api if name == "api" else getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
