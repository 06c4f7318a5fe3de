"""The implementations that this package offers, by the user's full names; the core asks for them once, when one is first needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def offered() -> Mapping[str, Callable[..., Any]]:
    """User's name → function."""
    from xla_distributed import buckets, cluster, collectives, connection, functions, launch, rendezvous, training

    del connection  # importing it is enough: it connects the process before its devices start
    cluster.adopt()
    xm = "torch_xla.core.xla_model."
    xf = "torch_xla.core.functions."
    return {
        f"{xf}AllGather": functions.AllGather,
        f"{xf}AllReduce": functions.AllReduce,
        f"{xf}AllReduceSumLayer": functions.AllReduceSumLayer,
        f"{xf}SyncBatchNorm": functions.SyncBatchNorm,
        f"{xf}all_gather": functions.all_gather,
        f"{xf}all_gather_summed": functions.all_gather_summed,
        f"{xf}all_reduce": functions.all_reduce,
        f"{xf}distributed_mm": functions.distributed_mm,
        "torch_xla.launch": launch.launch,
        f"{xm}CoalescingBuckets": buckets.CoalescingBuckets,
        f"{xm}_all_gather_using_all_reduce": collectives.all_gather_using_all_reduce,
        f"{xm}_get_all_reduce_token": collectives.get_all_reduce_token,
        f"{xm}all_gather": collectives.all_gather,
        f"{xm}all_gather_bucketized": buckets.all_gather_bucketized,
        f"{xm}all_reduce": collectives.all_reduce,
        f"{xm}all_reduce_bucketized_gradients": buckets.all_reduce_bucketized_gradients,
        f"{xm}all_to_all": collectives.all_to_all,
        f"{xm}broadcast_master_param": training.broadcast_master_param,
        f"{xm}collective_broadcast": collectives.collective_broadcast,
        f"{xm}collective_permute": collectives.collective_permute,
        f"{xm}do_on_ordinals": rendezvous.do_on_ordinals,
        f"{xm}mesh_reduce": rendezvous.mesh_reduce,
        f"{xm}recv": collectives.recv,
        f"{xm}reduce_gradients": training.reduce_gradients,
        f"{xm}reduce_scatter": collectives.reduce_scatter,
        f"{xm}reduce_scatter_bucketized": buckets.reduce_scatter_bucketized,
        f"{xm}send": collectives.send,
        f"{xm}xla_rendezvous": rendezvous.xla_rendezvous,
    }
