"""Attention, grouped and quantized products that have hand-written kernels, and any Pallas kernel."""

from __future__ import annotations

from xla_core.features.kernels.flash_attention import (
    FlashAttention,
    flash_attention,
    flash_attention_non_xla,
    flash_attention_xla,
    generate_ctx_need_grad,
    non_xla_attetion,
    safe_empty_like,
)
from xla_core.features.kernels.grouped import GMM, gmm, gmm_backward, gmm_non_xla, gmm_xla, repeat_with_fixed_output_size, tgmm
from xla_core.features.kernels.paged_attention import (
    multi_queries_paged_attention,
    multi_queries_paged_attention_non_xla,
    multi_queries_paged_attention_xla,
    non_xla_ragged_paged_attention,
    paged_attention,
    paged_attention_non_xla,
    paged_attention_xla,
    ragged_paged_attention,
    ragged_paged_attention_non_xla,
    ragged_paged_attention_xla,
)
from xla_core.features.kernels.pallas import (
    convert_torch_dtype_to_jax,
    jax_import_guard,
    make_kernel_from_pallas,
    to_jax_shape_dtype_struct,
    trace_pallas,
    trace_pallas_arg_to_payload,
)
from xla_core.features.kernels.quantized_matmul import quantized_matmul_int8, quantized_matmul_int8_non_xla, quantized_matmul_int8_xla
from xla_core.ops.nn.attention.flash_kernel import fa_custom_backward_fake, fa_custom_forward_fake
from xla_core.ops.nn.attention.scores import DEFAULT_MASK_VALUE

__all__ = [
    "DEFAULT_MASK_VALUE",
    "FlashAttention",
    "GMM",
    "convert_torch_dtype_to_jax",
    "fa_custom_backward_fake",
    "fa_custom_forward_fake",
    "flash_attention",
    "flash_attention_non_xla",
    "flash_attention_xla",
    "generate_ctx_need_grad",
    "gmm",
    "gmm_backward",
    "gmm_non_xla",
    "gmm_xla",
    "jax_import_guard",
    "make_kernel_from_pallas",
    "multi_queries_paged_attention",
    "multi_queries_paged_attention_non_xla",
    "multi_queries_paged_attention_xla",
    "non_xla_attetion",
    "non_xla_ragged_paged_attention",
    "paged_attention",
    "paged_attention_non_xla",
    "paged_attention_xla",
    "quantized_matmul_int8",
    "quantized_matmul_int8_non_xla",
    "quantized_matmul_int8_xla",
    "ragged_paged_attention",
    "ragged_paged_attention_non_xla",
    "ragged_paged_attention_xla",
    "repeat_with_fixed_output_size",
    "safe_empty_like",
    "tgmm",
    "to_jax_shape_dtype_struct",
    "trace_pallas",
    "trace_pallas_arg_to_payload",
]
