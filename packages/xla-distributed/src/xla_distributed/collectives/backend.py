"""The collectives of several replicas as the core asks for them: this module is a `xla_core.abi.plugins.CollectiveBackend`."""

from __future__ import annotations

from xla_distributed.collectives import ops
from xla_distributed.collectives.exchange import exchange as exchange
from xla_distributed.collectives.exchange import fail as fail
from xla_distributed.collectives.ops.all_gather import all_gather as all_gather
from xla_distributed.collectives.ops.all_reduce import all_reduce as all_reduce
from xla_distributed.collectives.ops.all_to_all import all_to_all as all_to_all
from xla_distributed.collectives.ops.broadcast import broadcast as broadcast
from xla_distributed.collectives.ops.collective_permute import permute as permute
from xla_distributed.collectives.ops.reduce_scatter import reduce_scatter as reduce_scatter

others = ops.offered()
