"""Hardware, processes, replicas and modes (alias `xr`)."""

from xla_core.api.devices import runtime_device_attributes as runtime_device_attributes
from xla_core.api.devices import xla_device as xla_device
from xla_core.api.hardware import addressable_runtime_device_count as addressable_runtime_device_count
from xla_core.api.hardware import device_type as device_type
from xla_core.api.hardware import global_device_count as global_device_count
from xla_core.api.hardware import global_runtime_device_attributes as global_runtime_device_attributes
from xla_core.api.hardware import global_runtime_device_count as global_runtime_device_count
from xla_core.api.hardware import is_bf16_supported as is_bf16_supported
from xla_core.api.hardware import set_device_type as set_device_type
from xla_core.api.hardware import using_pjrt as using_pjrt
from xla_core.api.job import addressable_device_count as addressable_device_count
from xla_core.api.job import get_master_ip as get_master_ip
from xla_core.api.job import global_ordinal as global_ordinal
from xla_core.api.job import host_index as host_index
from xla_core.api.job import is_spmd as is_spmd
from xla_core.api.job import local_device_count as local_device_count
from xla_core.api.job import local_ordinal as local_ordinal
from xla_core.api.job import local_process_count as local_process_count
from xla_core.api.job import process_count as process_count
from xla_core.api.job import process_index as process_index
from xla_core.api.job import use_spmd as use_spmd
from xla_core.api.job import world_size as world_size
from xla_core.api.program_cache import get_num_cached_compilation_graph as get_num_cached_compilation_graph
from xla_core.api.program_cache import initialize_cache as initialize_cache

__all__ = [name for name in dir() if not name.startswith("__")]
