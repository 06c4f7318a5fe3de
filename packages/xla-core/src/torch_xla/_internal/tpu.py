"""Read a TPU host's environment."""

from __future__ import annotations

from xla_core.compat.tpu import (
    get_tpu_env,
    num_available_chips,
    num_available_devices,
    task_id,
    version,
    worker_hostnames,
    worker_id,
)

__all__ = [
    "get_tpu_env",
    "num_available_chips",
    "num_available_devices",
    "task_id",
    "version",
    "worker_hostnames",
    "worker_id",
]
