"""Read a TPU host's environment and metadata, and divide its chips among processes."""

from xla_distributed.job.tpu import gce_metadata, host, slices, topology
from xla_distributed.job.tpu.host import TpuEnv as TpuEnv
from xla_distributed.job.tpu.host import build_tpu_env_from_vars as build_tpu_env_from_vars
from xla_distributed.job.tpu.host import get_tpu_env as get_tpu_env
from xla_distributed.job.tpu.host import get_tpu_type as get_tpu_type
from xla_distributed.job.tpu.host import get_worker_ips as get_worker_ips
from xla_distributed.job.tpu.host import num_available_chips as num_available_chips
from xla_distributed.job.tpu.host import num_available_devices as num_available_devices
from xla_distributed.job.tpu.host import num_expected_global_devices as num_expected_global_devices
from xla_distributed.job.tpu.host import num_local_processes as num_local_processes
from xla_distributed.job.tpu.host import num_logical_cores_per_chip as num_logical_cores_per_chip
from xla_distributed.job.tpu.host import num_tpu_workers as num_tpu_workers
from xla_distributed.job.tpu.host import process_bounds_size as process_bounds_size
from xla_distributed.job.tpu.host import task_id as task_id
from xla_distributed.job.tpu.host import version as version
from xla_distributed.job.tpu.host import worker_hostnames as worker_hostnames
from xla_distributed.job.tpu.host import worker_id as worker_id
from xla_distributed.job.tpu.plugin import TpuPlugin as TpuPlugin
from xla_distributed.job.tpu.slices import MeshShape as MeshShape
from xla_distributed.job.tpu.topology import configure_one_chip_topology as configure_one_chip_topology
from xla_distributed.job.tpu.topology import configure_topology as configure_topology
from xla_distributed.job.tpu.topology import discover_master_worker_ip as discover_master_worker_ip

_ACCELERATOR_TYPE_TO_HOST_BOUNDS = slices.ACCELERATOR_TYPE_TO_HOST_BOUNDS
_GCE_METADATA_ROOT_URL = gce_metadata.ROOT_URL
_GOOGLE_PCI_VENDOR_ID = host.GOOGLE_PCI_VENDOR_ID
_TPU_PCI_DEVICE_IDS = host.TPU_PCI_DEVICE_IDS
_get_metadata = gce_metadata.get_metadata
_spmd_find_master_ip = topology.spmd_find_master_ip
_using_env_vars = host.using_env_vars
del gce_metadata, host, slices, topology

__all__ = [name for name in dir() if not name.startswith("__")]
