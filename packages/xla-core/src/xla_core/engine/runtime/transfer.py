"""Move values between torch on the CPU and PJRT buffers. Both directions copy: neither side ever sees the other's later writes."""

from __future__ import annotations

import time
import warnings
from functools import cache
from typing import Any

import jax
import numpy as np
import torch

from xla_core.base import metrics
from xla_core.base.arrays import to_numpy, to_torch
from xla_core.base.budgets import spent
from xla_core.base.errors import ExecutionError
from xla_core.base.metrics import Direction, TransferEvent, Unit
from xla_core.engine.compile import seal
from xla_core.engine.graph.aval import Aval, aval_of, dense_strides
from xla_core.engine.graph.pending_graph import Recorder, Value, buffer_value
from xla_core.engine.placement.placement import OneDevice
from xla_core.engine.placement.planned import MOST_KNOWN, PlannedBuffer, stand_in
from xla_core.engine.placement.target import Target
from xla_core.engine.runtime import uploads
from xla_core.engine.runtime.client import client, placement_of
from xla_core.engine.runtime.failures import reason
from xla_core.engine.runtime.memory import bytes_on_each
from xla_core.engine.runtime.resharding import AnnotatedStorage, buffer_sharding, reshard
from xla_core.engine.runtime.source_location import user_line

_MOST_DIMS = 64
_KEPT_BYTES = 1 << 16
"""jax may keep smaller arrays on the host once they have been read."""
_WORTH_ALIGNING = 1 << 18
"""Bytes. PJRT's CPU devices use memory in place if it is aligned to 64 bytes, as torch's is, and copy it otherwise."""


def on_host(tensor: torch.Tensor, dtype: torch.dtype, recorder: Recorder) -> torch.Tensor:
    """A CPU tensor of these values to upload; on meta for a device that takes no data, so that a tensor on meta has none to give."""
    if placement_of(recorder).target.attached or _stays_known(tensor, dtype):
        return tensor.to("cpu", dtype)
    return torch.empty(tensor.shape, dtype=dtype, device="meta")


def _stays_known(tensor: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether a device that takes no data remembers these elements: a few integers, which may be lengths by which the host goes on."""
    integral = not (dtype.is_floating_point or dtype.is_complex)
    return integral and not tensor.is_meta and tensor.numel() * dtype.itemsize <= MOST_KNOWN


def upload(tensor: torch.Tensor, recorder: Recorder, sharding: jax.sharding.Sharding | None = None, given: bool = False) -> Value:
    """A copy of a CPU tensor, or of what `on_host` made of it, on a device.

    sharding: as in `put`. given: the caller gives the tensor away; its memory may be used in place.

    Raises UnsupportedDtypeError, RuntimeError for more dimensions than NumPy has, ExecutionError if the device is out of memory.
    """
    if tensor.dim() > _MOST_DIMS:
        raise RuntimeError(f"only tensors with up to {_MOST_DIMS} dims are supported, found {tensor.dim()}")
    aval = aval_of(tuple(tensor.shape), tensor.dtype, strides=dense_strides(tensor))
    if not placement_of(recorder).target.attached:  # its memory is never read, so that a tensor on meta will do
        planned = put(stand_in(aval.shape, aval.physical), recorder, sharding)
        if isinstance(planned, PlannedBuffer) and _stays_known(tensor, tensor.dtype):
            planned = planned.with_elements(copied(tensor, aval.physical))
        return buffer_value(recorder, aval, planned)
    with transferring(recorder, Direction.TO_DEVICE, aval.nbytes) as transfer:
        array = to_numpy(tensor).astype(aval.physical, copy=False) if given else copied(tensor, aval.physical)
        buffer = transfer.buffer = put(array, recorder, sharding)
    uploads.note(recorder, aval.nbytes if sharding is None else bytes_on_each(buffer))
    return buffer_value(recorder, aval, buffer)


def copied(tensor: torch.Tensor, physical: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """A CPU tensor's values in the dtype of a device, in memory that the device may use in place."""
    array = to_numpy(tensor)
    nbytes = array.size * physical.itemsize
    if nbytes < _WORTH_ALIGNING:
        return array.astype(physical, copy=True)
    aligned: np.ndarray[Any, Any] = torch.empty(nbytes, dtype=torch.uint8, device="cpu").numpy().view(physical).reshape(array.shape)
    np.copyto(aligned, array, casting="unsafe")
    return aligned


def put(array: np.ndarray[Any, Any] | jax.Array, recorder: Recorder, sharding: jax.sharding.Sharding | None = None) -> jax.Array:
    """A buffer of `array` on a device, of the same dtype. The caller gives `array` away: its memory may be used in place.

    sharding: in SPMD mode, over the devices behind `recorder`'s device; None for replicated. Dimensions that it does not divide evenly are
    padded with zeros.
    """
    try:
        with jax.enable_x64(True):
            return placement_of(recorder).put(array, sharding)
    except RuntimeError as error:
        raise ExecutionError(f"could not put {array.dtype}{list(array.shape)} on {recorder.device}: {error}") from error


def filled(recorder: Recorder, holder: AnnotatedStorage, aval: Aval, number: Any) -> jax.Array:
    """A buffer filled with `number`, with the sharding of the holder's data. Compiles nothing."""
    return put(np.full(aval.shape, number, aval.physical), recorder, buffer_sharding(holder))


def download(value: Value) -> torch.Tensor:
    """A CPU copy of a value that has a buffer. Raises ExecutionError if the program that computed it failed."""
    with transferring(value.recorder, Direction.FROM_DEVICE, value.aval.nbytes) as transfer:
        array, ours = _on_host(value, transfer)
        tensor = to_torch(array, value.aval.dtype, copy=not ours)
    strides = value.aval.strides
    return tensor if strides is None else torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device="cpu").copy_(tensor)


