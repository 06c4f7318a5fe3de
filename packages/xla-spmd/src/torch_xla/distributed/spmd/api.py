"""`torch.distributed.tensor`'s way to shard tensors and modules."""

from xla_spmd.distribute import auto_policy as auto_policy
from xla_spmd.distribute import with_xla as with_xla
from xla_spmd.distribute import xla_distribute_module as xla_distribute_module
from xla_spmd.distribute import xla_distribute_tensor as xla_distribute_tensor
from xla_spmd.placements import convert_to_xla_mesh as convert_to_xla_mesh
from xla_spmd.placements import convert_to_xla_partition_spec as convert_to_xla_partition_spec

__all__ = [name for name in dir() if not name.startswith("__")]
