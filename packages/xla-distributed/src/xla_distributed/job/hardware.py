"""The devices of this host for each replica, without starting a client."""

from __future__ import annotations

import os
from pathlib import Path

import torch_xla.runtime as xr
from xla_core.abi.process import tpu_device_count
from xla_distributed import settings

GPUS = ("CUDA", "GPU", "ROCM")


def device_count() -> int:
    """The number of devices that this host has for replicas, one each."""
    kind = xr.device_type()
    if kind in GPUS:
        return settings.GPU_NUM_DEVICES.get() or len(_visible_gpus())
    if kind == "TPU":
        return max(1, tpu_device_count())
    return settings.CPU_NUM_DEVICES.get() or 1


def _visible_gpus() -> list[str]:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them."""
    chosen = settings.CUDA_VISIBLE_DEVICES.get()
    if chosen is not None:
        return [name for name in chosen.split(",") if name.strip()]
    return [str(number) for number, _ in enumerate(sorted(Path("/proc/driver/nvidia/gpus").glob("*")))]


def restrict(local_rank: int, local_size: int) -> None:
    """Let this process see its own device only. GPUs are chosen when the process connects (`connection.py`)."""
    if xr.device_type() != "TPU":
        return
    for name, text in tpu_variables(local_rank, local_size).items():
        os.environ.setdefault(name, text)


# Chips of one host in the order of its torus: how many a process has beside each other, and how many processes.
_BOUNDS = {1: "1,1,1", 4: "2,2,1", 8: "4,2,1"}
_FIRST_PORT = 8476


def tpu_variables(local_rank: int, local_size: int) -> dict[str, str]:
    """The variables by which libtpu gives one chip of this host to each of `local_size` processes.

    Source: jax's documentation of several processes on one TPU host.
    """
    if local_size == 1:
        return {}
    if local_size not in _BOUNDS:
        raise ValueError(f"a TPU host is shared by 1, 4 or 8 replicas, one for each chip, not by {local_size}")
    return {
        "TPU_CHIPS_PER_PROCESS_BOUNDS": "1,1,1",
        "TPU_PROCESS_BOUNDS": _BOUNDS[local_size],
        "TPU_VISIBLE_CHIPS": str(local_rank),
        "TPU_PROCESS_ADDRESSES": ",".join(f"localhost:{_FIRST_PORT + number}" for number in range(local_size)),
        "TPU_PROCESS_PORT": str(_FIRST_PORT + local_rank),
        "CLOUD_TPU_TASK_ID": str(local_rank),
    }
