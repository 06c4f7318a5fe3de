"""Processes and launchers where the releases from 2.0 to 2.4 had them; now in `torch_xla.runtime` and `torch_xla._internal.pjrt`."""

from torch_xla import runtime
from torch_xla.core import xla_model
from torch_xla.core.xla_model import broadcast_master_param as broadcast_master_param
from torch_xla.core.xla_model import xla_device as xla_device
from torch_xla.runtime import addressable_device_count as addressable_device_count
from torch_xla.runtime import device_type as device_type
from torch_xla.runtime import get_master_ip as get_master_ip
from torch_xla.runtime import global_device_count as global_device_count
from torch_xla.runtime import global_ordinal as global_ordinal
from torch_xla.runtime import host_index as host_index
from torch_xla.runtime import is_bf16_supported as is_bf16_supported
from torch_xla.runtime import local_device_count as local_device_count
from torch_xla.runtime import local_ordinal as local_ordinal
from torch_xla.runtime import local_process_count as local_process_count
from torch_xla.runtime import process_count as process_count
from torch_xla.runtime import process_index as process_index
from torch_xla.runtime import set_device_type as set_device_type
from torch_xla.runtime import using_pjrt as using_pjrt
from torch_xla.runtime import world_size as world_size
from xla_distributed.job.launch import initialize_multiprocess as initialize_multiprocess
from xla_distributed.job.launch import initialize_singleprocess as initialize_singleprocess
from xla_distributed.job.launch import spawn as spawn
from xla_distributed.job.replicas import run_multiprocess as run_multiprocess
from xla_distributed.job.thread_replicas import spawn_threads as spawn_threads

device_attributes = runtime.runtime_device_attributes
global_device_attributes = runtime.global_runtime_device_attributes
rendezvous = xla_model.xla_rendezvous
del runtime, xla_model

__all__ = [name for name in dir() if not name.startswith("__")]
