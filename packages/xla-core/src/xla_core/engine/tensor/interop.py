"""For plugins and integrators: from tensors to their buffers and back, and to the recorded program."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence

import jax
import torch

from xla_core.base.dtypes import device_dtype, torch_dtype
from xla_core.base.errors import DeviceMismatchError, UnsupportedDtypeError
from xla_core.base.metrics import Cause
from xla_core.engine.graph.aval import aval_of
from xla_core.engine.graph.cut import cut
from xla_core.engine.graph.graph import Graph
from xla_core.engine.graph.pending_graph import KeptRef, Recorder, Value, buffer_value, computed_buffer, waits
from xla_core.engine.graph.selection import live_values
from xla_core.engine.runtime import resharding
from xla_core.engine.runtime.client import client, current_recorder, placement_of, recorder_of
from xla_core.engine.runtime.source_location import user_line
from xla_core.engine.runtime.sync import compute, user_step
from xla_core.engine.runtime.transfer import upload
from xla_core.engine.tensor.plain import ours
from xla_core.engine.tensor.tensor import view_of, wrap
from xla_core.engine.tensor.values import value_of


def buffer_of(tensor: torch.Tensor) -> jax.Array:
    """The device buffer of what `tensor` shows, computed if it is pending; perhaps still being computed.

    The array has the tensor's shape and its device dtype. It stays valid: the core never overwrites a buffer it gave away. For a tensor
    whose sharding does not divide it evenly, the array is a replicated copy.
    Raises DeviceMismatchError for a tensor that is not on `xla`.
    """
    value, buffer = stored_buffer(tensor)
    placement = placement_of(value.recorder)
    return resharding.whole(placement.local(buffer), value.aval, placement.sharding)


def stored_buffer(tensor: torch.Tensor) -> tuple[Value, jax.Array]:
    """The value of `tensor`, computed if it is pending, and its buffer as the devices store it, with padding; it is never donated."""
    behind = ours(tensor)
    resharding.reshard_one(behind._storage)
    value = value_of(behind)
    # Under one lock: a sync of another thread in between could donate the buffer that is given away.
    with value.recorder.lock:
        compute([value])
        buffer = computed_buffer(value)
        value.shared = True
        pending_graph = value.recorder.pending_graph
        if value.pending_graph is pending_graph:
            # It may be a leaf already, and `shared` is looked at when a leaf enters.
            pending_graph.refs[value.slot] = KeptRef(value)
        return value, buffer


def tensor_from_buffer(buffer: jax.Array, dtype: torch.dtype | None = None) -> torch.Tensor:
    """A tensor over a jax array on one of this process's devices (in SPMD mode, or on all), without a copy; the array stays valid.

    dtype: the tensor's; None: the array's own. Raises UnsupportedDtypeError if the array's dtype is not the device dtype for it,
    DeviceMismatchError for an array on other devices, TypeError for a traced array, which has no buffer.
    """
    if isinstance(buffer, jax.core.Tracer):
        raise TypeError(
            f"tensor_from_buffer got {jax.typeof(buffer)} that JAX is tracing, at {user_line()}: it has no values yet. Make the torch code "
            "a JAX function with xla_core.interop.to_jax, or take the tensor outside of jax.jit, grad and vmap"
        )
    logical = torch_dtype(buffer.dtype) if dtype is None else dtype
    if device_dtype(logical) != buffer.dtype:
        raise UnsupportedDtypeError(
            f"a buffer of {buffer.dtype} cannot stand for {logical}, which the device holds as {device_dtype(logical)}"
        )
    recorder = _recorder_holding(buffer)
    return wrap(buffer_value(recorder, aval_of(tuple(buffer.shape), logical), placement_of(recorder).taken_in(buffer), shared=True))


def tensor_from_host(tensor: torch.Tensor, device: torch.device | str | int | None = None) -> torch.Tensor:
    """A tensor on an xla device (None: the current one) with the values of a CPU tensor, which the caller gives away.

    Where the device can use the host's memory there is no copy: neither `tensor` nor a tensor that shares its memory may be written to
    any more. The transfer may go on after the call. Raises as `Tensor.to`, DeviceMismatchError for a tensor that is not on the CPU.
    """
    if tensor.device.type != "cpu":
        raise DeviceMismatchError(f"the tensor is on {tensor.device}; tensors on the CPU can be given to a device")
    return wrap(upload(tensor.detach(), recorder_of(device), given=True))


def _recorder_holding(buffer: jax.Array) -> Recorder:
    running = client()
    if buffer.sharding.device_set == running.placements[0].sharding.device_set:
        return running.recorders[0]
    devices = running.devices
    holding = list(buffer.devices())
    if len(holding) != 1 or holding[0] not in devices:
        raise DeviceMismatchError(
            f"the array lives on {holding}, not on one of this process's xla devices {list(devices)}: device_put it there first"
        )
    return running.recorders[0 if running.placements[0].is_mesh else devices.index(holding[0])]


def is_pending(tensor: torch.Tensor) -> bool:
    """Whether the value of `tensor` is recorded and not computed; False if it was lost to an error."""
    return waits(value_of(ours(tensor)))


def graph_of(tensors: Sequence[torch.Tensor] | None = None, device: torch.device | str | None = None) -> Graph:
    """The pending program with `tensors` as results, or (None) with everything live on `device`. Runs and drops nothing.

    Tensors that are already computed enter as inputs and are no results. Raises DeviceMismatchError for tensors not on one device.
    """
    if tensors:
        values = [value_of(ours(tensor)) for tensor in tensors]
        recorder = values[0].recorder
        if any(value.recorder is not recorder for value in values):
            raise DeviceMismatchError("graph_of needs tensors of one device")
    else:
        values, recorder = None, recorder_of(device)
    with recorder.lock:
        # Under the lock, slots do not change: another thread may sync, or drop dead entries.
        pending_graph = recorder.pending_graph
        results = live_values(pending_graph) if values is None else [value for value in values if value.buffer is None]
        return cut(pending_graph, results)[0]


def sync(device: torch.device | str | None = None, wait: bool = False, cause: Cause = Cause.USER_SYNC) -> None:
    """A step sync of one device (None: the default one), as `torch_xla.sync`: run everything live as one graph, then step closures.

    wait: return when the device is done. cause: who requested the sync, for events.
    """
    user_step(current_recorder() if device is None else recorder_of(device), wait, "torch_xla.torch_xla::sync", cause)


def storage_key(tensor: torch.Tensor) -> int:
    """Equal exactly for tensors that share data: a tensor, its views and its detached forms."""
    return id(ours(tensor)._storage)


def alias_key(tensor: torch.Tensor) -> Hashable:
    """Equal exactly for tensors, alive at the same time, that show the same elements of the same data: tied weights, detached forms."""
    behind = ours(tensor)
    return id(behind._storage), behind._view


def view_function(tensor: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """The view that `tensor` is, as a function: it makes the same view of another tensor's data. It keeps no data alive.

    The function raises ValueError unless all of the other data has the same shape and dtype. Its views have no autograd history.
    """
    behind = ours(tensor)
    spec, aval = behind._view, behind._storage.value.aval

    def view(other: torch.Tensor) -> torch.Tensor:
        storage = ours(other)._storage
        if storage.value.aval != aval:
            raise ValueError(f"the view is one of data {aval}, the other tensor has data {storage.value.aval}")
        return view_of(storage, spec)

    return view


def materialize(tensors: Iterable[torch.Tensor]) -> None:
    """Compute what `tensors` show, each device in one execution, without reading it."""
    compute([value_of(ours(tensor)) for tensor in tensors])
