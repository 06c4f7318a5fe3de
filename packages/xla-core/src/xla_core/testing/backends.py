"""Contracts of what plugins bring: `check_*` raises AssertionError, saying what is wrong, for a part that is not as its protocol says."""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from xla_core.api.backends import CheckpointWriter, CollectiveBackend, Launcher, Reports, ShardingBackend
from xla_core.api.collective_arguments import groups_of
from xla_core.api.job import global_ordinal, is_spmd, world_size
from xla_core.api.reductions import ReduceOp
from xla_core.base import metrics
from xla_core.engine.runtime.client import client

Tensor = torch.Tensor
_TILED = 3  # the number of the type of tiled shardings, in PyTorch/XLA too


def _need(condition: object, what: str) -> None:
    if not condition:
        raise AssertionError(what)


def _input(ordinal: int, *shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    """The input of a replica, on the CPU: every replica can work out what the others have."""
    return torch.randint(1, 5, shape, generator=torch.Generator().manual_seed(ordinal)).to(dtype)


def _same(name: str, results: Any, expected: list[Tensor]) -> None:
    """Whether results are these values, on the device."""
    results = [results] if isinstance(results, Tensor) else list(results)
    _need(len(results) == len(expected), f"{name}: {len(results)} results, expected {len(expected)}")
    for result, right in zip(results, expected, strict=True):
        _need(result.device.type == "xla", f"{name}: a result is on {result.device}, expected xla")
        torch.testing.assert_close(result.cpu(), right, msg=lambda text: f"{name}: {text}")


_FOLDS: dict[ReduceOp, Callable[[Tensor], Tensor]] = {
    ReduceOp.SUM: lambda stacked: stacked.sum(0),
    ReduceOp.MUL: lambda stacked: stacked.prod(0),
    ReduceOp.MIN: lambda stacked: stacked.amin(0),
    ReduceOp.MAX: lambda stacked: stacked.amax(0),
}


def check_collective_backend(backend: CollectiveBackend) -> None:
    """Each collective over all replicas, and over pairs where their number is even, against torch on the CPU. All replicas must call it."""
    count, mine = world_size(), global_ordinal()
    for pairs in (False, True) if count % 2 == 0 else (False,):
        listed = [[first, first + 1] for first in range(0, count, 2)] if pairs else [list(range(count))]
        groups = groups_of(listed if pairs else None)
        members = next(group for group in listed if mine in group)
        size, position = len(members), members.index(mine)
        shapes = ((2 * size, 3), (size,))
        everyone = [[_input(ordinal, *shape) for ordinal in members] for shape in shapes]
        own = [_input(mine, *shape).to("xla") for shape in shapes]
        for op, fold in _FOLDS.items():
            totals = [fold(torch.stack(parts)) for parts in everyone]
            _same(f"all_reduce {op.value}", backend.all_reduce(op, own, 1.0, groups), totals)
            parts = [total.chunk(size, 0)[position] for total in totals]
            _same(f"reduce_scatter {op.value}", backend.reduce_scatter(op, own, 1.0, 0, groups), parts)
        _same("all_gather", backend.all_gather(own, 0, groups), [torch.cat(parts, 0) for parts in everyone])
        arrived = torch.cat([part.chunk(size, 0)[position] for part in everyone[0]], 1)
        _same("all_to_all", backend.all_to_all(own[0], 0, 1, groups), [arrived])
        _same("broadcast", backend.broadcast(own, size - 1, groups), [parts[size - 1] for parts in everyone])
        _same("a collective writes to its inputs", own, [_input(mine, *shape) for shape in shapes])
    ring = [(ordinal, (ordinal + 1) % count) for ordinal in range(count)]
    value = _input(mine, 3).to("xla")
    _same("permute", backend.permute(value, ring), [_input((mine - 1) % count, 3)])
    _same("permute without pairs", backend.permute(value, []), [torch.zeros(3, dtype=torch.int64)])
    payloads = [f"from {ordinal}".encode() for ordinal in range(count)]
    _need(backend.exchange(payloads[mine], "contract") == payloads, "exchange: payloads are not in order of the ordinals")
    _need(all(callable(function) for function in backend.others.values()), "others: has what is no function")


def _leave_ordinal(index: int, folder: str) -> None:
    (Path(folder) / str(index)).write_bytes(pickle.dumps((global_ordinal(), world_size())))


def _fail(index: int) -> None:
    raise ValueError(f"replica {index} fails on purpose")


def check_launcher(launcher: Launcher, count: int) -> None:
    """Every replica of a host with `count` devices runs the function once, with its number, and an exception in one is the caller's."""
    with tempfile.TemporaryDirectory(prefix="xla-launcher-") as folder:
        launcher.launch(_leave_ordinal, (folder,), "spawn", False)
        ran = {int(file.name): pickle.loads(file.read_bytes()) for file in Path(folder).iterdir()}  # noqa: S301
    _need(ran == {index: (index, count) for index in range(count)}, f"launch: replicas were {ran}, by their number (ordinal, world size)")
    try:
        launcher.launch(_fail, (), "spawn", False)
    except Exception as error:
        _need("fails on purpose" in str(error), f"launch: raised {error!r}, which does not say what a replica raised")
    else:
        raise AssertionError("launch: returned though a replica raised ValueError")
    hosts = launcher.worker_hosts()
    _need(isinstance(hosts, list) and all(isinstance(host, str) for host in hosts), f"worker_hosts: gave {hosts!r}, expected texts")


def check_sharding_backend(backend: ShardingBackend) -> None:
    """Marks, shards, manual regions and uploads over all devices, in SPMD mode."""
    _need(is_spmd(), "call torch_xla.runtime.use_spmd() first")
    running = client().placements[0].devices
    numbers = {device: number for number, device in enumerate(running[0].client.devices())}
    count = len(running)
    tiled = backend.OpSharding([[numbers[device]] for device in running], [], [], _TILED)  # one row for each device
    host = torch.arange(2.0 * count * 3).reshape(2 * count, 3)
    tensor = host.to("xla")
    _need(backend.get_xla_op_sharding(tensor) is None and backend.get_xla_sharding_spec(tensor) == "", "a new tensor has a sharding")
    backend.xla_mark_sharding(tensor, tiled)
    _need(backend.get_xla_op_sharding(tensor) == tiled, f"get_xla_op_sharding: {backend.get_xla_op_sharding(tensor)}, marked {tiled}")
    kind = backend.get_xla_sharding_type(tensor)
    _need(kind == _TILED, f"get_xla_sharding_type: {kind}, marked {_TILED}")
    text = backend.get_xla_sharding_spec(tensor)
    _need(text, f"get_xla_sharding_spec: {text!r} of a sharded tensor")
    _same("a mark changes values", tensor, [host])
    _check_shards(backend, tensor, tiled, host)
    shard = backend.spmd_full_to_shard_shape(tensor)
    _need(tuple(shard.shape) == (2, 3), f"spmd_full_to_shard_shape: {tuple(shard.shape)}, expected (2, 3)")
    _same("spmd_shard_to_full_shape", backend.spmd_shard_to_full_shape(shard * 2, tiled, host.shape), [host * 2])
    backend.xla_clear_sharding(tensor)
    _need(backend.get_xla_op_sharding(tensor) is None, "xla_clear_sharding: the sharding is still there")
    sharding = backend.sharding_of_upload(host)
    _need(sharding is None or sharding.named.shard_shape(host.shape), f"sharding_of_upload: {sharding} does not divide {tuple(host.shape)}")


def _check_shards(backend: ShardingBackend, tensor: Tensor, tiled: Any, host: Tensor) -> None:
    (shards,) = backend.get_local_shards([tensor])
    (places,) = backend.get_local_shard_replica_and_indices([tensor])
    for (data, device), (_, indices) in zip(shards, places, strict=True):
        _need(torch.equal(data, host[tuple(indices)]), f"get_local_shards: {device} holds {data}, of {indices}")
    devices = [device for _, device in shards]
    backend.load_local_shards(tensor, [data + 1 for data, _ in shards], devices)
    (loaded,) = backend.get_local_shards([tensor])
    for (data, device), (was, _) in zip(loaded, shards, strict=True):
        _need(torch.equal(data, was + 1), f"load_local_shards: {device} holds {data}, was given {was + 1}")
    backend.load_local_shards(tensor, [data for data, _ in shards], devices)
    made = backend.global_tensor_from_cpu_shards([data for data, _ in shards], tiled, host.shape)
    _need(backend.get_xla_op_sharding(made) == tiled, "global_tensor_from_cpu_shards: the tensor is not sharded as was said")
    (again,) = backend.get_local_shards([made])
    for (data, device), (was, _) in zip(again, shards, strict=True):
        _need(torch.equal(data, was), f"global_tensor_from_cpu_shards: {device} holds {data}, was given {was}")


def check_reports(reports: Reports) -> None:
    """A counter and a metric are in the report, and in the short one where they are asked for."""
    counter, metric = "ContractCounter", "ContractMetric"
    metrics.counter_add(counter)
    metrics.metric_add(metric, 3.0, metrics.Unit.NUMBER)
    whole, short = reports.metrics_report(), reports.short_metrics_report([counter], [metric])
    for name, text in (("metrics_report", whole), ("short_metrics_report", short)):
        _need(counter in text and metric in text, f"{name}: lacks {counter} or {metric}:\n{text}")
    profiler = reports.profiler()
    absent = [name for name in ("TraceMe", "start_server", "trace") if not callable(getattr(profiler, name, None))]
    _need(not absent, f"profiler: lacks {absent}")


def check_checkpoint_writer(writer: CheckpointWriter, folder: Path) -> None:
    """What is saved by one replica is a file that `torch.load` reads without code, with CPU tensors that share memory as before."""
    shared = torch.arange(3.0).to("xla")
    path = folder / "contract.pt"
    writer.save({"one": shared, "again": shared, "nested": [1, "text"]}, path, True, False, False)
    loaded = torch.load(path, weights_only=True)
    _need(loaded["nested"] == [1, "text"] and loaded["one"].device.type == "cpu", f"save: wrote {loaded}")
    torch.testing.assert_close(loaded["one"], torch.arange(3.0))
    _need(loaded["one"].data_ptr() == loaded["again"].data_ptr(), "save: tensors that shared memory do not any more")
