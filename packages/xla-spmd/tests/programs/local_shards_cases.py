"""What each device holds, and giving it to them, after `marking_cases` has entered SPMD mode."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

import torch_xla.distributed.spmd as xs
from harness import MESH, case, far, ramp, text, why

DTYPES = (torch.bfloat16, torch.float16, torch.float64, torch.bool, torch.int64, torch.uint8, torch.complex64)


def bounds(shard: xs.XLAShard) -> Any:
    """Its indices as JSON has them."""
    return "..." if shard.indices is ... else [[index.start, index.stop, index.step] for index in shard.indices]


@case
def worked_example() -> dict[str, Any]:
    t = xs.mark_sharding(ramp(10, 4), MESH, (0, None))
    shards = t.local_shards
    return {
        "data": [shard.data.tolist() for shard in shards],
        "device": [shard.data.device.type for shard in shards],
        "indices": [bounds(shard) for shard in shards],
        "replica_id": [shard.replica_id for shard in shards],
        "shard_device": [shard.shard_device for shard in shards],
        "unpadded": [shard.unpadded_data.tolist() for shard in shards],
    }


@case
def unpadded_data() -> dict[str, Any]:
    shard = xs.mark_sharding(ramp(10, 4), MESH, (0, None)).local_shards[6]
    shard.unpadded_data = torch.full((1, 4), 7.0)
    whole = xs.mark_sharding(ramp(4, 4), MESH, (None, None)).local_shards[6]
    whole.unpadded_data = torch.zeros(4, 4)
    return {"data": shard.data.tolist(), "whole": whole.data.unique().tolist()}


@case
def loading() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, shape, spec in [
        ("even", (8, 8), (0, 1)),
        ("padded", (10, 4), (0, 1)),
        ("replicas, padded", (10, 4), (0, None)),
        ("more tiles than rows", (5,), (0,)),
        ("one axis of two", (8, 3), (("y", "x"), None)),
        ("empty", (0, 4), (0, 1)),
    ]:
        t = xs.mark_sharding(torch.zeros(shape).to("xla"), MESH, spec)
        before = text(t)
        source = xs.mark_sharding(ramp(*shape) + 1, MESH, spec)
        same = t.load_local_shards_(source.local_shards)
        found[name] = [same, torch.equal(t.cpu(), source.cpu()), torch.equal(t.global_tensor.cpu(), source.cpu()), text(t) == before]
    return found


@case
def dtypes() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for dtype in DTYPES:
        values = (torch.arange(40).reshape(10, 4) % 5).to(dtype)
        t = xs.mark_sharding(torch.zeros(10, 4, dtype=dtype).to("xla"), MESH, (0, 1))
        shards = xs.mark_sharding(values.to("xla"), MESH, (0, 1)).local_shards
        t.load_local_shards_(shards)
        found[str(dtype)] = [all(shard.data.dtype == dtype for shard in shards), torch.equal(t.cpu(), values), t.dtype == dtype]
    return found


@case
def small_tensors() -> dict[str, Any]:
    scalar = xs.mark_sharding(torch.tensor(3.0).to("xla"), MESH, ())
    empty = xs.mark_sharding(torch.zeros(0, 4).to("xla"), MESH, (0, 1))
    return {
        "scalar": [[shard.data.item(), bounds(shard), shard.replica_id] for shard in scalar.local_shards],
        "empty": [[list(shard.data.shape), bounds(shard)] for shard in empty.local_shards[:2]],
    }


@case
def what_is_written_to() -> dict[str, Any]:
    parameter = torch.nn.Parameter(torch.zeros(8, 8).to("xla"))
    wrapper = xs.mark_sharding(parameter, MESH, (0, 1))
    shards = [replace(shard, data=torch.full_like(shard.data, number)) for number, shard in enumerate(wrapper.local_shards)]
    wrapper.load_local_shards_(shards)
    base = torch.zeros(8, 2).to("xla")
    view = xs.mark_sharding(base[:4], MESH, (0, 1))
    view.load_local_shards_([replace(shard, data=shard.data + 1) for shard in view.local_shards])
    snapshot = wrapper.local_shards
    snapshot[0].data.fill_(100)
    return {
        "parameter": [parameter.detach().cpu()[::2, ::4].flatten().tolist(), parameter.requires_grad, text(parameter)],
        "view": base.sum(1).tolist(),
        "snapshot": wrapper.max().item(),
        "pending": [shard.data.tolist() for shard in xs.mark_sharding(ramp(4, 2) + 1, MESH, (0, 1)).local_shards],
    }


@case
def refusals() -> dict[str, Any]:
    bare, whole = xs.XLAShardedTensor(ramp(8, 8)), xs.mark_sharding(ramp(8, 8), MESH, (None, None))
    t = xs.mark_sharding(ramp(10, 4), MESH, (0, None))
    shards = t.local_shards
    found = {
        "unsharded": why(lambda: bare.local_shards),
        "unsharded, loading": why(bare.load_local_shards_, shards),
        "replicated": [*why(whole.load_local_shards_, whole.local_shards)],
        "too few": why(t.load_local_shards_, shards[:3]),
        "too many": why(t.load_local_shards_, [*shards, shards[0]]),
        "without padding": why(t.load_local_shards_, [replace(shard, data=shard.unpadded_data) for shard in shards]),
    }
    return {
        **found,
        "replicated shards": [[bounds(s), s.replica_id, list(s.data.shape)] for s in whole.local_shards],
        "same": far(t, ramp(10, 4).cpu()),
    }
