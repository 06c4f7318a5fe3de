"""The implementations that this package offers, by the user's full names; the core asks for them once, when one is first needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def offered() -> Mapping[str, Callable[..., Any]]:
    """User's name → function."""
    from xla_distributed import training
    from xla_distributed.collectives import buckets, differentiable, low_level, ops, recording, rendezvous
    from xla_distributed.job import cluster, connection, launch
    from xla_distributed.job.tpu import host

    del connection  # importing it is enough: it connects the process before its devices start
    cluster.adopt()
    functions = ops.offered()
    for module in (buckets, differentiable, launch, low_level, recording, rendezvous, training):
        functions |= module.OFFERED
    return {**functions, "torch_xla._internal.tpu.get_worker_ips": host.get_worker_ips}
