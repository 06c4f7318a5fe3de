"""Upstream's extension module: the names that client code calls, over our own runtime."""

from xla_core.api import device_plugins, precision
from xla_core.api.device_plugins import PjRtPlugin as PjRtPlugin
from xla_core.features.amp.steps import _xla_adam_optimizer_step_ as _xla_adam_optimizer_step_
from xla_core.features.amp.steps import _xla_sgd_optimizer_step_ as _xla_sgd_optimizer_step_
from xla_core.features.export.custom_call import _xla_custom_call as _xla_custom_call
from xla_core.features.export.custom_call import _xla_register_custom_call_target as _xla_register_custom_call_target
from xla_core.features.export.custom_call import _xla_tpu_custom_call as _xla_tpu_custom_call
from xla_core.features.export.markers import _xla_mark_tensor as _xla_mark_tensor
from xla_core.features.kernels.quantized import _xla_cast_int4 as _xla_cast_int4
from xla_core.features.kernels.quantized import _xla_dequantize_tensor as _xla_dequantize_tensor
from xla_core.features.kernels.quantized import _xla_dot_general as _xla_dot_general
from xla_core.features.kernels.quantized import _xla_quantize_tensor as _xla_quantize_tensor
from xla_core.legacy import dynamic_reshape
from xla_core.legacy.builder.nodes import XlaBuilder as XlaBuilder
from xla_core.legacy.builder.nodes import XlaComputation as XlaComputation
from xla_core.legacy.builder.nodes import XlaOp as XlaOp
from xla_core.legacy.builder.running import _is_placecholder as _is_placecholder
from xla_core.legacy.builder.running import _xla_computation_text as _xla_computation_text
from xla_core.legacy.builder.running import _xla_create_placeholder_tensor as _xla_create_placeholder_tensor
from xla_core.legacy.builder.running import _xla_op_build as _xla_op_build
from xla_core.legacy.builder.running import _xla_op_builder as _xla_op_builder
from xla_core.legacy.builder.running import _xla_op_computation_from_module_proto as _xla_op_computation_from_module_proto
from xla_core.legacy.builder.running import _xla_op_create as _xla_op_create
from xla_core.legacy.builder.running import _xla_op_create_builder as _xla_op_create_builder
from xla_core.legacy.builder.running import _xla_op_param as _xla_op_param
from xla_core.legacy.builder.running import _xla_op_shape as _xla_op_shape
from xla_core.legacy.builder.running import _xla_op_tensor_shape as _xla_op_tensor_shape
from xla_core.legacy.builder.running import _xla_user_computation as _xla_user_computation
from xla_core.legacy.dynamic_reshape import _xla_mark_dynamic as _xla_mark_dynamic
from xla_core.legacy.xlac.cached_graphs import _get_base_seed_as_tensor as _get_base_seed_as_tensor
from xla_core.legacy.xlac.cached_graphs import _get_seed_info_id as _get_seed_info_id
from xla_core.legacy.xlac.cached_graphs import _get_tensors_xla_device_data_node as _get_tensors_xla_device_data_node
from xla_core.legacy.xlac.cached_graphs import _run_cached_graph as _run_cached_graph
from xla_core.legacy.xlac.cached_graphs import _xla_computation_cache_is_initialized as _xla_computation_cache_is_initialized
from xla_core.legacy.xlac.cached_graphs import _xla_get_num_cached_compilation_graph as _xla_get_num_cached_compilation_graph
from xla_core.legacy.xlac.cached_graphs import _xla_warm_up_cache as _xla_warm_up_cache
from xla_core.legacy.xlac.collectives import _get_all_reduce_token as _get_all_reduce_token
from xla_core.legacy.xlac.collectives import _set_all_reduce_token as _set_all_reduce_token
from xla_core.legacy.xlac.collectives import _xla_all_gather as _xla_all_gather
from xla_core.legacy.xlac.collectives import _xla_all_gather_coalesced as _xla_all_gather_coalesced
from xla_core.legacy.xlac.collectives import _xla_all_gather_coalesced_out as _xla_all_gather_coalesced_out
from xla_core.legacy.xlac.collectives import _xla_all_gather_out as _xla_all_gather_out
from xla_core.legacy.xlac.collectives import _xla_all_reduce as _xla_all_reduce
from xla_core.legacy.xlac.collectives import _xla_all_reduce_inplace as _xla_all_reduce_inplace
from xla_core.legacy.xlac.collectives import _xla_all_to_all as _xla_all_to_all
from xla_core.legacy.xlac.collectives import _xla_collective_permute as _xla_collective_permute
from xla_core.legacy.xlac.collectives import _xla_recv as _xla_recv
from xla_core.legacy.xlac.collectives import _xla_reduce_scatter as _xla_reduce_scatter
from xla_core.legacy.xlac.collectives import _xla_reduce_scatter_coalesced as _xla_reduce_scatter_coalesced
from xla_core.legacy.xlac.collectives import _xla_reduce_scatter_coalesced_out as _xla_reduce_scatter_coalesced_out
from xla_core.legacy.xlac.collectives import _xla_reduce_scatter_out as _xla_reduce_scatter_out
from xla_core.legacy.xlac.collectives import _xla_send as _xla_send
from xla_core.legacy.xlac.collectives import _xla_spmd_all_reduce as _xla_spmd_all_reduce
from xla_core.legacy.xlac.collectives import _xla_spmd_reduce_scatter as _xla_spmd_reduce_scatter
from xla_core.legacy.xlac.devices import _init_computation_client as _init_computation_client
from xla_core.legacy.xlac.devices import _init_xla_lazy_backend as _init_xla_lazy_backend
from xla_core.legacy.xlac.devices import _prepare_to_exit as _prepare_to_exit
from xla_core.legacy.xlac.devices import _xla_device_kind as _xla_device_kind
from xla_core.legacy.xlac.devices import _xla_force_spmd_device as _xla_force_spmd_device
from xla_core.legacy.xlac.devices import _xla_get_all_device_attributes as _xla_get_all_device_attributes
from xla_core.legacy.xlac.devices import _xla_get_all_devices as _xla_get_all_devices
from xla_core.legacy.xlac.devices import _xla_get_all_runtime_devices as _xla_get_all_runtime_devices
from xla_core.legacy.xlac.devices import _xla_get_auto_sharding as _xla_get_auto_sharding
from xla_core.legacy.xlac.devices import _xla_get_default_device as _xla_get_default_device
from xla_core.legacy.xlac.devices import _xla_get_default_device_ordinal as _xla_get_default_device_ordinal
from xla_core.legacy.xlac.devices import _xla_get_device_attributes as _xla_get_device_attributes
from xla_core.legacy.xlac.devices import _xla_get_device_hw_type as _xla_get_device_hw_type
from xla_core.legacy.xlac.devices import _xla_get_device_ordinal as _xla_get_device_ordinal
from xla_core.legacy.xlac.devices import _xla_get_devices as _xla_get_devices
from xla_core.legacy.xlac.devices import _xla_get_num_processes as _xla_get_num_processes
from xla_core.legacy.xlac.devices import _xla_get_platform_version as _xla_get_platform_version
from xla_core.legacy.xlac.devices import _xla_get_process_index as _xla_get_process_index
from xla_core.legacy.xlac.devices import _xla_get_replication_devices as _xla_get_replication_devices
from xla_core.legacy.xlac.devices import _xla_get_replication_devices_count as _xla_get_replication_devices_count
from xla_core.legacy.xlac.devices import _xla_get_runtime_devices as _xla_get_runtime_devices
from xla_core.legacy.xlac.devices import _xla_get_spmd_config_is_locked as _xla_get_spmd_config_is_locked
from xla_core.legacy.xlac.devices import _xla_memory_info as _xla_memory_info
from xla_core.legacy.xlac.devices import _xla_num_devices as _xla_num_devices
from xla_core.legacy.xlac.devices import _xla_num_global_devices as _xla_num_global_devices
from xla_core.legacy.xlac.devices import _xla_num_runtime_devices as _xla_num_runtime_devices
from xla_core.legacy.xlac.devices import _xla_real_devices as _xla_real_devices
from xla_core.legacy.xlac.devices import _xla_runtime_is_initialized as _xla_runtime_is_initialized
from xla_core.legacy.xlac.devices import _xla_set_auto_sharding as _xla_set_auto_sharding
from xla_core.legacy.xlac.devices import _xla_set_default_device as _xla_set_default_device
from xla_core.legacy.xlac.devices import _xla_set_replication_devices as _xla_set_replication_devices
from xla_core.legacy.xlac.donation import _get_buffer_donation as _get_buffer_donation
from xla_core.legacy.xlac.donation import _set_buffer_donation as _set_buffer_donation
from xla_core.legacy.xlac.donation import _xla_get_enable_alias_with_buffer_donor_config as _xla_get_enable_alias_with_buffer_donor_config
from xla_core.legacy.xlac.donation import _xla_set_enable_alias_with_buffer_donor_config as _xla_set_enable_alias_with_buffer_donor_config
from xla_core.legacy.xlac.dynamic_shapes import _dynamic_shape_detector_end_session as _dynamic_shape_detector_end_session
from xla_core.legacy.xlac.dynamic_shapes import (
    _dynamic_shape_detector_get_max_different_graphs as _dynamic_shape_detector_get_max_different_graphs,
)
from xla_core.legacy.xlac.dynamic_shapes import _dynamic_shape_detector_remove_session as _dynamic_shape_detector_remove_session
from xla_core.legacy.xlac.dynamic_shapes import (
    _dynamic_shape_detector_set_max_different_graphs as _dynamic_shape_detector_set_max_different_graphs,
)
from xla_core.legacy.xlac.dynamic_shapes import _dynamic_shape_detector_start_session as _dynamic_shape_detector_start_session
from xla_core.legacy.xlac.metrics import _clear_xla_counters as _clear_xla_counters
from xla_core.legacy.xlac.metrics import _clear_xla_metrics as _clear_xla_metrics
from xla_core.legacy.xlac.metrics import _get_executed_fallback_ops as _get_executed_fallback_ops
from xla_core.legacy.xlac.metrics import _xla_counter_names as _xla_counter_names
from xla_core.legacy.xlac.metrics import _xla_counter_value as _xla_counter_value
from xla_core.legacy.xlac.metrics import _xla_increment_counter as _xla_increment_counter
from xla_core.legacy.xlac.metrics import _xla_metric_data as _xla_metric_data
from xla_core.legacy.xlac.metrics import _xla_metric_names as _xla_metric_names
from xla_core.legacy.xlac.of_siblings import _get_xla_sharding_specs as _get_xla_sharding_specs
from xla_core.legacy.xlac.of_siblings import attribute as _attribute
from xla_core.legacy.xlac.preemption import _activate_preemption_sync_manager as _activate_preemption_sync_manager
from xla_core.legacy.xlac.preemption import _deactivate_preemption_sync_manager as _deactivate_preemption_sync_manager
from xla_core.legacy.xlac.preemption import _ensure_xla_coordinator_initialized as _ensure_xla_coordinator_initialized
from xla_core.legacy.xlac.preemption import _sync_point_reached as _sync_point_reached
from xla_core.legacy.xlac.stablehlo import _get_stablehlo as _get_stablehlo
from xla_core.legacy.xlac.stablehlo import _run_stablehlo as _run_stablehlo
from xla_core.legacy.xlac.switches import _get_allow_execution as _get_allow_execution
from xla_core.legacy.xlac.switches import _get_current_graph_name as _get_current_graph_name
from xla_core.legacy.xlac.switches import _get_git_revs as _get_git_revs
from xla_core.legacy.xlac.switches import _get_ir_debug as _get_ir_debug
from xla_core.legacy.xlac.switches import _get_use_eager_mode as _get_use_eager_mode
from xla_core.legacy.xlac.switches import _get_xla_all_numbers_special_scalars as _get_xla_all_numbers_special_scalars
from xla_core.legacy.xlac.switches import _get_xla_enable_device_data_cache as _get_xla_enable_device_data_cache
from xla_core.legacy.xlac.switches import _get_xla_handle_special_scalars as _get_xla_handle_special_scalars
from xla_core.legacy.xlac.switches import _set_allow_execution as _set_allow_execution
from xla_core.legacy.xlac.switches import _set_current_graph_name as _set_current_graph_name
from xla_core.legacy.xlac.switches import _set_ir_debug as _set_ir_debug
from xla_core.legacy.xlac.switches import _set_use_eager_mode as _set_use_eager_mode
from xla_core.legacy.xlac.switches import _set_xla_all_numbers_special_scalars as _set_xla_all_numbers_special_scalars
from xla_core.legacy.xlac.switches import _set_xla_enable_device_data_cache as _set_xla_enable_device_data_cache
from xla_core.legacy.xlac.switches import _set_xla_handle_special_scalars as _set_xla_handle_special_scalars
from xla_core.legacy.xlac.tensors import IrValue as IrValue
from xla_core.legacy.xlac.tensors import _check_device_tensor_need_materialization as _check_device_tensor_need_materialization
from xla_core.legacy.xlac.tensors import _check_tensor_need_materialization as _check_tensor_need_materialization
from xla_core.legacy.xlac.tensors import _clear_pending_irs as _clear_pending_irs
from xla_core.legacy.xlac.tensors import _from_dlpack as _from_dlpack
from xla_core.legacy.xlac.tensors import _get_xla_tensor_dimension_size as _get_xla_tensor_dimension_size
from xla_core.legacy.xlac.tensors import _on_ready_callback as _on_ready_callback
from xla_core.legacy.xlac.tensors import _replace_xla_tensor as _replace_xla_tensor
from xla_core.legacy.xlac.tensors import _to_dlpack as _to_dlpack
from xla_core.legacy.xlac.tensors import _unique_id_for_ir_and_data as _unique_id_for_ir_and_data
from xla_core.legacy.xlac.tensors import _unsafe_buffer_pointer as _unsafe_buffer_pointer
from xla_core.legacy.xlac.tensors import _xla_get_cpu_tensors as _xla_get_cpu_tensors
from xla_core.legacy.xlac.tensors import _xla_get_rng_seed as _xla_get_rng_seed
from xla_core.legacy.xlac.tensors import _xla_get_tensor_id as _xla_get_tensor_id
from xla_core.legacy.xlac.tensors import _xla_get_tensor_view_alias_id as _xla_get_tensor_view_alias_id
from xla_core.legacy.xlac.tensors import _xla_optimization_barrier_ as _xla_optimization_barrier_
from xla_core.legacy.xlac.tensors import _xla_set_rng_seed as _xla_set_rng_seed
from xla_core.legacy.xlac.tensors import _xla_step_marker as _xla_step_marker
from xla_core.legacy.xlac.tensors import _xla_sync_live_tensors as _xla_sync_live_tensors
from xla_core.legacy.xlac.tensors import _xla_sync_multi as _xla_sync_multi
from xla_core.legacy.xlac.tensors import _xla_tensors_from_aten as _xla_tensors_from_aten
from xla_core.legacy.xlac.tensors import _xla_wait_device_ops as _xla_wait_device_ops
from xla_core.legacy.xlac.text import _get_graph_hash as _get_graph_hash
from xla_core.legacy.xlac.text import _get_tensors_handle as _get_tensors_handle
from xla_core.legacy.xlac.text import _get_xla_tensor_debug_info as _get_xla_tensor_debug_info
from xla_core.legacy.xlac.text import _get_xla_tensor_shape_type as _get_xla_tensor_shape_type
from xla_core.legacy.xlac.text import _get_xla_tensors_dot as _get_xla_tensors_dot
from xla_core.legacy.xlac.text import _get_xla_tensors_hlo as _get_xla_tensors_hlo
from xla_core.legacy.xlac.text import _get_xla_tensors_hlo_proto as _get_xla_tensors_hlo_proto
from xla_core.legacy.xlac.text import _get_xla_tensors_text as _get_xla_tensors_text
from xla_core.legacy.xlac.text import _set_xla_custom_op_name_prefix as _set_xla_custom_op_name_prefix
from xla_core.legacy.xlac.text import _xla_tensors_report as _xla_tensors_report

_register_pjrt_plugin = device_plugins.register_pjrt_plugin
_xla_dynamic_expand = dynamic_reshape.dynamic_expand
_xla_dynamic_view = dynamic_reshape.dynamic_view
_xla_get_mat_mul_precision = precision.get_mat_mul_precision
_xla_set_mat_mul_precision = precision.set_mat_mul_precision
del device_plugins, dynamic_reshape, precision

__all__ = [name for name in dir() if not name.startswith("__") and name != "_attribute"]

__getattr__ = _attribute  # shardings, reports, the profiler
