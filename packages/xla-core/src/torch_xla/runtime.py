"""Hardware, processes, replicas and modes (alias `xr`)."""

from __future__ import annotations

from xla_core.api.devices import runtime_device_attributes, xla_device
from xla_core.api.hardware import (
    addressable_runtime_device_count,
    device_type,
    global_device_count,
    global_runtime_device_attributes,
    global_runtime_device_count,
    is_bf16_supported,
    set_device_type,
    using_pjrt,
)
from xla_core.api.job import (
    addressable_device_count,
    get_master_ip,
    global_ordinal,
    host_index,
    is_spmd,
    local_device_count,
    local_ordinal,
    local_process_count,
    process_count,
    process_index,
    use_spmd,
    world_size,
)
from xla_core.api.program_cache import get_num_cached_compilation_graph, initialize_cache

__all__ = [
    "addressable_device_count",
    "addressable_runtime_device_count",
    "device_type",
    "get_master_ip",
    "get_num_cached_compilation_graph",
    "global_device_count",
    "global_ordinal",
    "global_runtime_device_attributes",
    "global_runtime_device_count",
    "host_index",
    "initialize_cache",
    "is_bf16_supported",
    "is_spmd",
    "local_device_count",
    "local_ordinal",
    "local_process_count",
    "process_count",
    "process_index",
    "runtime_device_attributes",
    "set_device_type",
    "use_spmd",
    "using_pjrt",
    "world_size",
    "xla_device",
]
