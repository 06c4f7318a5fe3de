"""The hardware: its kind, the physical devices of this process and of the job, and their attributes."""

from __future__ import annotations

from typing import Any

import jax

from xla_core.api.job import is_spmd, process_count
from xla_core.api.user_modules import xr
from xla_core.base import config
from xla_core.base.budgets import budget
from xla_core.engine.runtime import client


@budget()
def device_type() -> str | None:
    """The hardware kind (`CPU`, `TPU`, …) from `PJRT_DEVICE`, or the default chosen for it. Starts no client."""
    return client.device_kind()


@budget()
def set_device_type(pjrt_device: str) -> None:
    """Choose the hardware kind. Raises RuntimeError when the client already runs on another kind."""
    kind = pjrt_device.split("_")[0].upper()
    if client.started():
        if kind != client.client().kind:
            raise RuntimeError(f"the runtime already runs on {client.client().kind}, too late for {pjrt_device}: choose before first use")
        return
    config.PJRT_DEVICE.set(pjrt_device)


@budget()
def using_pjrt() -> bool:
    """True: there is no other runtime."""
    return True


@budget()
def is_bf16_supported() -> bool:
    """True: XLA computes bfloat16 everywhere."""
    return True


@budget()
def addressable_runtime_device_count() -> int:
    """The number of physical devices that this process sees, also under SPMD. Starts the client, except on the CPU."""
    return client.physical_device_count()


@budget()
def global_runtime_device_count() -> int:
    """The number of physical devices of the whole job, also under SPMD."""
    return len(job_device_attributes())


def job_device_count() -> int:
    """The result of `global_runtime_device_count`, or of the function that replaces it in `torch_xla.runtime`."""
    return int(xr(global_runtime_device_count)())


def job_device_attributes() -> list[dict[str, Any]]:
    """The result of `global_runtime_device_attributes`, or of the function that replaces it in `torch_xla.runtime`."""
    return list(xr(global_runtime_device_attributes)())


@budget()
def global_device_count() -> int:
    """The number of devices over all processes and hosts; 1 under SPMD."""
    return 1 if is_spmd() else job_device_count()


@budget()
def global_runtime_device_attributes() -> list[dict[str, Any]]:
    """A dict for each device of the job: `name`; on TPU also `coords`, `core_on_chip`, `num_cores`; with several slices `slice_index`."""
    local = client.client().devices
    count = process_count()
    all_devices = local if count == 1 else local[0].client.devices()
    if len(all_devices) != count * len(local):  # the processes are not connected (yet): equal shares
        all_devices = list(local) * count
    rows = [_attributes(device, index) for index, device in enumerate(all_devices)]
    if len({attributes.get("slice_index") for attributes in rows}) == 1:  # jax numbers a slice that is the only one as well
        for attributes in rows:
            attributes.pop("slice_index", None)
    return rows


def _attributes(device: jax.Device, index: int) -> dict[str, Any]:
    """The attributes of a physical device. index: over the whole job."""
    attributes: dict[str, Any] = {"name": f"{client.client().kind}:{index}"}
    core = getattr(device, "core_on_chip", None)
    coords = None if core is None else getattr(device, "coords", None)  # GPUs of a topology have some, too, which say nothing
    if coords is not None:
        attributes |= {"coords": list(coords), "core_on_chip": core, "num_cores": getattr(device, "num_cores", 1)}
    slice_index = getattr(device, "slice_index", None)
    if slice_index is not None and coords is not None:
        attributes["slice_index"] = slice_index
    return attributes
