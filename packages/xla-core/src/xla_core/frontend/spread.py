"""SPMD mode for siblings: how tensors lie over the devices that `xla:0` stands for, what each holds, regions of one device each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import torch
from jax.sharding import NamedSharding, Sharding

from xla_core.errors import ExecutionError
from xla_core.frontend.exchange import annotate, annotation, buffer_of
from xla_core.frontend.living import live_tensors
from xla_core.frontend.plain import ours
from xla_core.frontend.record import define
from xla_core.frontend.tensor import XLATensor, wrap
from xla_core.frontend.values import value_of
from xla_core.ir.aval import aval_of
from xla_core.ir.layout import Layout, spans_devices
from xla_core.ir.layout import lay_out as lay_out_operation
from xla_core.ir.manual import enter, leave
from xla_core.ir.signature import Signature
from xla_core.ir.tape import Value, buffer_value
from xla_core.metrics import Direction
from xla_core.runtime import layouts
from xla_core.runtime.client import client, current_recorder, home, spread
from xla_core.runtime.layouts import relaid
from xla_core.runtime.sync import compute
from xla_core.runtime.transfer import copied, download, fetched, to_torch, transferring, upload


def lay_out(tensor: torch.Tensor, sharding: NamedSharding | None, note: Any = None) -> None:
    """Make the data of `tensor` lie so over the devices that `xla:0` stands for in SPMD mode; None: however it comes.

    Data on the device moves now; of a pending result the compiler is told. Data that is not a view's keeps its layout when it is
    written to, and gives it to its clones and to what is made like it. Dimensions that are not evenly divided stay whole.
    sharding: over the devices in the order of `client().homes[0]`. note: what `layout` gives back beside it.
    Raises DeviceMismatchError for a tensor that is not on `xla`, ExecutionError outside SPMD mode or for other devices.
    """
    found = ours(tensor)
    recorder = found._storage.value.recorder
    if sharding is not None:
        _check_devices(sharding, home(recorder))
    layout = None if sharding is None else Layout(sharding, note)
    if found._view is None:
        layouts.set_layout(found._storage, layout)
    else:
        annotate(found, _key_of_view(found), layout)
        if layout is not None:
            _lay_out_view(found, layout)


def _check_devices(sharding: NamedSharding, form: Sharding) -> None:
    if not isinstance(form, NamedSharding) or not spans_devices(form):
        raise ExecutionError("tensors are laid out over several devices in SPMD mode only: call torch_xla.runtime.use_spmd() first")
    wanted = [device.id for device in sharding.mesh.devices.flat]
    present = [device.id for device in form.mesh.devices.flat]
    if wanted != present:
        raise ExecutionError(f"the sharding is over devices {wanted}, programs run over {present}, in this order")


def _key_of_view(tensor: XLATensor) -> Any:
    return ("layout", tensor._view)


def _lay_out_view(tensor: XLATensor, layout: Layout) -> None:
    """Of what a view shows now, the compiler is told how it lies."""
    base = tensor._storage.value
    with base.recorder.lock:
        tape = base.recorder.tape
        slot = tape.adopt(base)
        told = lay_out_operation([tensor._view.aval], [layout.stored(tensor._view.aval.shape)])
        tape.reads[slot, tensor._view] = tape.append(told, [tape.read(slot, tensor._view)])
    tensor._seen = None


def layout(tensor: torch.Tensor) -> Layout | None:
    """The sharding that `lay_out` gave the data of `tensor`; None if it gave none."""
    found = ours(tensor)
    kept: Layout | None = layouts.layout_of(found._storage) if found._view is None else annotation(found, _key_of_view(found))
    return kept


@dataclass(frozen=True, slots=True)
class DevicePart:
    """A device's part of a tensor: `data`, on the CPU, is its elements at `index`, a slice per dimension."""

    device: jax.Device
    index: tuple[slice, ...]
    data: torch.Tensor


def device_parts(tensor: torch.Tensor) -> list[DevicePart]:
    """The parts of `tensor` on the devices of this process, in their order; computes it if it is pending. Raises as `buffer_of`."""
    shards = {shard.device: shard for shard in buffer_of(tensor).addressable_shards}
    found = []
    with transferring(current_recorder(), Direction.FROM_DEVICE, sum(shard.data.nbytes for shard in shards.values())):
        for device in client().devices:
            shard = shards[device]
            index = tuple(slice(*part.indices(size)[:2]) for part, size in zip(shard.index, tensor.shape, strict=True))
            found.append(DevicePart(device, index, to_torch(fetched(shard.data)[0], tensor.dtype)))
    return found


@dataclass(frozen=True, slots=True)
class OwnedPart:
    """Elements of a tensor at `index`, a slice per dimension, of which this process has the first copy. read: them, on the CPU."""

    index: tuple[slice, ...]
    read: Callable[[], torch.Tensor]


def owned_parts(tensor: torch.Tensor) -> list[OwnedPart]:
    """The parts of `tensor` that this process is the one to save: over all processes of an SPMD job, each element once.

    Computes it if it is pending; copies nothing until a part is read, which must be before the tensor is written to.
    Raises DeviceMismatchError for a tensor that is not on `xla`, ExecutionError if what computed it failed.
    """
    found = ours(tensor)
    layouts.settle_one(found._storage)
    value = value_of(found)
    compute([value])
    if value.buffer is None or not spans_devices(home(value.recorder)):
        return [OwnedPart(tuple(slice(0, size) for size in value.aval.shape), lambda: download(value))]
    return [
        OwnedPart(
            tuple(slice(*part.indices(size)[:2]) for part, size in zip(shard.index, value.aval.shape, strict=True)),
            partial(_read_part, shard.data, value),
        )
        for shard in value.buffer.addressable_shards
        if shard.replica_id == 0
    ]


