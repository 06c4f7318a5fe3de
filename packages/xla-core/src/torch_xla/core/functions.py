"""Differentiable collectives (alias `xf`)."""

from xla_core.api.differentiable import AllGather as AllGather
from xla_core.api.differentiable import AllReduce as AllReduce
from xla_core.api.differentiable import AllReduceSumLayer as AllReduceSumLayer
from xla_core.api.differentiable import SyncBatchNorm as SyncBatchNorm
from xla_core.api.differentiable import all_gather as all_gather
from xla_core.api.differentiable import all_gather_summed as all_gather_summed
from xla_core.api.differentiable import all_reduce as all_reduce
from xla_core.api.differentiable import distributed_mm as distributed_mm

__all__ = [
    "AllGather",
    "AllReduce",
    "AllReduceSumLayer",
    "SyncBatchNorm",
    "all_gather",
    "all_gather_summed",
    "all_reduce",
    "distributed_mm",
]
