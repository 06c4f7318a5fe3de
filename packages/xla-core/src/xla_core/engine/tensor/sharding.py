"""SPMD mode for plugins: the sharding of tensors over the devices that `xla:0` stands for, their shards, manual regions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import torch
from jax.sharding import NamedSharding

from xla_core.base import config
from xla_core.base.arrays import to_torch
from xla_core.base.errors import ExecutionError
from xla_core.base.metrics import Direction
from xla_core.engine.graph.aval import Aval, aval_of
from xla_core.engine.graph.pending_graph import BLANK, Recorder, Value, buffer_value
from xla_core.engine.graph.signature import Signature
from xla_core.engine.placement.device_order import in_order_of
from xla_core.engine.placement.manual import enter, leave
from xla_core.engine.placement.placement import Placement
from xla_core.engine.placement.sharding import Sharding, inside, stored_shape
from xla_core.engine.runtime import resharding
from xla_core.engine.runtime.client import client, current_recorder, enter_spmd, placement_of
from xla_core.engine.runtime.resharding import reshard
from xla_core.engine.runtime.sync import compute
from xla_core.engine.runtime.transfer import copied, download, fetched, transferring, upload
from xla_core.engine.tensor.interop import stored_buffer
from xla_core.engine.tensor.live_buffers import live_tensors
from xla_core.engine.tensor.plain import ours
from xla_core.engine.tensor.record import define
from xla_core.engine.tensor.tensor import XLATensor, wrap
from xla_core.engine.tensor.values import value_of


def set_sharding(tensor: torch.Tensor, sharding: NamedSharding | None, note: Any = None) -> None:
    """Set the sharding of the data of `tensor` over the devices that `xla:0` stands for in SPMD mode; None: no sharding of its own.

    Data on the device is resharded now; a pending result is constrained in the program. Unless `tensor` is a view, its data
    keeps the sharding when it is written to, and passes it on to clones and to tensors made like it; also to data of the same shape that
    replaces it (`tensor.data = other`), unless that has its own sharding. Unevenly divisible dimensions are padded on the devices.
    sharding: over the devices of `client().placements[0]`; in another order of them, programs move shards between devices.
    note: the caller's own, which `sharding_of` gives back in the attribute `note`.
    Raises DeviceMismatchError for a tensor that is not on `xla`, ExecutionError outside SPMD mode or for other devices.
    """
    behind = ours(tensor)
    recorder = behind._storage.value.recorder
    requested = None if sharding is None else _checked(sharding, placement_of(recorder), note)
    if behind._view is None:
        resharding.set_sharding(behind._storage, requested)
    else:
        resharding.set_sharding_of_view(behind._storage, behind._view, requested)
        behind._seen = None  # that value lacks the constraint


def _checked(sharding: NamedSharding, placement: Placement, note: Any) -> Sharding:
    _check_devices(sharding, placement)
    inside = in_order_of(sharding, placement.sharding)
    return Sharding(sharding, note, None if inside is sharding else inside)


def _check_devices(sharding: NamedSharding, placement: Placement, in_order: bool = False) -> None:
    if not placement.is_mesh:
        raise ExecutionError("tensors are sharded over several devices in SPMD mode only: call torch_xla.runtime.use_spmd() first")
    ids = [device.id for device in sharding.mesh.devices.flat]
    present = [device.id for device in placement.devices]
    if ids != present and (in_order or sorted(ids) != sorted(present)):
        raise ExecutionError(f"the sharding is over devices {ids}, programs run over {present}{', in this order' * in_order}")


def sharding_of(tensor: torch.Tensor) -> Sharding | None:
    """The sharding that `set_sharding` gave the data of `tensor`; None if there is none."""
    behind = ours(tensor)
    return resharding.requested_sharding(behind._storage, behind._view)


@dataclass(frozen=True, slots=True)
class DeviceShard:
    """A device's shard of a tensor: `data`, on the CPU, is its elements at `index`, a slice per dimension."""

    device: jax.Device
    index: tuple[slice, ...]
    data: torch.Tensor


def device_shards(tensor: torch.Tensor) -> list[DeviceShard]:
    """The shards of `tensor` on the devices of this process, in their order; computes it if it is pending. Raises as `buffer_of`."""
    shards = {shard.device: shard for shard in stored_buffer(tensor)[1].addressable_shards}
    local = []
    with transferring(current_recorder(), Direction.FROM_DEVICE, sum(shard.data.nbytes for shard in shards.values())):
        for device in client().devices:
            shard = shards[device]
            index = inside(shard.index, tensor.shape)
            local.append(DeviceShard(device, index, _without_padding(to_torch(fetched(shard.data)[0], tensor.dtype), index)))
    return local


def _without_padding(shard: torch.Tensor, index: Sequence[slice]) -> torch.Tensor:
    sizes = tuple(span.stop - span.start for span in index)
    return shard if tuple(shard.shape) == sizes else shard[tuple(slice(size) for size in sizes)].clone()


