"""Devices of the process and of the job, replicas, memory."""

from __future__ import annotations

from collections.abc import Sequence

from xla_core.api import devices, replicas
from xla_core.api.hardware import global_runtime_device_attributes
from xla_core.api.memory import MemoryInfo, get_memory_info
from xla_core.api.replication import addressable_device_count, global_ordinal
from xla_core.api.user_modules import xr
from xla_core.runtime import client
from xla_core.runtime.executor import wait


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


def _xla_device_kind(device: str) -> str:
    return devices.xla_device_kind(device)


def _xla_set_replication_devices(names: Sequence[str]) -> None:
    replicas.join(names)


def _xla_get_replication_devices() -> list[str]:
    return list(replicas.joined())


def _xla_get_replication_devices_count() -> int:
    return len(replicas.joined())


def _xla_runtime_is_initialized() -> bool:
    return client.started()


def _xla_memory_info(device: str = "") -> MemoryInfo:
    return get_memory_info(device or None)


def _xla_get_runtime_devices() -> list[str]:
    return devices.xla_real_devices()


def _prepare_to_exit() -> None:
    if client.started():
        for recorder in client.client().recorders:
            wait(recorder)
