"""Devices, steps, collectives, random state and the rest of the model-level API (alias `xm`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from xla_core.facade.arena import ToXlaTensorArena
from xla_core.facade.conversion import maybe_convert_to_cpu as _maybe_convert_to_cpu
from xla_core.facade.conversion import send_cpu_data_to_device
from xla_core.facade.devices import (
    get_xla_supported_devices,
    is_xla_tensor,
    parse_xla_device,
    set_replication,
    xla_device,
    xla_device_count,
    xla_device_hw,
    xla_device_kind,
    xla_real_devices,
    xla_replication_devices,
)
from xla_core.facade.devices import xla_real_device as _xla_real_device
from xla_core.facade.library import XLA_LIB, optimization_barrier_
from xla_core.facade.memory import MemoryInfo, get_memory_info
from xla_core.facade.model import (
    REDUCE_AND,
    REDUCE_MAX,
    REDUCE_MIN,
    REDUCE_MUL,
    REDUCE_OR,
    REDUCE_SUM,
    fork_rng,
    get_local_ordinal,
    get_ordinal,
    get_rng_state,
    is_master_ordinal,
    master_print,
    set_rng_state,
    unlazy,
    wait_device_ops,
    xrt_world_size,
)
from xla_core.facade.rate_tracker import RateTracker
from xla_core.facade.siblings import attribute as _attribute
from xla_core.facade.stablehlo import get_stablehlo, get_stablehlo_bytecode
from xla_core.facade.step import mark_step
from xla_core.facade.step_closures import DeviceContext, add_step_closure
from xla_core.facade.step_closures import device_context as _get_device_context
from xla_core.facade.step_closures import run_step_closures as _run_step_closures
from xla_core.facade.view_sharing import check_view_sharing

# Implemented by siblings, found by `__getattr__`.
CoalescingBuckets: type[Any]
_all_gather_using_all_reduce: Callable[..., Any]
_fetch_gradients: Callable[..., Any]
_get_all_reduce_token: Callable[..., Any]
all_gather: Callable[..., Any]
all_gather_bucketized: Callable[..., Any]
all_reduce: Callable[..., Any]
all_reduce_bucketized_gradients: Callable[..., Any]
all_to_all: Callable[..., Any]
broadcast_master_param: Callable[..., Any]
collective_broadcast: Callable[..., Any]
collective_permute: Callable[..., Any]
do_on_ordinals: Callable[..., Any]
mesh_reduce: Callable[..., Any]
optimizer_step: Callable[..., Any]
recv: Callable[..., Any]
reduce_gradients: Callable[..., Any]
reduce_scatter: Callable[..., Any]
reduce_scatter_bucketized: Callable[..., Any]
rendezvous: Callable[..., Any]
save: Callable[..., Any]
send: Callable[..., Any]
xla_rendezvous: Callable[..., Any]

__all__ = [
    "CoalescingBuckets",
    "DeviceContext",
    "MemoryInfo",
    "REDUCE_AND",
    "REDUCE_MAX",
    "REDUCE_MIN",
    "REDUCE_MUL",
    "REDUCE_OR",
    "REDUCE_SUM",
    "RateTracker",
    "ToXlaTensorArena",
    "XLA_LIB",
    "_all_gather_using_all_reduce",
    "_fetch_gradients",
    "_get_all_reduce_token",
    "_get_device_context",
    "_maybe_convert_to_cpu",
    "_run_step_closures",
    "_xla_real_device",
    "add_step_closure",
    "all_gather",
    "all_gather_bucketized",
    "all_reduce",
    "all_reduce_bucketized_gradients",
    "all_to_all",
    "broadcast_master_param",
    "check_view_sharing",
    "collective_broadcast",
    "collective_permute",
    "do_on_ordinals",
    "fork_rng",
    "get_local_ordinal",
    "get_memory_info",
    "get_ordinal",
    "get_rng_state",
    "get_stablehlo",
    "get_stablehlo_bytecode",
    "get_xla_supported_devices",
    "is_master_ordinal",
    "is_xla_tensor",
    "mark_step",
    "master_print",
    "mesh_reduce",
    "optimization_barrier_",
    "optimizer_step",
    "parse_xla_device",
    "recv",
    "reduce_gradients",
    "reduce_scatter",
    "reduce_scatter_bucketized",
    "rendezvous",
    "save",
    "send",
    "send_cpu_data_to_device",
    "set_replication",
    "set_rng_state",
    "unlazy",
    "wait_device_ops",
    "xla_device",
    "xla_device_count",
    "xla_device_hw",
    "xla_device_kind",
    "xla_real_devices",
    "xla_rendezvous",
    "xla_replication_devices",
    "xrt_world_size",
]


def __getattr__(name: str) -> Any:
    return _attribute(__name__, name)  # what siblings implement: collectives, rendezvous, save