@dataclass(frozen=True, slots=True)
class OwnedShard:
    """A shard whose first copy is on this process: the elements at `index`, a slice per dimension. read: copies them to the CPU."""

    index: tuple[slice, ...]
    read: Callable[[], torch.Tensor]


def owned_shards(tensor: torch.Tensor) -> list[OwnedShard]:
    """The shards of `tensor` that this process saves: the processes of an SPMD job together save each element once.

    Computes it if it is pending; copies nothing until a shard is read, which must be before the tensor is written to.
    Raises DeviceMismatchError for a tensor that is not on `xla`, ExecutionError if what computed it failed.
    """
    behind = ours(tensor)
    # Before it is computed, so that its shards follow the sharding that was asked for.
    resharding.reshard_one(behind._storage)
    value = value_of(behind)
    compute([value])
    if value.buffer is None or not placement_of(value.recorder).is_mesh:
        return [OwnedShard(tuple(slice(0, size) for size in value.aval.shape), lambda: download(value))]
    owned = [(inside(shard.index, value.aval.shape), shard) for shard in value.buffer.addressable_shards if shard.replica_id == 0]
    return [
        OwnedShard(index, partial(_read_shard, shard.data, value, index))
        for index, shard in owned
        if all(span.stop > span.start for span in index) or not tensor.numel()  # not a shard of padding only
    ]


def _read_shard(data: jax.Array, value: Value, index: Sequence[slice]) -> torch.Tensor:
    with transferring(value.recorder, Direction.FROM_DEVICE, data.nbytes) as transfer:
        transfer.wait(data)
        return _without_padding(to_torch(fetched(data)[0], value.aval.dtype), index)


def tensor_from_shards(shards: Sequence[torch.Tensor], sharding: NamedSharding, shape: Sequence[int]) -> torch.Tensor:
    """A tensor of `shape` with this sharding, from the shard of each device of this process, in their order.

    shards: CPU tensors; where dimensions are not evenly divided, the last ones with or without padding.
    """
    recorder = current_recorder()
    _check_devices(sharding, placement_of(recorder))
    aval = aval_of(tuple(shape), shards[0].dtype)
    if not aval.nbytes:
        return wrap(upload(torch.empty(tuple(shape), dtype=shards[0].dtype, device="cpu"), recorder))
    nbytes = sum(shard.nbytes for shard in shards)
    with jax.enable_x64(True), transferring(recorder, Direction.TO_DEVICE, nbytes) as transfer:
        stored = stored_shape(aval.shape, sharding)
        shard_shape = sharding.shard_shape(stored)
        pairs = zip(shards, client().devices, strict=True)
        arrays = [jax.device_put(copied(_with_padding(shard, shard_shape), aval.physical), device) for shard, device in pairs]
        array = transfer.buffer = jax.make_array_from_single_device_arrays(stored, sharding, arrays)
    return wrap(buffer_value(recorder, aval, array))


