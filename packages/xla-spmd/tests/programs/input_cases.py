"""The sharding of inputs, over devices in the order that `order_cases` has left."""

from __future__ import annotations

from typing import Any

import torch

import torch_xla.distributed.spmd as xs
from harness import FIRST, case, far, text, why, wrapped
from xla_core.abi.sharding import device_shards


@case
def specs() -> dict[str, Any]:
    spec = xs.ShardingSpec(FIRST, ("x", None))
    plain = torch.ones(8, 4).to("xla")
    found: dict[str, Any] = {
        "values": [spec._tile_assignment, spec._group_assignment, spec._replication_groups, spec._sharding_type],
        "as the mesh": FIRST._get_op_sharding_args(("x", None))
        == (spec._tile_assignment, spec._group_assignment, spec._replication_groups, spec._sharding_type),
        "fields": [spec.mesh is FIRST, spec.partition_spec, spec.minibatch, xs.ShardingSpec(FIRST, (None,), True).minibatch],
        "can_apply": [spec.can_apply(torch.ones(2, 2)), spec.can_apply(torch.ones(2))],
        "xla_spec": [str(spec.xla_spec(torch.ones(2, 2))), spec.xla_spec(torch.ones(2))],
        "apply": [spec.apply(plain), spec.apply(plain), text(plain), far(plain, torch.ones(8, 4)), *wrapped(plain)],
        "cpu": why(spec.apply, torch.ones(8, 4)),
        "rank": why(spec.apply, torch.ones(8).to("xla")),
        "mesh size": why(xs.ShardingSpec(xs.Mesh(range(4), (2, 2)), (0, 1)).apply, plain),
        "a text": why(xs.ShardingSpec, FIRST, "x"),
        "otherwise": why(xs.ShardingSpec(FIRST, ("y", None)).apply, plain),
    }
    return found


@case
def uploads() -> dict[str, Any]:
    spec = xs.ShardingSpec(FIRST, ("x", "y"))
    x = torch.arange(64.0).reshape(8, 8)
    found: dict[str, Any] = {}
    for name, value, sharding_spec in [
        ("even", x, spec),
        ("uneven", x[:5, :6].contiguous(), spec),
        ("dtype", x.to(torch.bfloat16), spec),
        ("minibatch", x, xs.ShardingSpec(FIRST, ("x", None), minibatch=True)),
        ("rank", x[0], spec),
        ("scalar", torch.tensor(3.0), spec),
    ]:
        there = sharding_spec.upload(value)
        shape = list(device_shards(there)[0].data.shape)
        found[name] = [text(there), torch.equal(there.cpu(), value), there.dtype == value.dtype, shape, *wrapped(there)]
    found["mesh size"] = why(xs.ShardingSpec(xs.Mesh(range(4), (2, 2)), (0, 1)).upload, x)
    found["on xla"] = why(spec.upload, x.to("xla"))
    return found
