"""Devices by their texts and their real names."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from xla_core.api import job
from xla_core.api.hardware import global_runtime_device_attributes, global_runtime_device_count
from xla_core.api.job import first_number, is_spmd
from xla_core.api.user_modules import xr
from xla_core.base.budgets import budget
from xla_core.base.deprecation import Deprecation
from xla_core.base.dtypes import check_conversions
from xla_core.base.errors import UnknownDeviceError
from xla_core.engine.runtime import client
from xla_core.engine.runtime.client import recorder_at, recorder_of

_REAL = re.compile(r"([A-Z][A-Z0-9_]*):(\d+)")
_XLA = re.compile(r"xla:(\d+)")

_XLA_DEVICE = Deprecation("torch_xla.core.xla_model.xla_device", "torch_xla.device", "xla-core 0.2.0", "2028-12")
_DEVICE_KIND = Deprecation(
    "torch_xla.core.xla_model.xla_device(devkind=…)", "the variable PJRT_DEVICE (devkind is ignored)", "xla-core 0.2.0", "2028-12"
)
_PARSE_XLA_DEVICE = Deprecation(
    "torch_xla.core.xla_model.parse_xla_device", "torch_xla._internal.utils.parse_xla_device", "xla-core 0.2.0", "2028-12"
)
_SUPPORTED_KIND = Deprecation(
    "torch_xla.core.xla_model.get_xla_supported_devices(devkind=…)", "the variable PJRT_DEVICE", "xla-core 0.2.0", "2028-12"
)


@budget()
def devices() -> list[torch.device]:
    """All devices that this process addresses, in order; one under SPMD. Starts the client, except on the CPU."""
    return [torch.device("xla", index) for index in range(1 if is_spmd() else client.device_count())]


@budget()
def device_count() -> int:
    """The number of `devices()`."""
    return len(devices())


@budget()
def device(index: int | None = None) -> torch.device:
    """The current default device, or the one at `index`, which then becomes the default.

    Raises IndexError past the last device. Under SPMD it is always `xla:0`. Warns if `XLA_USE_BF16` or a similar variable was set too late.
    """
    check_conversions()
    if is_spmd():
        return torch.device("xla", 0)
    if index is not None:
        client.set_current_index(index)
    return torch.device("xla", client.current_index())


@budget()
def xla_device(n: int | None = None, devkind: str | None = None) -> torch.device:
    """The default xla device, or the one at index `n`, which then becomes the default; `devkind` is ignored. As `torch_xla.device`."""
    _XLA_DEVICE.warn()
    if devkind is not None:
        _DEVICE_KIND.warn()
    return device(n)


@budget()
def is_xla_tensor(tensor: torch.Tensor) -> bool:
    """True for a tensor on an xla device, of any class."""
    return tensor.device.type == "xla"


def parse_real_name(name: str) -> tuple[str, int] | None:
    """`'CPU:3'` → `('CPU', 3)`; None for anything that is not `KIND:number`."""
    match = _REAL.fullmatch(name)
    return (match[1], int(match[2])) if match else None


@budget()
def parse_xla_device(device: str) -> tuple[str, int] | None:
    """The hardware kind and number in a real device name: `("TPU", 1)` of `TPU:1`; None for another text."""
    _PARSE_XLA_DEVICE.warn()
    return parse_real_name(device)


def index_of(device: torch.device | str) -> int:
    """The index n of `xla:<n>`. Raises RuntimeError for any other text, IndexError for a device that does not exist."""
    match = _XLA.fullmatch(str(device))
    if match is None:
        raise UnknownDeviceError(f"{str(device)!r} is no device of the form xla:<n>")
    return recorder_at(int(match[1])).index


def xla_real_device(device: torch.device | str) -> str:
    """`'xla:1'` → `'CPU:1'`, numbered over the whole job. Raises RuntimeError for a text that is not `xla:<n>`."""
    return f"{client.client().kind}:{first_number() + index_of(device)}"


@budget()
def xla_real_devices(devices: Iterable[torch.device | str] | None = None) -> list[str]:
    """Real names of `devices`; None or empty: of all devices of this process."""
    chosen = list(devices or ()) or get_xla_supported_devices() or []
    return [xla_real_device(device) for device in chosen]


def local_index(device: torch.device | str) -> int:
    """The index behind `xla`, `xla:<n>` or a real name of this process. Raises RuntimeError for anything else."""
    parsed = parse_real_name(str(device))
    if parsed is None:
        return recorder_of(device).index
    kind, number = parsed
    index = number - first_number()
    if kind != client.client().kind or not 0 <= index < len(client.client().devices):
        raise UnknownDeviceError(f"{device} is no device of this process, which has {', '.join(xla_real_devices())}")
    return index


@budget()
def xla_device_hw(device: torch.device | str) -> str:
    """The hardware kind behind an xla device: `CPU`, `TPU`, …. Raises RuntimeError for a text that names no device."""
    recorder_of(device)
    return client.client().kind


@budget()
def xla_device_kind(device: torch.device | str | None = None) -> str:
    """The hardware model, as the client names it, such as `TPU v4`."""
    return str(client.jax_device(recorder_of(device)).device_kind)


@budget()
def get_xla_supported_devices(devkind: str | Sequence[str] | int | None = None, max_devices: int | None = None) -> list[str] | None:
    """`['xla:0', …]`, at most `max_devices`; with a `devkind`, None unless this process's devices are of that kind.

    An integer as first argument means `max_devices`.
    """
    if isinstance(devkind, int):
        devkind, max_devices = None, devkind
    if devkind is not None:
        _SUPPORTED_KIND.warn()
        kinds = [devkind] if isinstance(devkind, str) else list(devkind)
        if client.device_kind() not in kinds:
            return None
    return [str(device) for device in devices()[:max_devices]]


@budget()
def xla_device_count() -> int:
    """The number of accelerators that this process addresses: 0 on the CPU, where this starts no client.

    For libraries that run on an accelerator if there is one; `torch_xla.device_count` counts devices of the CPU, too.
    """
    return 0 if client.device_kind() in (None, "CPU") else device_count()


@budget()
def runtime_device_attributes(device: torch.device | str) -> dict[str, Any]:
    """The attributes of the device behind `xla:<n>` or a real name such as `TPU:1`. Raises RuntimeError for any other text."""
    name = device if isinstance(device, str) and parse_real_name(device) else xla_real_device(device)
    for attributes in xr(global_runtime_device_attributes)():
        if attributes["name"] == name:
            return dict(attributes)
    raise RuntimeError(f"the job has no device {name}")


@budget()
def xla_replication_devices(local_devices: Sequence[torch.device | str] | None = None) -> list[str]:
    """Real names of all devices of the job, in order of ordinals.

    local_devices: all devices of this process, as is None. Raises RuntimeError if some are missing, or the kinds differ.
    """
    names = [str(device) for device in (get_xla_supported_devices() if local_devices is None else local_devices) or []]
    real = [name if parse_real_name(name) else xla_real_device(name) for name in names]
    kinds = {name.partition(":")[0] for name in real}
    if len(kinds) > 1:
        raise RuntimeError(f"replication devices are of one kind, got {', '.join(sorted(kinds))}")
    if sorted(real) != sorted(xla_real_devices()):
        raise RuntimeError(f"replication devices must be all devices of this process ({', '.join(xla_real_devices())}), got {real}")
    return [f"{client.client().kind}:{index}" for index in range(xr(global_runtime_device_count)())]


@budget()
def set_replication(device: torch.device | str, devices: Sequence[str] | None) -> None:
    """Join the replica set `devices` (real names) with `device` as this thread's default; None or empty: run as the only replica."""
    client.set_current_index(local_index(device))
    job.join(devices)
