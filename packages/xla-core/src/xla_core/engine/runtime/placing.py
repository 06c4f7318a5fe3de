"""Which devices there are, and where data and programs are on them: one by one, as a replica of several, over a mesh of all."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh as JaxMesh

from xla_core.base import config, metrics
from xla_core.base.errors import ExecutionError
from xla_core.engine.placement.manual import REPLICA_AXIS
from xla_core.engine.placement.placement import OneDevice, Placement, Replicas, over_mesh
from xla_core.engine.placement.target import Target
from xla_core.engine.runtime.topology import topology

# Kinds of hardware that jax starts without a plugin of ours, as in PJRT_DEVICE, and the processor family of each.
FAMILIES = {"CPU": "cpu", "CUDA": "gpu", "GPU": "gpu", "ROCM": "gpu", "TPU": "tpu"}
# The kind of a platform, where that is not its name in upper case.
KINDS: Mapping[str, str] = {"gpu": "CUDA"}


def default_kind(devices: Path = Path("/dev")) -> tuple[str, str | None]:
    """The kind to use if the user names none, and a text about an accelerator that it leaves unused. devices: the kernel's folder."""
    chips = any(devices.glob("accel[0-9]*"))
    if (chips or any(devices.glob("vfio/[0-9]*"))) and importlib.util.find_spec("libtpu") is not None:
        return "TPU", None
    if chips:
        return "CPU", "there seems to be a TPU: pip install 'xla-core[tpu]'"
    if any(devices.glob("nvidia[0-9]*")):
        return "CPU", "there is an NVIDIA GPU: pip install 'xla-core[cuda]' and set PJRT_DEVICE=CUDA"
    return "CPU", None


def attached_placements(devices: tuple[jax.Device, ...], platform: str, target: Target) -> tuple[Placement, ...]:
    """Where data is on the devices of this process, in the present mode. Raises ExecutionError for replicas with unequal devices."""
    here = topology()
    if config.USE_SPMD.get():
        metrics.counter_add("VirtualDeviceUsage")
        return (over_mesh(devices_of_job(devices), devices, target),)
    if not here.replicas or here.process_count == 1:
        return tuple(OneDevice(device, target) for device in devices)
    connected = sorted(jax.devices(platform), key=lambda device: (device.process_index, device.id))
    if len(connected) != here.process_count * len(devices):
        raise ExecutionError(
            f"{here.process_count} replicas see {len(connected)} devices together, this one {len(devices)}: give each process equally many"
        )
    # Device k of this process shares its mesh with device k of each other process, not with its neighbours here.
    columns = np.array(connected).reshape(here.process_count, len(devices)).T
    meshes = [JaxMesh(column, (REPLICA_AXIS,)) for column in columns]
    return tuple(Replicas(device, mesh, target) for device, mesh in zip(devices, meshes, strict=True))


def devices_of_job(local: Sequence[jax.Device]) -> np.ndarray[Any, Any]:
    """All devices of the job, grouped by process."""
    if topology().process_count == 1:
        return np.array(local)
    return np.array(sorted(jax.devices(local[0].platform), key=lambda device: (device.process_index, device.id)))


def planned_placements(target: Target) -> tuple[Placement, ...]:
    """Where data would be on devices that are not there, in the present mode."""
    here, devices = topology(), target.devices
    if config.USE_SPMD.get():
        return (over_mesh(np.array(devices), devices, target),)
    if here.replicas and here.process_count > 1:
        mesh = JaxMesh(np.array(devices[: here.process_count]), (REPLICA_AXIS,))
        return (Replicas(devices[here.process_index], mesh, target),)
    return tuple(OneDevice(device, target) for device in devices)


def request_cpu_devices(count: int) -> None:
    """Let jax make so many CPU devices. Raises ExecutionError if it runs with fewer."""
    if count == 1:
        return
    try:
        jax.config.update("jax_num_cpu_devices", count)
    except RuntimeError:
        present = len(jax.local_devices(backend="cpu"))
        if present < count:
            raise ExecutionError(
                f"CPU_NUM_DEVICES={count}, but this process already runs jax with {present} CPU devices: "
                "use the xla device before other JAX code, or give jax the same number of devices"
            ) from None