def _with_padding(shard: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    if tuple(shard.shape) == tuple(shape):
        return shard
    padded = torch.zeros(tuple(shape), dtype=shard.dtype, device="cpu")
    padded[tuple(slice(size) for size in shard.shape)] = shard
    return padded


def upload_sharded(tensor: torch.Tensor, sharding: NamedSharding, local: bool = False) -> torch.Tensor:
    """A CPU tensor on the devices with this sharding: each gets its shard only.

    local: `tensor` is this process's block of dimension 0; the blocks follow each other in the order of the processes. Dimensions that are
    not evenly divisible are not sharded then.
    """
    recorder = current_recorder()
    _check_devices(sharding, placement_of(recorder))
    count = len(sharding.mesh.devices.flat) // len(client().devices) if local else 1
    shape = (tensor.shape[0] * count, *tensor.shape[1:]) if count > 1 else tuple(tensor.shape)
    aval = aval_of(tuple(shape), tensor.dtype)
    if count == 1:
        return wrap(upload(tensor, recorder, sharding))
    even = Sharding(sharding).for_shape(aval.shape).named
    array = copied(tensor, aval.physical)
    with jax.enable_x64(True), transferring(recorder, Direction.TO_DEVICE, array.nbytes) as transfer:
        buffer = transfer.buffer = jax.make_array_from_process_local_data(even, array, aval.shape)
    return wrap(buffer_value(recorder, aval, buffer))


UploadPolicy = Callable[[torch.Tensor], Sharding | None]
_policies: list[UploadPolicy] = []  # at most one, the last that was set


def set_upload_policy(policy: UploadPolicy) -> None:
    """Let `policy` choose the sharding of tensors that move to `xla` in SPMD mode, None for replicated, if `XLA_AUTO_SPMD` is set.

    policy: called with each tensor of at least one dimension that is moved, parameters included.
    """
    _policies[:] = [policy]


def uploaded(host: torch.Tensor, recorder: Recorder, source: torch.Tensor) -> XLATensor:
    """Upload a CPU tensor, in SPMD mode sharded as the policy says. source: the tensor that is moved; `host` has its values."""
    sharding = _sharding_by_policy(host, source)
    if sharding is None:
        return wrap(upload(host, recorder))
    tensor = wrap(upload(host, recorder, sharding.named))
    resharding.set_sharding(tensor._storage, sharding)
    return tensor


def upload_to(target: XLATensor, host: torch.Tensor, source: torch.Tensor) -> Value:
    """Upload a CPU tensor as the next value of `target`, on its device, sharded by the policy if `target` had no data."""
    storage = target._storage
    fresh = storage.value.slot == BLANK and target._view is None and host.shape == target.shape
    sharding = _sharding_by_policy(host, source) if fresh and resharding.requested_sharding(storage) is None else None
    if sharding is None:
        return upload(host, storage.value.recorder)
    resharding.set_sharding(storage, sharding)
    return upload(host, storage.value.recorder, sharding.named)


def _sharding_by_policy(host: torch.Tensor, source: torch.Tensor) -> Sharding | None:
    asked = _policies and host.dim() and config.AUTO_SPMD.get() and config.USE_SPMD.get()
    return _policies[0](source) if asked else None


def enter_manual(tensor: torch.Tensor, sharding: NamedSharding) -> torch.Tensor:
    """Each device's shard of `tensor` under this sharding: until `leave_manual`, operations on it run on each device separately.

    Shards are of one shape; zeros pad the last ones. Reading such a tensor gives the shard of this process's first device.
    No autograd. Raises as `set_sharding`.
    """
    return _recorded(tensor, sharding, enter(value_of(ours(tensor)).aval, Sharding(sharding)))


def leave_manual(tensor: torch.Tensor, sharding: NamedSharding, shape: Sequence[int]) -> torch.Tensor:
    """The tensor of `shape` whose shards the devices have, or the one of equal copies. No autograd. Raises as `set_sharding`."""
    return _recorded(tensor, sharding, leave(value_of(ours(tensor)).aval, Sharding(sharding), tuple(shape)))


def _recorded(tensor: torch.Tensor, sharding: NamedSharding, signature: Signature) -> torch.Tensor:
    value = value_of(ours(tensor))
    recorder = value.recorder
    _check_devices(sharding, placement_of(recorder), in_order=True)
    with recorder.lock:
        return wrap(define(recorder, recorder.pending_graph, signature, [None, recorder.pending_graph.adopt(value)])[0])  # type: ignore[arg-type]


def is_manual(tensor: torch.Tensor) -> bool:
    """Whether `tensor` is one device's shard, in a manual region."""
    inner = tensor if isinstance(tensor, XLATensor) else ours(tensor)  # may also be a plugin's subclass
    return bool(inner._storage.value.aval.manual)


def order_devices(order: Sequence[int]) -> None:
    """In SPMD mode, run programs over the job's devices in this order, as indices in the present one; all data is resharded.

    Raises ExecutionError outside SPMD mode or when data was sharded already.
    """
    if not placement_of(current_recorder()).is_mesh:
        raise ExecutionError("devices have an order in SPMD mode only: call torch_xla.runtime.use_spmd() first")
    if resharding.any_sharded():
        raise ExecutionError("tensors are sharded over the devices in their present order: choose the order before the first sharding")
    reshard_live_data(enter_spmd(order).sharding)


def reshard_live_data(sharding: jax.sharding.Sharding) -> None:
    """Reshard all data of this process on `xla:0`, after the devices that programs run over have changed; not that of other targets.

    Raises ExecutionError if it has tensors on other devices.
    """
    recorder = client().recorders[0]
    values = {id(tensor._storage.value): tensor._storage.value for tensor in live_tensors()}.values()
    target = placement_of(recorder).target
    moved = [value for value in values if placement_of(value.recorder).target is target]
    elsewhere = {str(value.recorder.device) for value in moved if value.recorder is not recorder}
    if elsewhere:
        raise ExecutionError(f"there are tensors on {sorted(elsewhere)}, which SPMD mode does not have: delete them or move them to xla:0")
    with recorder.lock:
        pending_graph = recorder.pending_graph
        for value in moved:
            if value.buffer is not None:
                value.buffer = reshard(value.buffer, sharding, value.aval)
        for slot, payload in pending_graph.input_data.items():
            entry = pending_graph.entries[slot]
            if type(entry) is Aval:  # numbers are among them
                pending_graph.input_data[slot] = reshard(payload, sharding, entry)


def with_sharding_of(source: XLATensor, tensor: XLATensor) -> XLATensor:
    """`tensor`, which was just made like `source`, with the sharding of `source` (SPMD)."""
    if source._storage.annotations is not None and source._view is None:
        resharding.copy_sharding(source._storage, tensor._storage)
    return tensor
