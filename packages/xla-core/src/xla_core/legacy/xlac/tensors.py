"""Functions on tensors: run and read them, and tell which are the same."""

from __future__ import annotations

import contextlib
import itertools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from xla_core.api import dlpack
from xla_core.api.library import optimization_barrier_
from xla_core.api.model import get_rng_state, set_rng_state, wait_device_ops
from xla_core.api.step import check_scopes
from xla_core.base.errors import ExecutionError, UnsupportedOperationError
from xla_core.engine.graph.pending_graph import Value, lose, waits
from xla_core.engine.graph.selection import live_values
from xla_core.engine.runtime.sync import compute, retire, user_step
from xla_core.engine.tensor.interop import buffer_of, storage_key
from xla_core.engine.tensor.live_buffers import live_tensors
from xla_core.engine.tensor.plain import unwrapped
from xla_core.engine.tensor.values import cpu_copies, value_of
from xla_core.legacy.xlac.common import Tensors, plain_tensors, recorder_named


def _xla_sync_multi(tensors: Tensors, devices: Sequence[str] = (), wait: bool = True, sync_xla_data: bool = True) -> None:
    compute([value_of(tensor) for tensor in plain_tensors(tensors)])
    if wait:
        wait_device_ops([tensor.device for tensor in tensors])


def _xla_sync_live_tensors(device: str = "", devices: Sequence[str] = (), wait: bool = True) -> None:
    recorder = recorder_named(device)
    compute(
        [
            value
            for reference in list(recorder.pending_graph.refs)
            if (value := reference()) is not None and value.pending_graph is recorder.pending_graph
        ]
    )
    if wait:
        wait_device_ops([recorder.device])


def _xla_step_marker(device: str = "", devices: Sequence[str] = (), wait: bool = True, reset_scope: bool = True) -> None:
    if reset_scope:
        check_scopes()
    user_step(recorder_named(device), wait, "torch_xla._XLAC._xla_step_marker")


_xla_wait_device_ops = wait_device_ops


def _xla_get_cpu_tensors(tensors: Tensors) -> list[torch.Tensor]:
    return cpu_copies(plain_tensors(tensors))


def _xla_tensors_from_aten(tensors: Tensors, devices: Sequence[str], shardings: Sequence[Any] | None = None) -> list[torch.Tensor]:
    if len(devices) not in (1, len(tensors)):
        raise ValueError(f"{len(devices)} devices for {len(tensors)} tensors: give one for each, or one for all")
    if shardings and any(sharding is not None for sharding in shardings):
        raise UnsupportedOperationError(
            "_xla_tensors_from_aten takes no shardings: use torch_xla.distributed.spmd.mark_sharding on its results"
        )
    targets = list(devices) if len(devices) == len(tensors) else list(devices) * len(tensors)
    return [tensor.detach().to(target) for tensor, target in zip(tensors, targets, strict=True)]


def _xla_get_tensor_id(tensor: torch.Tensor) -> int:
    return storage_key(unwrapped(tensor))


_xla_get_tensor_view_alias_id = _xla_get_tensor_id


def _xla_set_rng_seed(seed: int, device: str = "") -> None:
    set_rng_state(seed, device or None)


def _xla_get_rng_seed(device: str = "") -> int:
    return get_rng_state(device or None)


def _xla_optimization_barrier_(tensors: Tensors) -> None:
    optimization_barrier_(list(tensors))


def _get_xla_tensor_dimension_size(tensor: torch.Tensor, dim: int) -> torch.Tensor:
    return torch.tensor(tensor.size(dim), dtype=torch.int32, device=tensor.device)


def _clear_pending_irs(device: str = "") -> None:
    """Drop the pending operations of a device. Tensors that wait for them cannot be read any more."""
    recorder = recorder_named(device)
    with recorder.lock:
        for value in live_values(recorder.pending_graph):
            lose(value, ExecutionError("_XLAC._clear_pending_irs has dropped what was pending"))
        retire(recorder)


def _replace_xla_tensor(tensor: torch.Tensor, other: torch.Tensor) -> None:
    """Let `tensor` show the data of `other`, whatever its shape and dtype. Both are on xla."""
    unwrapped(tensor)  # raises for one that is elsewhere
    tensor.data = unwrapped(other)


def _unsafe_buffer_pointer(tensor: torch.Tensor) -> int:
    """The address of a tensor's data, which is computed first if it is pending; in SPMD mode, of its first local shard."""
    return int(buffer_of(unwrapped(tensor)).addressable_data(0).unsafe_buffer_pointer())


class IrValue:
    """A recorded value, as upstream's extension module types it. No function here takes or gives one."""

    def __init__(self) -> None:
        raise TypeError("an IrValue cannot be made: values are recorded by operations on xla tensors")


def _check_tensor_need_materialization(tensors: Tensors) -> list[bool]:
    """For each tensor, whether reading it runs a program: not if it is computed, or was lost to an error."""
    return [waits(value_of(tensor)) for tensor in plain_tensors(tensors)]


def _check_device_tensor_need_materialization(device: str) -> list[bool]:
    """For each live tensor of a device (empty: the current one), whether reading it runs a program."""
    recorder = recorder_named(device)
    storages = {id(tensor._storage): tensor._storage for tensor in live_tensors()}
    return [waits(storage.value) for storage in storages.values() if storage.value.recorder is recorder]


_numbers = itertools.count()
_ids: weakref.WeakKeyDictionary[Value, int] = weakref.WeakKeyDictionary()


def _unique_id_for_ir_and_data(tensor: torch.Tensor) -> str:
    """A text that identifies a tensor's value: it changes with each write to the tensor."""
    return str(_ids.setdefault(value_of(unwrapped(tensor)), next(_numbers)))


def _on_ready_callback(tensor: torch.Tensor, callback: Callable[[], None]) -> None:
    """Compute `tensor`, and call `callback` in a thread when that is done, also if it failed; reading the tensor then raises."""
    buffer = buffer_of(unwrapped(tensor))

    def wait() -> None:
        with contextlib.suppress(RuntimeError):
            buffer.block_until_ready()
        callback()

    threading.Thread(target=wait, name="xla-on-ready").start()


_to_dlpack = dlpack.to_dlpack


def _from_dlpack(capsule: Any) -> torch.Tensor:
    """`torch_xla.utils.dlpack.from_dlpack`."""
    return dlpack.from_dlpack(capsule)
