"""`torch.distributed.tensor`'s way to shard tensors and modules."""

from __future__ import annotations

from xla_spmd.distribute import auto_policy, with_xla, xla_distribute_module, xla_distribute_tensor
from xla_spmd.placements import convert_to_xla_mesh, convert_to_xla_partition_spec

__all__ = [
    "auto_policy",
    "convert_to_xla_mesh",
    "convert_to_xla_partition_spec",
    "with_xla",
    "xla_distribute_module",
    "xla_distribute_tensor",
]
