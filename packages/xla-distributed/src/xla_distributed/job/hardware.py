"""The devices of this host for each replica, without starting a client."""

from __future__ import annotations

from pathlib import Path

from xla_core.abi.process import device_kind
from xla_core.abi.settings import CPU_NUM_DEVICES
from xla_distributed import settings
from xla_distributed.job.tpu.host import num_visible_chips
from xla_distributed.job.tpu.topology import configure_topology

GPUS = ("CUDA", "GPU", "ROCM")


def device_count() -> int:
    """The number of devices that this host has for replicas, one each; on TPU of chips, which processes cannot share."""
    kind = device_kind()
    if kind in GPUS:
        return settings.GPU_NUM_DEVICES.get() or len(_visible_gpus())
    if kind == "TPU":
        return max(1, num_visible_chips())
    return CPU_NUM_DEVICES.get()


def _visible_gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    chosen = settings.CUDA_VISIBLE_DEVICES.get()
    if chosen is not None:
        return [name for name in chosen.split(",") if name.strip()]
    return [str(index) for index, _ in enumerate(sorted(Path("/proc/driver/nvidia/gpus").glob("*")))]


def restrict(local_rank: int, local_size: int) -> None:
    """Let this process see its own device only. GPUs are chosen when the process connects (`connection.py`).

    Raises ValueError if a TPU host has another number of chips than processes, and these are several.
    """
    if device_kind() == "TPU":
        configure_topology(local_rank, local_size)
