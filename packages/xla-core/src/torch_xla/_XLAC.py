"""Upstream's extension module: the names that client code calls, over our own runtime."""

from __future__ import annotations

from typing import Any

from xla_core.api.lookup import attribute as _attribute
from xla_core.xlac.cached_graphs import (
    _get_base_seed_as_tensor,
    _get_seed_info_id,
    _get_tensors_xla_device_data_node,
    _run_cached_graph,
    _xla_computation_cache_is_initialized,
    _xla_get_num_cached_compilation_graph,
    _xla_warm_up_cache,
)
from xla_core.xlac.devices import (
    _prepare_to_exit,
    _xla_device_kind,
    _xla_get_all_devices,
    _xla_get_default_device,
    _xla_get_default_device_ordinal,
    _xla_get_devices,
    _xla_get_replication_devices,
    _xla_get_replication_devices_count,
    _xla_get_runtime_devices,
    _xla_memory_info,
    _xla_num_devices,
    _xla_real_devices,
    _xla_runtime_is_initialized,
    _xla_set_default_device,
    _xla_set_replication_devices,
)
from xla_core.xlac.donation import (
    _get_buffer_donation,
    _set_buffer_donation,
    _xla_get_enable_alias_with_buffer_donor_config,
    _xla_set_enable_alias_with_buffer_donor_config,
)
from xla_core.xlac.metrics import (
    _xla_increment_counter,
)
from xla_core.xlac.stablehlo import (
    _get_stablehlo,
    _run_stablehlo,
)
from xla_core.xlac.switches import (
    _get_allow_execution,
    _get_git_revs,
    _get_ir_debug,
    _get_use_eager_mode,
    _set_allow_execution,
    _set_ir_debug,
    _set_use_eager_mode,
)
from xla_core.xlac.tensors import (
    _clear_pending_irs,
    _get_xla_tensor_dimension_size,
    _replace_xla_tensor,
    _unsafe_buffer_pointer,
    _xla_get_cpu_tensors,
    _xla_get_rng_seed,
    _xla_get_tensor_id,
    _xla_get_tensor_view_alias_id,
    _xla_optimization_barrier_,
    _xla_set_rng_seed,
    _xla_step_marker,
    _xla_sync_live_tensors,
    _xla_sync_multi,
    _xla_tensors_from_aten,
    _xla_wait_device_ops,
)
from xla_core.xlac.text import (
    _get_graph_hash,
    _get_tensors_handle,
    _get_xla_tensor_debug_info,
    _get_xla_tensor_shape_type,
    _get_xla_tensors_dot,
    _get_xla_tensors_hlo,
    _get_xla_tensors_hlo_proto,
    _get_xla_tensors_text,
    _xla_tensors_report,
)

__all__ = [
    "_clear_pending_irs",
    "_get_allow_execution",
    "_get_base_seed_as_tensor",
    "_get_buffer_donation",
    "_get_git_revs",
    "_get_graph_hash",
    "_get_ir_debug",
    "_get_seed_info_id",
    "_get_stablehlo",
    "_get_tensors_handle",
    "_get_tensors_xla_device_data_node",
    "_get_use_eager_mode",
    "_get_xla_tensor_debug_info",
    "_get_xla_tensor_dimension_size",
    "_get_xla_tensor_shape_type",
    "_get_xla_tensors_dot",
    "_get_xla_tensors_hlo",
    "_get_xla_tensors_hlo_proto",
    "_get_xla_tensors_text",
    "_prepare_to_exit",
    "_replace_xla_tensor",
    "_run_cached_graph",
    "_run_stablehlo",
    "_set_allow_execution",
    "_set_buffer_donation",
    "_set_ir_debug",
    "_set_use_eager_mode",
    "_unsafe_buffer_pointer",
    "_xla_computation_cache_is_initialized",
    "_xla_device_kind",
    "_xla_get_all_devices",
    "_xla_get_cpu_tensors",
    "_xla_get_default_device",
    "_xla_get_default_device_ordinal",
    "_xla_get_devices",
    "_xla_get_enable_alias_with_buffer_donor_config",
    "_xla_get_num_cached_compilation_graph",
    "_xla_get_replication_devices",
    "_xla_get_replication_devices_count",
    "_xla_get_rng_seed",
    "_xla_get_runtime_devices",
    "_xla_get_tensor_id",
    "_xla_get_tensor_view_alias_id",
    "_xla_increment_counter",
    "_xla_memory_info",
    "_xla_num_devices",
    "_xla_optimization_barrier_",
    "_xla_real_devices",
    "_xla_runtime_is_initialized",
    "_xla_set_default_device",
    "_xla_set_enable_alias_with_buffer_donor_config",
    "_xla_set_replication_devices",
    "_xla_set_rng_seed",
    "_xla_step_marker",
    "_xla_sync_live_tensors",
    "_xla_sync_multi",
    "_xla_tensors_from_aten",
    "_xla_tensors_report",
    "_xla_wait_device_ops",
    "_xla_warm_up_cache",
]


def __getattr__(name: str) -> Any:
    return _attribute(__name__, name)  # collectives, shardings, the profiler
