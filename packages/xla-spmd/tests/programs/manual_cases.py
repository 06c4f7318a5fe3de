"""Manual regions, over devices in the order that `order_cases` has left."""

from __future__ import annotations

from typing import Any

import torch

import torch_xla
import torch_xla.distributed.spmd as xs
from harness import FIRST, case, far, text, why, wrapped
from torch_xla.distributed.spmd.xla_sharding import _mark_manual_sharding
from xla_core.abi.tensors import is_pending

ROW = xs.Mesh(FIRST.device_ids, (1, 8))


@case
def worked_example() -> dict[str, Any]:
    xs.set_global_mesh(ROW)
    t = torch.zeros(8, 8).to("xla")
    shard = xs.enable_manual_sharding(t, (0, 1))
    more = shard + 1
    whole = xs.disable_manual_sharding(more, (0, 1), (8, 8))
    found: dict[str, Any] = {
        "shard": [list(shard.shape), text(shard), shard.sharding_type.name, text(more), *wrapped(shard, more, whole)],
        "marked": text(t),
        "whole": [list(whole.shape), text(whole), far(whole, torch.ones(8, 8))],
    }
    full = torch.arange(64.0).reshape(8, 8).to("xla")
    copies = xs.enable_manual_sharding(full, (None, None))
    back = xs.disable_manual_sharding(copies * 2, (None, None), (8, 8))
    found["copies"] = [list(copies.shape), text(copies), far(copies, full.cpu()), text(back), far(back, full.cpu() * 2)]
    return found


@case
def calculation() -> dict[str, Any]:
    torch.manual_seed(0)
    a, b = torch.randn(10, 6, requires_grad=True), torch.randn(10, 6, requires_grad=True)
    mine = [torch.nn.Parameter(t.detach().to("xla")) for t in (a, b)]
    first = xs.enable_manual_sharding(mine[0], (0, 1), mesh=FIRST)
    second = xs.enable_manual_sharding(xs.mark_sharding(mine[1], FIRST, ("x", "y")), ("x", "y"), mesh=FIRST)
    shape = list(first.shape)
    product = (first * second).tanh()
    torch_xla.sync()
    pending = is_pending(xs.unwrap_sharded_tensor(product))
    product = product * first + torch.full((2,), 0.5, device="xla")
    whole = xs.disable_manual_sharding(product, (0, 1), (10, 6), mesh=FIRST)
    (whole * whole).sum().backward()
    expected = (a * b).tanh() * a + 0.5
    (expected * expected).sum().backward()
    return {
        "shape": shape,
        "pending after sync": pending,
        "errors": [far(whole, expected), far(mine[0].grad, a.grad), far(mine[1].grad, b.grad)],
        "wrapped": wrapped(whole, mine[0].grad, mine[1].grad),
        "text": text(whole),
    }


@case
def mark_manual() -> dict[str, Any]:
    x = torch.arange(64.0).reshape(8, 8)
    t = x.to("xla") + 1
    wrapper = _mark_manual_sharding(t)
    found: dict[str, Any] = {"text": [text(t), text(wrapper), wrapper.sharding_type.name], "type": wrapped(wrapper)}
    back = xs.disable_manual_sharding(t * 2, (None, None), (8, 8))
    found["errors"] = [far(t, x + 1), far(back, (x + 1) * 2)]
    other = xs.wrap_as_sharded_tensor(x.to("xla") + 2)
    found["wrapper"] = [_mark_manual_sharding(other) is other, text(other), _mark_manual_sharding(other) is other, far(other, x + 2)]
    found["stored"] = [why(_mark_manual_sharding, x.to("xla")), why(_mark_manual_sharding, xs.XLAShardedTensor(x.to("xla")))]
    found["cpu"] = why(_mark_manual_sharding, x)
    return found


@case
def refusals() -> dict[str, Any]:
    t = torch.zeros(8, 8).to("xla")
    shard = xs.enable_manual_sharding(t, (0, 1), mesh=ROW)
    found = {
        "rank": why(xs.enable_manual_sharding, t, (0,), mesh=ROW),
        "mesh size": why(xs.enable_manual_sharding, t, (0, 1), mesh=xs.Mesh(range(4), (2, 2))),
        "cpu": why(xs.enable_manual_sharding, torch.zeros(8, 8), (0, 1), mesh=ROW),
        "otherwise": why(xs.enable_manual_sharding, t, (1, 0), mesh=ROW),
        "order": why(xs.enable_manual_sharding, t.clone() * 2, (0, 1), mesh=xs.Mesh(range(8), (4, 2))),
        "of a shard": why(xs.enable_manual_sharding, shard, (0, 1), mesh=ROW),
        "marking a shard": why(xs.mark_sharding, shard, ROW, (0, 1)),
        "clearing a shard": why(xs.clear_sharding, shard),
        "shards of a shard": why(lambda: shard.local_shards),
        "no shard": why(xs.disable_manual_sharding, t, (0, 1), (8, 8), mesh=ROW),
        "full shape": why(xs.disable_manual_sharding, shard, (0, 1), (8, 16), mesh=ROW),
        "full rank": why(xs.disable_manual_sharding, shard, (0, 1), (8, 8, 1), mesh=ROW),
        "no shard, cpu": why(xs.disable_manual_sharding, torch.zeros(8, 8), (0, 1), (8, 8), mesh=ROW),
    }
    xs.set_global_mesh(None)
    return {
        **found,
        "no mesh": why(xs.enable_manual_sharding, t, (0, 1)),
        "end": far(xs.disable_manual_sharding(shard, (0, 1), (8, 8), mesh=ROW), t.cpu()),
    }
