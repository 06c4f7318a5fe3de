"""Read a TPU host's environment and metadata, and divide its chips among processes."""

from __future__ import annotations

from xla_distributed.job.tpu.gce_metadata import ROOT_URL as _GCE_METADATA_ROOT_URL
from xla_distributed.job.tpu.gce_metadata import get_metadata as _get_metadata
from xla_distributed.job.tpu.host import GOOGLE_PCI_VENDOR_ID as _GOOGLE_PCI_VENDOR_ID
from xla_distributed.job.tpu.host import TPU_PCI_DEVICE_IDS as _TPU_PCI_DEVICE_IDS
from xla_distributed.job.tpu.host import (
    TpuEnv,
    build_tpu_env_from_vars,
    get_tpu_env,
    get_tpu_type,
    get_worker_ips,
    num_available_chips,
    num_available_devices,
    num_expected_global_devices,
    num_local_processes,
    num_logical_cores_per_chip,
    num_tpu_workers,
    process_bounds_size,
    task_id,
    version,
    worker_hostnames,
    worker_id,
)
from xla_distributed.job.tpu.host import using_env_vars as _using_env_vars
from xla_distributed.job.tpu.plugin import TpuPlugin
from xla_distributed.job.tpu.slices import ACCELERATOR_TYPE_TO_HOST_BOUNDS as _ACCELERATOR_TYPE_TO_HOST_BOUNDS
from xla_distributed.job.tpu.slices import MeshShape
from xla_distributed.job.tpu.topology import configure_one_chip_topology, configure_topology, discover_master_worker_ip
from xla_distributed.job.tpu.topology import spmd_find_master_ip as _spmd_find_master_ip

__all__ = [
    "MeshShape",
    "TpuEnv",
    "TpuPlugin",
    "_ACCELERATOR_TYPE_TO_HOST_BOUNDS",
    "_GCE_METADATA_ROOT_URL",
    "_GOOGLE_PCI_VENDOR_ID",
    "_TPU_PCI_DEVICE_IDS",
    "_get_metadata",
    "_spmd_find_master_ip",
    "_using_env_vars",
    "build_tpu_env_from_vars",
    "configure_one_chip_topology",
    "configure_topology",
    "discover_master_worker_ip",
    "get_tpu_env",
    "get_tpu_type",
    "get_worker_ips",
    "num_available_chips",
    "num_available_devices",
    "num_expected_global_devices",
    "num_local_processes",
    "num_logical_cores_per_chip",
    "num_tpu_workers",
    "process_bounds_size",
    "task_id",
    "version",
    "worker_hostnames",
    "worker_id",
]
