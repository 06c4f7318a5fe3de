"""The old name of `torch_xla.distributed.spmd.xla_sharding`."""

from torch_xla.distributed.spmd.xla_sharding import *  # noqa: F403
from torch_xla.distributed.spmd.xla_sharding import __all__ as __all__
