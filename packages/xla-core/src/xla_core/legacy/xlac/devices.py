"""Devices of the process and of the job, replicas, memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from xla_core.api import devices, job, plugins
from xla_core.api.hardware import addressable_runtime_device_count, global_device_count, global_runtime_device_attributes
from xla_core.api.job import addressable_device_count, global_ordinal, process_count, process_index, use_spmd
from xla_core.api.memory import MemoryInfo, get_memory_info
from xla_core.api.user_modules import xr
from xla_core.base import config
from xla_core.engine.runtime import client
from xla_core.engine.runtime.executor import wait
from xla_core.engine.tensor.plain import unwrapped
from xla_core.engine.tensor.values import value_of


def _xla_get_devices() -> list[str]:
    return [str(device) for device in devices.devices()]


def _xla_get_all_devices() -> list[str]:
    return [str(attributes["name"]) for attributes in xr(global_runtime_device_attributes)()]


def _xla_num_devices() -> int:
    return int(xr(addressable_device_count)())


def _xla_get_default_device() -> str:
    return str(devices.device())


def _xla_get_default_device_ordinal() -> int:
    return int(xr(global_ordinal)())


def _xla_set_default_device(device: str) -> str:
    previous = _xla_get_default_device()
    client.set_current_index(devices.local_index(device))
    return previous


def _xla_real_devices(names: Sequence[str] | None = None) -> list[str]:
    return devices.xla_real_devices(names)


_xla_device_kind = devices.xla_device_kind


def _xla_set_replication_devices(names: Sequence[str]) -> None:
    job.join(names)


def _xla_get_replication_devices() -> list[str]:
    return list(job.joined())


def _xla_get_replication_devices_count() -> int:
    return len(job.joined())


_xla_runtime_is_initialized = client.started


def _xla_memory_info(device: str = "") -> MemoryInfo:
    return get_memory_info(device or None)


_xla_get_runtime_devices = devices.xla_real_devices


def _prepare_to_exit() -> None:
    if client.started():
        for recorder in client.client().recorders:
            wait(recorder)


def _init_computation_client() -> None:
    """Start this process's devices, unless they run."""
    client.client()


def _init_xla_lazy_backend() -> None:
    """Load this project's plugins. Recording needs nothing else; no device is started."""
    plugins.load()


_xla_get_all_runtime_devices = _xla_get_all_devices  # real names


def _xla_num_runtime_devices() -> int:
    """Physical devices that this process addresses."""
    return int(xr(addressable_runtime_device_count)())


def _xla_num_global_devices() -> int:
    """Devices of the job; one in SPMD mode."""
    return int(xr(global_device_count)())


def _xla_get_num_processes() -> int:
    """Processes of the job."""
    return int(xr(process_count)())


def _xla_get_process_index() -> int:
    """This process's index in the job."""
    return int(xr(process_index)())


def _xla_get_all_device_attributes() -> list[dict[str, Any]]:
    """`torch_xla.runtime.global_runtime_device_attributes`."""
    return list(xr(global_runtime_device_attributes)())


_xla_get_device_attributes = devices.runtime_device_attributes


def _xla_get_device_hw_type(tensor: torch.Tensor) -> str:
    """The kind of hardware of a tensor's device: `CPU`, `CUDA`, `TPU`."""
    return devices.xla_device_hw(value_of(unwrapped(tensor)).recorder.device)


def _xla_get_device_ordinal(device: str) -> int:
    """The number in `xla:<n>` or in a real name. Raises RuntimeError for another text."""
    parsed = devices.parse_real_name(device)
    return devices.index_of(device) if parsed is None else parsed[1]


def _xla_get_platform_version() -> str:
    """The version text of the platform's compiler and driver."""
    return str(client.client().devices[0].client.platform_version)


def _xla_force_spmd_device() -> None:
    """Switch to SPMD mode, like `torch_xla.runtime.use_spmd`."""
    xr(use_spmd)()


_xla_get_spmd_config_is_locked = client.started  # from then on, SPMD mode would have to move data on the devices


_xla_get_auto_sharding = config.AUTO_SPMD.get


def _xla_set_auto_sharding() -> None:
    """From now on, let a policy shard tensors that move to `xla` in SPMD mode, like `torch_xla.runtime.use_spmd(auto=True)`."""
    config.AUTO_SPMD.set(True)
