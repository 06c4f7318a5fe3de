"""Between tensors and what is behind them, for siblings and integrators: buffers, annotations, the recorded program."""

from __future__ import annotations

import gc
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import jax
import torch
from jax.sharding import NamedSharding, Sharding

from xla_core.dtypes import device_dtype, torch_dtype
from xla_core.errors import DeviceMismatchError, ExecutionError, UnsupportedDtypeError
from xla_core.frontend.record import define
from xla_core.frontend.tensor import XLATensor, wrap
from xla_core.frontend.values import value_of
from xla_core.ir.aval import aval_of
from xla_core.ir.graph import Graph, ancestors, extract, live_slots
from xla_core.ir.layout import Layout, spans_devices
from xla_core.ir.layout import lay_out as lay_out_operation
from xla_core.ir.manual import enter, leave
from xla_core.ir.signature import Signature
from xla_core.ir.tape import KEPT, Recorder, buffer_value
from xla_core.metrics import Cause
from xla_core.runtime import layouts
from xla_core.runtime.client import client, current_recorder, home, recorder_of, spread
from xla_core.runtime.layouts import relaid
from xla_core.runtime.sync import compute, user_step
from xla_core.runtime.transfer import local, settled


def _xla(tensor: torch.Tensor) -> XLATensor:
    if type(tensor) is not XLATensor:
        raise DeviceMismatchError(f"Input tensor is not an XLA tensor: {tensor.type()}. Move it first, with .to('xla')")
    return tensor


def buffer_of(tensor: torch.Tensor) -> jax.Array:
    """The device buffer of what `tensor` shows, computed if it is pending; perhaps still being computed.

    The array has the tensor's shape and its device dtype. It stays valid: the core never overwrites a buffer it gave away.
    Raises DeviceMismatchError for a tensor that is not on `xla`.
    """
    checked = _xla(tensor)
    layouts.settle_one(checked._storage)
    value = value_of(checked)
    with value.recorder.lock:
        compute([value])
        if value.buffer is None:
            raise ExecutionError(f"{value.aval} on {value.recorder.device} has no value: the execution that should have computed it failed")
        value.shared = True
        tape = value.recorder.tape
        if value.tape is tape:
            tape.refs[value.slot] = KEPT
        return local(value.buffer, value.recorder)


