"""Values between torch on the CPU and PJRT buffers. Both directions copy: neither side ever sees the other's later writes."""

from __future__ import annotations

import time
from typing import Any

import jax
import numpy as np
import torch
from jax.sharding import Sharding, SingleDeviceSharding

from xla_core import metrics
from xla_core.dtypes import natural_dtype
from xla_core.errors import ExecutionError
from xla_core.ir.aval import Aval, aval_of
from xla_core.ir.layout import spans_devices
from xla_core.ir.tape import Recorder, Value, buffer_value
from xla_core.metrics import Direction, TransferEvent, Unit
from xla_core.runtime.client import client, home, jax_device
from xla_core.runtime.failures import reason
from xla_core.runtime.layouts import Holder, form_of, relaid

# torch and NumPy share no name for these: they cross as integers of the same width.
_CARRIERS = {1: (torch.uint8, np.uint8), 2: (torch.int16, np.int16)}
_CARRIED = {
    torch.bfloat16,
    torch.float8_e4m3fn,
    torch.float8_e4m3fnuz,
    torch.float8_e5m2,
    torch.float8_e5m2fnuz,
}


_MOST_DIMS = 64


def to_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A NumPy array of a dense CPU tensor's values in its natural dtype; shares memory where it can."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if plain.dtype in _CARRIED:
        wide, _ = _CARRIERS[plain.element_size()]
        carried: np.ndarray[Any, Any] = plain.view(wide).numpy()
        return carried.view(natural_dtype(plain.dtype))
    array: np.ndarray[Any, Any] = plain.numpy()
    return array


def to_torch(array: np.ndarray[Any, Any], dtype: torch.dtype) -> torch.Tensor:
    """A CPU tensor of `dtype` with a copy of `array`'s values."""
    natural = natural_dtype(dtype)
    if array.dtype != natural:
        array = array.astype(natural)
    if dtype in _CARRIED:
        wide, narrow = _CARRIERS[natural.itemsize]
        return torch.from_numpy(np.array(array.view(narrow))).view(dtype)
    return torch.from_numpy(np.array(array))


def upload(tensor: torch.Tensor, recorder: Recorder, form: Sharding | None = None) -> Value:
    """A copy of a CPU tensor on a device. form: as in `put`.

    Raises UnsupportedDtypeError, RuntimeError for more dimensions than NumPy has, ExecutionError if the device is out of memory.
    """
    if tensor.dim() > _MOST_DIMS:
        raise RuntimeError(f"only tensors with up to {_MOST_DIMS} dims are supported, found {tensor.dim()}")
    aval = aval_of(tuple(tensor.shape), tensor.dtype)
    start = time.time()
    begin = time.perf_counter_ns()
    buffer = put(to_numpy(tensor).astype(aval.physical, copy=True), recorder, form)
    _account(recorder, Direction.TO_DEVICE, aval.nbytes, start, time.perf_counter_ns() - begin)
    return buffer_value(recorder, aval, buffer)


def put(array: np.ndarray[Any, Any] | jax.Array, recorder: Recorder, form: Sharding | None = None) -> jax.Array:
    """A buffer of `array` on a device, dtype kept. The caller gives `array` away: it may be used in place.

    form: how it lies over the devices that `recorder`'s stands for; None for replicated.
    """
    try:
        with jax.enable_x64(True):
            whole = home(recorder)
            if spans_devices(whole):
                return jax.make_array_from_callback(array.shape, form or whole, lambda index: np.asarray(array[index]))
            return settled(jax.device_put(array, jax_device(recorder)), recorder)
    except RuntimeError as error:
        raise ExecutionError(f"could not put {array.dtype}{list(array.shape)} on {recorder.device}: {error}") from error


def settled(buffer: jax.Array, recorder: Recorder) -> jax.Array:
    """A buffer on a device in the form in which programs take and give it."""
    form = home(recorder)
    if isinstance(form, SingleDeviceSharding) or buffer.sharding == form:
        return buffer
    with jax.enable_x64(True):
        parts = [jax.device_put(buffer, device) for device in client().devices] if spans_devices(form) else [buffer]
        return jax.make_array_from_single_device_arrays(buffer.shape, form, parts)


def local(buffer: jax.Array, recorder: Recorder) -> jax.Array:
    """A buffer as others see it: of replicas, this process's part, an array on one device."""
    form = home(recorder)
    return buffer if isinstance(form, SingleDeviceSharding) or spans_devices(form) else buffer.addressable_data(0)


def filled(recorder: Recorder, holder: Holder, aval: Aval, number: Any) -> jax.Array:
    """A buffer with `number` everywhere, lying as the holder's data should, without compiling anything."""
    return put(np.full(aval.shape, number, aval.physical), recorder, form_of(holder, aval))


def download(value: Value) -> torch.Tensor:
    """A CPU copy of a value that has a buffer. Raises ExecutionError if what computed it failed."""
    buffer = value.buffer
    if buffer is None:
        raise ExecutionError(f"a value {value.aval} on {value.recorder.device} was read before it was computed")
    start = time.time()
    begin = time.perf_counter_ns()
    try:
        if value.aval.manual:
            buffer = buffer.addressable_data(0)[0]  # of the first device here
        array = np.asarray(buffer if buffer.is_fully_addressable or buffer.is_fully_replicated else relaid(buffer, home(value.recorder)))
    except RuntimeError as error:
        raise ExecutionError(f"{value.aval} on {value.recorder.device} could not be read: {reason(error)}") from error
    converting = time.perf_counter_ns()
    tensor = to_torch(array, value.aval.dtype)
    metrics.metric_add("TensorToData", time.perf_counter_ns() - converting, Unit.DURATION_NS)
    _account(value.recorder, Direction.FROM_DEVICE, value.aval.nbytes, start, time.perf_counter_ns() - begin)
    return tensor


def _account(recorder: Recorder, direction: Direction, nbytes: int, start_s: float, duration_ns: int) -> None:
    up = direction is Direction.TO_DEVICE
    metrics.metric_add("OutboundData" if up else "InboundData", nbytes, Unit.BYTES)
    metrics.metric_add("TransferToDeviceTime" if up else "TransferFromDeviceTime", duration_ns, Unit.DURATION_NS)
    if up:
        metrics.counter_add("DeviceDataCacheMiss")  # nothing uploaded is kept for a second upload
    if metrics.has_subscribers(TransferEvent):
        metrics.emit(
            TransferEvent(device=str(recorder.device), start_s=start_s, duration_ns=duration_ns, direction=direction, nbytes=nbytes)
        )
