"""Devices, steps, collectives, random state and the rest of the model-level API (alias `xm`)."""

from __future__ import annotations

from functools import partial as _partial

from xla_core.api.arena import ToXlaTensorArena
from xla_core.api.conversion import maybe_convert_to_cpu as _maybe_convert_to_cpu
from xla_core.api.conversion import send_cpu_data_to_device
from xla_core.api.devices import (
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
from xla_core.api.devices import xla_real_device as _xla_real_device
from xla_core.api.library import XLA_LIB, optimization_barrier_
from xla_core.api.lookup import attribute as _attribute
from xla_core.api.lookup import names_of as _names_of
from xla_core.api.memory import MemoryInfo, get_memory_info
from xla_core.api.model import (
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
from xla_core.api.step import mark_step
from xla_core.api.step_closures import DeviceContext, add_step_closure
from xla_core.api.step_closures import device_context as _get_device_context
from xla_core.api.step_closures import run_step_closures as _run_step_closures
from xla_core.features.export.stablehlo import get_stablehlo, get_stablehlo_bytecode
from xla_core.legacy.rate_tracker import RateTracker
from xla_core.legacy.view_sharing import check_view_sharing

__all__ = [
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
    "_get_device_context",
    "_maybe_convert_to_cpu",
    "_run_step_closures",
    "_xla_real_device",
    "add_step_closure",
    "check_view_sharing",
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
    "optimization_barrier_",
    "parse_xla_device",
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
    "xla_replication_devices",
    "xrt_world_size",
    *_names_of(__name__),  # implemented by other distributions, found by `__getattr__`
]

__getattr__ = _partial(_attribute, __name__)  # what plugins implement: collectives, rendezvous, save
