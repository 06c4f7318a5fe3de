"""Processes and launchers where the releases from 2.0 to 2.4 had them; now in `torch_xla.runtime` and `torch_xla._internal.pjrt`."""

from __future__ import annotations

from torch_xla.core.xla_model import broadcast_master_param, xla_device
from torch_xla.core.xla_model import xla_rendezvous as rendezvous
from torch_xla.runtime import (
    addressable_device_count,
    device_type,
    get_master_ip,
    global_device_count,
    global_ordinal,
    host_index,
    is_bf16_supported,
    local_device_count,
    local_ordinal,
    local_process_count,
    process_count,
    process_index,
    set_device_type,
    using_pjrt,
    world_size,
)
from torch_xla.runtime import global_runtime_device_attributes as global_device_attributes
from torch_xla.runtime import runtime_device_attributes as device_attributes
from xla_distributed.job.launch import initialize_multiprocess, initialize_singleprocess, spawn
from xla_distributed.job.replicas import run_multiprocess
from xla_distributed.job.thread_replicas import spawn_threads

__all__ = [
    "addressable_device_count",
    "broadcast_master_param",
    "device_attributes",
    "device_type",
    "get_master_ip",
    "global_device_attributes",
    "global_device_count",
    "global_ordinal",
    "host_index",
    "initialize_multiprocess",
    "initialize_singleprocess",
    "is_bf16_supported",
    "local_device_count",
    "local_ordinal",
    "local_process_count",
    "process_count",
    "process_index",
    "rendezvous",
    "run_multiprocess",
    "set_device_type",
    "spawn",
    "spawn_threads",
    "using_pjrt",
    "world_size",
    "xla_device",
]
