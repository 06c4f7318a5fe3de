"""Replicas: how many there are, which one this thread is, and their devices."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from xla_core.api import replicas
from xla_core.api.devices import get_xla_supported_devices, local_index, parse_real_name, xla_real_device, xla_real_devices
from xla_core.api.hardware import addressable_runtime_device_count, global_runtime_device_count
from xla_core.api.processes import local_process_count
from xla_core.api.replicas import is_replica, joined, place
from xla_core.api.spmd_mode import is_spmd
from xla_core.api.user_modules import xr
from xla_core.base.budgets import budget
from xla_core.engine.runtime import client


@budget()
def addressable_device_count() -> int:
    """Devices that this process sees; 1 under SPMD."""
    return 1 if xr(is_spmd)() else addressable_runtime_device_count()


@budget()
def local_device_count() -> int:
    """Devices of the job on this host, if all processes have equally many."""
    return int(xr(local_process_count)() * xr(addressable_device_count)())


@budget()
def global_device_count() -> int:
    """Devices over all processes and hosts; 1 under SPMD."""
    return 1 if xr(is_spmd)() else int(xr(global_runtime_device_count)())


@budget()
def world_size() -> int:
    """The number of replicas of the job: one per device of each process; 1 under SPMD, and in a process that belongs to no job."""
    return (len(joined()) or int(xr(global_device_count)())) if is_replica() else 1


@budget()
def global_ordinal() -> int:
    """The number of this replica in the job, from 0; 0 if there is only one."""
    if not is_replica():
        return 0
    mine = xla_real_device(client.current_recorder().device)
    if mine in joined():
        return joined().index(mine)
    return int(place().process_index * xr(addressable_device_count)()) + client.current_index()


@budget()
def local_ordinal() -> int:
    """The number of this replica among those of its host, from 0; under SPMD, that of the process."""
    if xr(is_spmd)():
        return place().local_rank
    return int(place().local_rank * xr(addressable_device_count)()) + client.current_index()


@budget()
def xla_replication_devices(local_devices: Sequence[torch.device | str] | None = None) -> list[str]:
    """Real names of all devices of the job, in order of ordinals.

    local_devices: must be all devices of this process, which None stands for. Raises RuntimeError if they are not, or mix kinds.
    """
    given = [str(one) for one in (get_xla_supported_devices() if local_devices is None else local_devices) or []]
    real = [name if parse_real_name(name) else xla_real_device(name) for name in given]
    kinds = {name.partition(":")[0] for name in real}
    if len(kinds) > 1:
        raise RuntimeError(f"replication devices are of one kind, got {', '.join(sorted(kinds))}")
    if sorted(real) != sorted(xla_real_devices()):
        raise RuntimeError(f"replication devices must be all devices of this process ({', '.join(xla_real_devices())}), got {real}")
    return [f"{client.client().kind}:{number}" for number in range(xr(global_runtime_device_count)())]


@budget()
def set_replication(device: torch.device | str, devices: Sequence[str] | None) -> None:
    """Join the replica set of the real `devices` with `device` as this thread's default; none: run as the only replica."""
    client.set_current_index(local_index(device))
    replicas.join(devices)