def tensor_from_buffer(buffer: jax.Array, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor over a jax array on one of this process's devices (in SPMD mode, or on all), without a copy; the array stays valid.

    dtype: what the tensor reports; None for the array's own. Raises UnsupportedDtypeError if the device dtype does not fit it,
    DeviceMismatchError for an array on other devices.
    """
    logical = torch_dtype(buffer.dtype) if dtype is None else dtype
    if device_dtype(logical) != buffer.dtype:
        raise UnsupportedDtypeError(
            f"a buffer of {buffer.dtype} cannot stand for {logical}, which the device holds as {device_dtype(logical)}"
        )
    recorder = _recorder_holding(buffer)
    return wrap(buffer_value(recorder, aval_of(tuple(buffer.shape), logical), settled(buffer, recorder), shared=True))


def _recorder_holding(buffer: jax.Array) -> Recorder:
    running = client()
    if buffer.sharding.device_set == running.homes[0].device_set:
        return running.recorders[0]
    devices = running.devices
    homes = list(buffer.devices())
    if len(homes) != 1 or homes[0] not in devices:
        raise DeviceMismatchError(
            f"the array lives on {homes}, not on one of this process's xla devices {list(devices)}: device_put it there first"
        )
    return running.recorders[0 if spans_devices(running.homes[0]) else devices.index(homes[0])]


def annotate(tensor: torch.Tensor, key: Hashable, value: Any) -> None:
    """Attach `value` under `key` to the data of `tensor`: all aliases see it, copies do not. None removes it."""
    storage = _xla(tensor)._storage
    if storage.annotations is None:
        storage.annotations = {}
    if value is None:
        storage.annotations.pop(key, None)
    else:
        storage.annotations[key] = value


def annotation(tensor: torch.Tensor, key: Hashable) -> Any:
    """What `annotate` attached under `key`, or None."""
    annotations = _xla(tensor)._storage.annotations
    return None if annotations is None else annotations.get(key)


def lay_out(tensor: torch.Tensor, sharding: NamedSharding | None, note: Any = None) -> None:
    """Make the data of `tensor` lie so over the devices that `xla:0` stands for in SPMD mode; None: however it comes.

    Data on the device moves now; of a pending result the compiler is told. Data that is not a view's keeps its layout when it is
    written to, and gives it to its clones and to what is made like it. Dimensions that are not evenly divided stay whole.
    sharding: over the devices in the order of `client().homes[0]`. note: what `layout` gives back beside it. Raises DeviceMismatchError for a tensor that is not on `xla`,
    ExecutionError outside SPMD mode or for other devices.
    """
    checked = _xla(tensor)
    recorder = checked._storage.value.recorder
    if sharding is not None:
        _check_devices(sharding, home(recorder))
    layout = None if sharding is None else Layout(sharding, note)
    if checked._spec is None:
        layouts.set_layout(checked._storage, layout)
    else:
        annotate(checked, _key_of_view(checked), layout)
        if layout is not None:
            _lay_out_view(checked, layout)


def _check_devices(sharding: NamedSharding, form: Sharding) -> None:
    if not isinstance(form, NamedSharding) or not spans_devices(form):
        raise ExecutionError("tensors are laid out over several devices in SPMD mode only: call torch_xla.runtime.use_spmd() first")
    wanted = [device.id for device in sharding.mesh.devices.flat]
    present = [device.id for device in form.mesh.devices.flat]
    if wanted != present:
        raise ExecutionError(f"the sharding is over devices {wanted}, programs run over {present}, in this order")


def _key_of_view(tensor: XLATensor) -> Any:
    return ("layout", tensor._spec)


def _lay_out_view(tensor: XLATensor, layout: Layout) -> None:
    """Of what a view shows now, the compiler is told how it lies."""
    base = tensor._storage.value
    with base.recorder.lock:
        tape = base.recorder.tape
        slot = tape.adopt(base)
        told = lay_out_operation([tensor._spec.aval], [layout.stored(tensor._spec.aval.shape)])
        tape.reads[slot, tensor._spec] = tape.append(told, [tape.read(slot, tensor._spec)])
    tensor._seen = None


def layout(tensor: torch.Tensor) -> Layout | None:
    """How the data of `tensor` was told to lie by `lay_out`; None if it was not."""
    checked = _xla(tensor)
    found: Layout | None = layouts.layout_of(checked._storage) if checked._spec is None else annotation(checked, _key_of_view(checked))
    return found


def enter_manual(tensor: torch.Tensor, sharding: NamedSharding) -> torch.Tensor:
    """Each device's part of `tensor`, which lies so: what is recorded over it runs on each device by itself, until `leave_manual`.

    Parts are of one shape; zeros fill up the last ones. Reading such a tensor gives the part of this process's first device.
    No autograd. Raises as `lay_out`.
    """
    return _recorded(tensor, sharding, enter(value_of(_xla(tensor)).aval, Layout(sharding)))


def leave_manual(tensor: torch.Tensor, sharding: NamedSharding, shape: Sequence[int]) -> torch.Tensor:
    """The tensor of `shape` whose parts, lying so, the devices have; of equal copies, one. No autograd. Raises as `lay_out`."""
    return _recorded(tensor, sharding, leave(value_of(_xla(tensor)).aval, Layout(sharding), tuple(shape)))


def _recorded(tensor: torch.Tensor, sharding: NamedSharding, signature: Signature) -> torch.Tensor:
    value = value_of(_xla(tensor))
    recorder = value.recorder
    _check_devices(sharding, home(recorder))
    with recorder.lock:
        return wrap(define(recorder, recorder.tape, signature, [recorder.tape.adopt(value)])[0])  # type: ignore[arg-type]


def is_manual(tensor: torch.Tensor) -> bool:
    """Whether `tensor` is one device's part, in a manual region."""
    return _xla(tensor)._storage.value.aval.manual


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
    tensors = [found for found in gc.get_objects() if type(found) is XLATensor]
    values = {id(tensor._storage.value): tensor._storage.value for tensor in tensors}.values()
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


def graph_of(tensors: Sequence[torch.Tensor] | None = None, device: torch.device | str | None = None) -> Graph:
    """The pending program with `tensors` as results, or (None) with everything live on `device`. Runs and drops nothing.

    Tensors that are already computed enter as inputs and are no results. Raises DeviceMismatchError for tensors not on one device.
    """
    if tensors:
        values = [value_of(_xla(tensor)) for tensor in tensors]
        recorder = values[0].recorder
        if any(value.recorder is not recorder for value in values):
            raise DeviceMismatchError("graph_of needs tensors of one device")
        slots = [value.slot for value in values if value.buffer is None]
    else:
        recorder = recorder_of(device)
        slots = live_slots(recorder.tape)
    with recorder.lock:
        tape = recorder.tape
        entries, renamed, _ = extract(tape, ancestors(tape, slots))
        return Graph(tuple(entries), tuple(renamed[slot] for slot in slots), ())


def sync(device: torch.device | str | None = None, wait: bool = False, cause: Cause = Cause.USER_SYNC) -> None:
    """A step sync of one device (None: the default one), as `torch_xla.sync`: run everything live as one graph, then step closures.

    wait: return when the device is done. cause: who asks, for events.
    """
    user_step(current_recorder() if device is None else recorder_of(device), wait, "torch_xla.torch_xla::sync", cause)


def alias_key(tensor: torch.Tensor) -> int:
    """Equal exactly for tensors that share data: a tensor, its views and its detached forms."""
    return id(_xla(tensor)._storage)


def computed(tensors: Iterable[torch.Tensor]) -> None:
    """Compute what `tensors` show, each device in one execution, without reading it."""
    compute([value_of(_xla(tensor)) for tensor in tensors])