def download_number(value: Value) -> Any:
    """The Python number (as of `.item()`) of a value with one element and a buffer. Raises as `download`."""
    with transferring(value.recorder, Direction.FROM_DEVICE, value.aval.nbytes) as transfer:
        return _on_host(value, transfer)[0].item()


def _on_host(value: Value, transfer: transferring) -> tuple[np.ndarray[Any, Any], bool]:
    """The elements of a value on the host, and whether the caller owns them."""
    spent.reads += 1
    buffer = value.buffer
    if buffer is None:
        raise ExecutionError(f"a value {value.aval} on {value.recorder.device} was read before it was computed")
    if isinstance(buffer, PlannedBuffer):
        if buffer.known is None or not buffer.exact:
            _warn_of_stand_ins(placement_of(value.recorder).target)
        return stand_in(value.aval.shape, value.aval.physical) if buffer.known is None else buffer.known, False
    try:
        transfer.wait(buffer)
        placement = placement_of(value.recorder)
        if isinstance(placement, OneDevice):
            return (np.asarray(buffer), False) if value.aval.nbytes < _KEPT_BYTES else fetched(buffer)
        if value.aval.manual:
            buffer = buffer.addressable_data(0)[0]  # of this process's first device
        readable = buffer.is_fully_addressable or buffer.is_fully_replicated
        array, ours = fetched(buffer if readable else reshard(buffer, placement.sharding, value.aval))
        if array.shape == value.aval.shape:
            return array, ours
        return array[tuple(slice(size) for size in value.aval.shape)].copy(), True
    except RuntimeError as error:
        raise ExecutionError(f"{value.aval} on {value.recorder.device} could not be read: {reason(error)}") from error


@cache
def _warn_of_stand_ins(target: Target) -> None:
    line = user_line()
    warnings.warn(
        f"nothing runs on the target {target.name}, so values read from it are NaN, and integers as if all else were 0: first at {line}",
        RuntimeWarning,
        stacklevel=2,
    )


def fetched(buffer: jax.Array) -> tuple[np.ndarray[Any, Any], bool]:
    """The elements of a buffer on the host, and whether the caller owns them.

    jax keeps the host copy of an array for its next read: large buffers are read through another array object, which is dropped. An array
    also keeps its shards once they were asked for.
    """
    if buffer.nbytes < _KEPT_BYTES:
        return np.asarray(buffer), False
    if buffer.is_fully_replicated:
        first = buffer if len(buffer.sharding.device_set) == 1 else buffer.addressable_data(0)
        return np.asarray(jax.make_array_from_single_device_arrays(first.shape, first.sharding, [first])), False
    array = np.empty(buffer.shape, buffer.dtype)
    for shard in buffer.addressable_shards:
        array[shard.index] = np.asarray(shard.data.addressable_data(0))
    return array, True


class transferring:  # read as a word, as contextlib.suppress
    """Counts and times a block as one transfer of `nbytes`, unless it raises.

    watched: a subscriber wants to know how much of the time is the device's.
    """

    __slots__ = ("_begin", "_direction", "_nbytes", "_recorder", "_start", "buffer", "waited_ns", "watched")

    def __init__(self, recorder: Recorder, direction: Direction, nbytes: int) -> None:
        client()  # raises in a process forked from the one that has the buffers
        if seal.forbids_moves():
            seal.check_transfer(direction, nbytes, user_line())
        self._recorder = recorder
        self._direction = direction
        self._nbytes = nbytes
        self.watched = metrics.has_subscribers(TransferEvent)
        self.waited_ns = 0
        self.buffer: jax.Array | None = None

    def __enter__(self) -> transferring:
        self._start, self._begin = time.time(), time.perf_counter_ns()
        return self

    def wait(self, buffer: jax.Array) -> None:
        """Wait for `buffer`, apart from the transfer itself."""
        self.buffer = buffer
        if self.watched:
            begin = time.perf_counter_ns()
            buffer.block_until_ready()
            self.waited_ns = time.perf_counter_ns() - begin

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        if error_type is not None:
            return
        duration = time.perf_counter_ns() - self._begin
        up = self._direction is Direction.TO_DEVICE
        moved = ("OutboundData" if up else "InboundData", self._nbytes, Unit.BYTES)
        if not up:
            metrics.metrics_add(moved, ("TransferFromDeviceTime", duration, Unit.DURATION_NS))
        else:
            metrics.metrics_add(moved, ("TransferToDeviceTime", duration, Unit.DURATION_NS), ("TensorToData", duration, Unit.DURATION_NS))
            metrics.counter_add("DeviceDataCacheMiss")  # nothing uploaded is kept for a second upload
        if self.watched:
            metrics.emit(
                TransferEvent(
                    device=str(self._recorder.device),
                    start_s=self._start,
                    duration_ns=duration,
                    line=user_line(),
                    direction=self._direction,
                    nbytes=self._nbytes,
                    waited_ns=self.waited_ns,
                    buffer=self.buffer,
                )
            )
