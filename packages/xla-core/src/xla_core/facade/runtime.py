"""`torch_xla.runtime`: hardware, processes, replicas, SPMD mode, the compilation cache."""

from __future__ import annotations

import gc
import socket
import warnings
from dataclasses import replace
from typing import Any

import torch

from xla_core import config
from xla_core.compile import disk
from xla_core.facade import devices, siblings, tpu
from xla_core.facade.deprecation import warn_once
from xla_core.facade.modules import xm, xr
from xla_core.facade.replicas import is_replica, joined, place
from xla_core.frontend import spread
from xla_core.frontend.tensor import XLATensor
from xla_core.ir.layout import spans_devices
from xla_core.runtime import client, executor
from xla_core.runtime.topology import set_topology, topology


def device_type() -> str | None:
    """The hardware kind (`CPU`, `TPU`, …) from `PJRT_DEVICE`, or the default chosen for it. Starts no client."""
    return client.device_kind()


def set_device_type(pjrt_device: str) -> None:
    """Choose the hardware kind. Raises RuntimeError when the client already runs on another kind."""
    wanted = pjrt_device.split("_")[0].upper()
    if client.started():
        if wanted != client.client().kind:
            raise RuntimeError(f"the runtime already runs on {client.client().kind}, too late for {pjrt_device}: choose before first use")
        return
    config.PJRT_DEVICE.set(pjrt_device)


def using_pjrt() -> bool:
    """True: there is no other runtime."""
    return True


def is_bf16_supported() -> bool:
    """True: XLA computes bfloat16 everywhere."""
    return True


def local_process_count() -> int:
    """Processes of the job on this host."""
    return place().local_count


def process_count() -> int:
    """Processes of the job."""
    return place().process_count


def process_index() -> int:
    """Number of this process in the job."""
    return place().process_index


def host_index() -> int:
    """Number of this host, if all hosts run equally many processes."""
    return place().process_index // place().local_count


def addressable_runtime_device_count() -> int:
    """Physical devices that this process sees, also under SPMD. On the CPU, no client is started for it."""
    return client.physical_device_count()


def addressable_device_count() -> int:
    """Devices that this process sees; 1 under SPMD."""
    return 1 if xr().is_spmd() else addressable_runtime_device_count()


def local_device_count() -> int:
    """Devices of the job on this host, if all processes have equally many."""
    return int(xr().local_process_count() * xr().addressable_device_count())


def global_runtime_device_count() -> int:
    """Physical devices of the whole job, also under SPMD."""
    return len(xr().global_runtime_device_attributes())


def global_device_count() -> int:
    """Devices over all processes and hosts; 1 under SPMD."""
    return 1 if xr().is_spmd() else int(xr().global_runtime_device_count())


def world_size() -> int:
    """Number of replicas."""
    return (len(joined()) or int(xr().global_device_count())) if is_replica() else 1


def global_ordinal() -> int:
    """Number of this replica; 0 if there is only one."""
    if not is_replica():
        return 0
    mine = devices.xla_real_device(client.current_recorder().device)
    if mine in joined():
        return joined().index(mine)
    return int(place().process_index * xr().addressable_device_count()) + client.current_index()


def local_ordinal() -> int:
    """Number of this replica on its host."""
    if xr().is_spmd():
        return place().local_rank
    return int(place().local_rank * xr().addressable_device_count()) + client.current_index()


def global_runtime_device_attributes() -> list[dict[str, Any]]:
    """One dict per device of the job: `name`; on TPU also `coords`, `core_on_chip`, `num_cores`; of several slices `slice_index`."""
    local = client.client().devices
    count = place().process_count
    known = local if count == 1 else local[0].client.devices()
    if len(known) != count * len(local):  # the processes are not connected (yet): equal shares
        known = list(local) * count
    found = [devices.attributes(device, number) for number, device in enumerate(known)]
    if len({attributes.get("slice_index") for attributes in found}) == 1:  # jax numbers a slice that is the only one as well
        for attributes in found:
            attributes.pop("slice_index", None)
    return found


def runtime_device_attributes(device: torch.device | str) -> dict[str, Any]:
    """The attributes of the device behind `xla:<n>` or a real name such as `TPU:1`. Raises RuntimeError for neither."""
    name = device if isinstance(device, str) and devices.parse_real_name(device) else xm()._xla_real_device(device)
    for attributes in xr().global_runtime_device_attributes():
        if attributes["name"] == name:
            return dict(attributes)
    raise RuntimeError(f"the job has no device {name}")


def get_master_ip() -> str:
    """Address of the host of process 0: discovered on TPU, else `MASTER_ADDR`, else 127.0.0.1."""
    if device_type() == "TPU":
        hosts = tpu.worker_hostnames()
        if hosts:
            return socket.gethostbyname(hosts[0])
    return config.MASTER_ADDR.get() or "127.0.0.1"


def is_spmd() -> bool:
    """Whether one virtual device stands for all physical ones."""
    return config.USE_SPMD.get()


class _Mode:
    """Whether `use_spmd` of this process set the variable."""

    ours = False


def use_spmd(auto: bool | None = False) -> None:
    """Switch the process to SPMD mode: `xla:0` stands for all devices; the compiler splits programs over them.

    auto: without a pass that chooses shardings, tensors without annotation are replicated (one warning says so).
    """
    siblings.demand("torch_xla.runtime.use_spmd", siblings.SPMD)
    if config.USE_SPMD.is_set() and not _Mode.ours:
        warnings.warn("XLA_USE_SPMD is already set: torch_xla.runtime.use_spmd() alone is enough", stacklevel=2)
    if not config.USE_SPMD.get() and _tensors_exist():
        warnings.warn("there are xla tensors from before SPMD mode: they count as replicated", stacklevel=2)
    if auto:
        warn_once("use_spmd(auto=True)", "use_spmd(auto=True): no pass chooses shardings; tensors without an annotation are replicated")
    config.USE_SPMD.set(True)
    _Mode.ours = True
    set_topology(replace(topology(), spmd=True))
    if client.started() and not spans_devices(client.client().homes[0]):
        client.set_current_index(0)
        spread.spread_data(client.spread())


def _tensors_exist() -> bool:
    return client.started() and any(type(found) is XLATensor for found in gc.get_objects())


def initialize_cache(path: str, readonly: bool = False) -> None:
    """Keep compiled programs in the folder `path`, and look them up there.

    readonly: look up only. Raises AssertionError after the first computation of the process.
    """
    if len(executor.programs()):
        raise AssertionError("initialize_cache must come before the first computation: call it at the start of the program")
    disk.configure(path, readonly)


def get_num_cached_compilation_graph() -> int:
    """Compiled programs in memory."""
    return len(executor.programs())