def _read_part(part: jax.Array, value: Value) -> torch.Tensor:
    with transferring(value.recorder, Direction.FROM_DEVICE, part.nbytes) as transfer:
        transfer.wait(part)
        return to_torch(fetched(part)[0], value.aval.dtype)


def tensor_from_parts(parts: Sequence[torch.Tensor], sharding: NamedSharding, shape: Sequence[int]) -> torch.Tensor:
    """A tensor of `shape` that lies so, of what each device of this process will hold, in their order (CPU tensors of one shape)."""
    recorder = current_recorder()
    _check_devices(sharding, home(recorder))
    aval = aval_of(tuple(shape), parts[0].dtype)
    nbytes = sum(part.nbytes for part in parts)
    with jax.enable_x64(True), transferring(recorder, Direction.TO_DEVICE, nbytes) as transfer:
        put_there = [jax.device_put(copied(part, aval.physical), device) for part, device in zip(parts, client().devices, strict=True)]
        array = transfer.buffer = jax.make_array_from_single_device_arrays(aval.shape, sharding, put_there)
    return wrap(buffer_value(recorder, aval, array))


def upload_divided(tensor: torch.Tensor, sharding: NamedSharding, local: bool = False) -> torch.Tensor:
    """A CPU tensor on the devices, lying so: each gets its part only. Dimensions that are not evenly divided stay whole.

    local: `tensor` is what this process has of dimension 0, the processes' parts follow each other.
    """
    recorder = current_recorder()
    _check_devices(sharding, home(recorder))
    count = len(sharding.mesh.devices.flat) // len(client().devices) if local else 1
    shape = (tensor.shape[0] * count, *tensor.shape[1:]) if count > 1 else tuple(tensor.shape)
    aval = aval_of(tuple(shape), tensor.dtype)
    stored = Layout(sharding).stored(aval.shape).sharding
    if count == 1:
        return wrap(upload(tensor, recorder, stored))
    array = copied(tensor, aval.physical)
    with jax.enable_x64(True), transferring(recorder, Direction.TO_DEVICE, array.nbytes) as transfer:
        buffer = transfer.buffer = jax.make_array_from_process_local_data(stored, array, aval.shape)
    return wrap(buffer_value(recorder, aval, buffer))


def enter_manual(tensor: torch.Tensor, sharding: NamedSharding) -> torch.Tensor:
    """Each device's part of `tensor`, which lies so: what is recorded over it runs on each device by itself, until `leave_manual`.

    Parts are of one shape; zeros fill up the last ones. Reading such a tensor gives the part of this process's first device.
    No autograd. Raises as `lay_out`.
    """
    return _recorded(tensor, sharding, enter(value_of(ours(tensor)).aval, Layout(sharding)))


def leave_manual(tensor: torch.Tensor, sharding: NamedSharding, shape: Sequence[int]) -> torch.Tensor:
    """The tensor of `shape` whose parts, lying so, the devices have; of equal copies, one. No autograd. Raises as `lay_out`."""
    return _recorded(tensor, sharding, leave(value_of(ours(tensor)).aval, Layout(sharding), tuple(shape)))


def _recorded(tensor: torch.Tensor, sharding: NamedSharding, signature: Signature) -> torch.Tensor:
    value = value_of(ours(tensor))
    recorder = value.recorder
    _check_devices(sharding, home(recorder))
    with recorder.lock:
        return wrap(define(recorder, recorder.tape, signature, [recorder.tape.adopt(value)])[0])  # type: ignore[arg-type]


def is_manual(tensor: torch.Tensor) -> bool:
    """Whether `tensor` is one device's part, in a manual region."""
    inner = tensor if isinstance(tensor, XLATensor) else ours(tensor)  # a subclass of a sibling's may be asked for, too
    return bool(inner._storage.value.aval.manual)


def order_devices(order: Sequence[int]) -> None:
    """In SPMD mode, let programs run over the job's devices in this order (numbers in the present one); all data moves.

    Raises ExecutionError outside SPMD mode or when data was laid out already.
    """
    if not spans_devices(home(current_recorder())):
        raise ExecutionError("devices have an order in SPMD mode only: call torch_xla.runtime.use_spmd() first")
    if layouts.any_kept():
        raise ExecutionError("tensors are laid out over the devices in their present order: choose the order before the first sharding")
    spread_data(spread(order))


def spread_data(form: Sharding) -> None:
    """Move all that this process has on `xla:0` to where programs now run.

    Raises ExecutionError if it has tensors on other devices.
    """
    recorder = client().recorders[0]
    values = {id(tensor._storage.value): tensor._storage.value for tensor in live_tensors()}.values()
    elsewhere = {str(value.recorder.device) for value in values if value.recorder is not recorder}
    if elsewhere:
        raise ExecutionError(f"there are tensors on {sorted(elsewhere)}, which SPMD mode does not have: delete them or move them to xla:0")
    with recorder.lock:
        tape = recorder.tape
        for value in values:
            if value.buffer is not None:
                value.buffer = relaid(value.buffer, form)
        for slot, payload in tape.feeds.items():
            if isinstance(payload, jax.Array):
                tape.feeds[slot] = relaid(payload, form)
