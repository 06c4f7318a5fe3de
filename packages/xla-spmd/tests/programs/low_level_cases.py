"""The names of `torch_xla._XLAC` about shardings, over devices in the order that `order_cases` has left."""

from __future__ import annotations

from typing import Any

import torch

import torch_xla._XLAC as lib
import torch_xla.distributed.spmd as xs
from harness import FIRST, case, far, why, wrapped
from xla_core.testing import check_sharding_backend
from xla_spmd import low_level

STRAIGHT = xs.Mesh(range(8), (4, 2))
BOTH = STRAIGHT.get_op_sharding((0, 1))
DEVICES = [f"CPU:{number}" for number in range(8)]


def numbered(*shape: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """For each device a shard full of its number."""
    return [torch.full(shape, number).to(dtype) for number in range(8)]


def padded(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """The rows that (3, 2) shards numbered 0 to 7 make under BOTH, up to `count`."""
    return torch.arange(8).reshape(4, 2).repeat_interleave(3, 0).repeat_interleave(2, 1)[:count].to(dtype)


@case
def telling() -> dict[str, Any]:
    t, other, bare = torch.zeros(10, 4).to("xla"), torch.ones(8, 8).to("xla") * 2, torch.ones(2).to("xla")
    found: dict[str, Any] = {"none": [lib._get_xla_sharding_spec(bare), lib._get_xla_op_sharding(bare), lib._get_xla_sharding_type(bare)]}
    lib._xla_mark_sharding(t, BOTH)
    lib._xla_annotate_custom_sharding(other, STRAIGHT.get_op_sharding((0, None)))
    found["specs"] = lib._get_xla_sharding_specs([t, other, xs.wrap_as_sharded_tensor(bare)])
    found["type"] = [lib._get_xla_sharding_type(t), lib._get_xla_sharding_type(other), lib._get_xla_op_sharding(t) == BOTH]
    lib._xla_clear_sharding(other)
    found["cleared"] = lib._get_xla_sharding_spec(other)
    lib._mark_manual_sharding(other)
    found["manual"] = [lib._get_xla_sharding_spec(other), lib._get_xla_sharding_type(other)]
    found["rank"] = why(lib._xla_mark_sharding, torch.zeros(8).to("xla"), BOTH)
    found["size"] = why(lib._xla_mark_sharding, torch.zeros(8, 8).to("xla"), xs.Mesh(range(4), (2, 2)).get_op_sharding((0, 1)))
    spec = xs.ShardingSpec(STRAIGHT, (0, 1))
    made = lib.XlaShardingSpec(bare, spec._tile_assignment, spec._group_assignment, spec._replication_groups, int(spec._sharding_type))
    found["XlaShardingSpec"] = [made.tile_assignment, made.sharding_type, made.minibatch]
    return found


@case
def contract() -> dict[str, Any]:
    check_sharding_backend(low_level)
    return {"checked": True}


@case
def texts() -> dict[str, Any]:
    t, weight = torch.ones(8, 4).to("xla"), torch.ones(4, 4).to("xla")
    lib._xla_mark_sharding(t, FIRST.get_op_sharding((0, 1)))  # of the mesh in whose order programs run
    result = (t @ weight).to(torch.bfloat16)
    lib._xla_mark_sharding(result, FIRST.get_op_sharding((0, None)))
    lib._xla_optimization_barrier_([weight])
    found = {
        "hlo": lib._get_xla_tensors_hlo([result, weight]),
        "ir": lib._get_xla_tensors_text([result]),
        "pending": lib._get_xla_tensor_debug_info(result),
        "computed": lib._get_xla_tensor_debug_info(t),
        "handles": len(set(lib._get_tensors_handle([t, t.detach()]))),
    }
    found["values"] = far(result.float(), torch.full((8, 4), 4.0))
    return found


@case
def runs() -> dict[str, Any]:
    """What runs programs and asks for them, over a sharded tensor."""
    host = torch.arange(32, dtype=torch.int64).reshape(8, 4)
    t = host.to("xla")
    lib._xla_mark_sharding(t, BOTH)
    doubled = t * 2
    named = lib._set_xla_custom_op_name_prefix(doubled, "twice/", 1)
    found: dict[str, Any] = {"names": [named, 'op_name="jit(program)/twice/aten.mul' in lib._get_xla_tensors_hlo([doubled])]}
    found["need"] = lib._check_tensor_need_materialization([t, doubled, torch.empty(8, device="xla")])
    module = lib._get_stablehlo([doubled], "", [], True)
    found["module"] = [far(one, host * 2) for one in lib._run_stablehlo(module, [t])]
    ids, values = lib._get_tensors_xla_device_data_node([doubled])
    lib._xla_warm_up_cache([doubled], [])
    values[ids.index(lib._xla_get_tensor_id(t))] = t + 1
    found["cached"] = [far(one, (host + 1) * 2) for one in lib._run_cached_graph(lib._get_graph_hash([doubled]), values)]
    found["pointer"] = lib._unsafe_buffer_pointer(t) == lib._get_tensors_handle([t])[0] > 0
    rows, mask = torch.tensor([3, 0, -1]), host[:, 0] > 8
    picks = [lambda x: x[rows], lambda x: x[mask], lambda x: x.index_select(1, rows % 4)]
    found["indices"] = [far(pick(t), pick(host)) for pick in picks]
    t[rows], host[rows] = 5, 5
    found["written"] = [far(t, host), lib._get_xla_sharding_spec(t)]
    lib._set_buffer_donation(t, True)
    taken = t + 1
    lib._xla_step_marker("xla:0", [], True)
    found["taken"] = [far(taken, host + 1), *why(t.cpu)]
    return found


@case
def shards() -> dict[str, Any]:
    t = torch.arange(40.0).reshape(10, 4).to("xla")
    lib._xla_mark_sharding(t, BOTH)
    ((*_, (last, device)),) = lib._get_local_shards([t])
    ((*_, (replica, indices)),) = lib._get_local_shard_replica_and_indices([xs.wrap_as_sharded_tensor(t)])
    found: dict[str, Any] = {"last": [last.tolist(), device, replica, [[index.start, index.stop, index.step] for index in indices]]}
    lib._load_local_shards(t, numbered(3, 2)[::-1], DEVICES[::-1])
    found["error"] = far(t, padded(10))
    found["refused"] = {
        "fewer": why(lib._load_local_shards, t, numbered(3, 2)[1:], DEVICES[1:]),
        "unpaired": why(lib._load_local_shards, t, numbered(3, 2)[1:], DEVICES),
        "device": why(lib._load_local_shards, t, numbered(3, 2), ["CPU:9", *DEVICES[1:]]),
        "shape": why(lib._load_local_shards, t, numbered(2, 2), DEVICES),
    }
    return found


@case
def from_shards() -> dict[str, Any]:
    build = lib._global_tensor_from_cpu_shards
    found: dict[str, Any] = {"errors": []}
    for dtype in (torch.float32, torch.int64, torch.bool, torch.bfloat16):
        pieces = numbered(3, 2, dtype=dtype)
        found["errors"].append(
            [torch.equal(build(pieces, BOTH, (10, 4)).cpu(), padded(10, dtype)), torch.equal(build(pieces, BOTH).cpu(), padded(12, dtype))]
        )
    made = build(numbered(3, 2), BOTH)
    whole = build([torch.ones(3)] * 8, STRAIGHT.get_op_sharding((None,)))
    found["texts"] = [lib._get_xla_sharding_specs([made, whole]), *wrapped(made, whole), far(whole, torch.ones(3))]
    found["refused"] = {
        "none": why(build, [], BOTH),
        "fewer": why(build, numbered(3, 2)[1:], BOTH),
        "shape": why(build, numbered(3, 2), BOTH, (20, 4)),
        "rank": why(build, numbered(3), BOTH),
    }
    return found


@case
def regions() -> dict[str, Any]:
    enter, leave = lib._spmd_full_to_shard_shape, lib._spmd_shard_to_full_shape
    sharding = FIRST.get_op_sharding((0, 1))
    t = torch.arange(64.0).reshape(8, 8).to("xla")
    lib._xla_mark_sharding(t, sharding)
    shard = enter(t)
    whole = leave(shard + 1, sharding, (8, 8))
    half = leave(shard, sharding, (8, 8), torch.bfloat16)
    other = torch.ones(8, 8).to("xla")
    lib._xla_mark_sharding(other, BOTH)
    return {
        "shard": [list(shard.shape), lib._get_xla_sharding_spec(shard), *wrapped(shard, whole)],
        "whole": [lib._get_xla_sharding_spec(whole), far(whole, t.cpu() + 1), far(half, t.cpu().to(torch.bfloat16))],
        "unmarked": why(enter, torch.ones(8, 8).to("xla")),
        "of a shard": why(enter, shard),
        "order": why(enter, other),
        "no shard": why(leave, t, sharding, (8, 8)),
        "shape": why(leave, shard, sharding, (64, 8)),
    }
