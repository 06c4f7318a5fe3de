"""Passes over graphs of exported programs with open sizes."""

from __future__ import annotations

from xla_core.legacy.open_size_passes import (
    call_function,
    decompose_dynamic_native_group_norm,
    decompose_dynamic_native_layer_norm,
    decompose_dynamic_shape_select,
    decompose_split_with_sizes,
    dynamic_unsqueeze_to_view,
    exported_program_has_symbolic_input_shape,
    flatten_embedding_indices_tensor,
    native_group_norm_impl,
    native_group_norm_pattern,
    native_layer_norm_impl,
    native_layer_norm_pattern,
    process_exported_program_with_symbolic_input,
    remove_no_op_slice,
    replace_dynamic_expand_with_xla_op,
    replace_dynamic_view_with_xla_op,
    wrap_func_as_nn_module,
)

__all__ = [
    "call_function",
    "decompose_dynamic_native_group_norm",
    "decompose_dynamic_native_layer_norm",
    "decompose_dynamic_shape_select",
    "decompose_split_with_sizes",
    "dynamic_unsqueeze_to_view",
    "exported_program_has_symbolic_input_shape",
    "flatten_embedding_indices_tensor",
    "native_group_norm_impl",
    "native_group_norm_pattern",
    "native_layer_norm_impl",
    "native_layer_norm_pattern",
    "process_exported_program_with_symbolic_input",
    "remove_no_op_slice",
    "replace_dynamic_expand_with_xla_op",
    "replace_dynamic_view_with_xla_op",
    "wrap_func_as_nn_module",
]
